// Shards: the same answers as the whole, cut anew at will, and refused when they do not belong
// together. And which index to build for how much memory.
#include "retriever/sharded_index.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "retriever/choose_index.h"
#include "vectors.h"

namespace contexture::retriever {
namespace {

namespace fs = std::filesystem;
using testing::contains;
using testing::message_of;
using testing::numbered_ids;
using testing::random_vectors;

constexpr int64_t kDim = 12, kCount = 101;

std::vector<std::pair<std::string, double>> named(const auto& index, const Ranking& ranking) {
  std::vector<std::pair<std::string, double>> out;
  for (const Hit& hit : ranking) out.emplace_back(index.id(hit.row), hit.score);
  return out;
}

class Shards : public ::testing::Test {
 protected:
  // Every fifth vector is that of the row before: ties, also across shards.
  Shards() : vectors_(random_vectors(kCount, kDim, 1)) {
    for (int64_t row = 20; row < kCount; row += 5) {
      std::copy_n(vectors_.begin() + (row - 20) * kDim, kDim, vectors_.begin() + row * kDim);
    }
  }
  fs::path list(const char* name) const {
    return folder_.path() / (std::string(name) + ".shards.json");
  }
  void build(const fs::path& path, int64_t shards) const {
    build_shards({}, kDim, numbered_ids(kCount), vectors_, shards, path);
  }

  std::vector<float> vectors_;
  TempDir folder_;
};

TEST_F(Shards, AnswerAsTheWholeIndexDoesHoweverItIsCut) {
  const Index whole = Index::build({}, kDim, numbered_ids(kCount), vectors_);
  std::vector<float> queries = random_vectors(9, kDim, 2);
  queries.insert(queries.end(), vectors_.begin(), vectors_.begin() + 3 * kDim);
  build(list("a"), 4);
  // 4 shards to 7, to 1, to 101 of one document each.
  ShardedIndex four = ShardedIndex::load(list("a"));
  write_merged({&four}, "", 7, list("b"));
  const ShardedIndex seven = ShardedIndex::load(list("b"), /*mapped=*/true);
  write_merged({&seven}, "", 1, folder_.path() / "one.faiss");
  const ShardedIndex one = ShardedIndex::load(folder_.path() / "one.faiss");
  write_merged({&one}, "", kCount, list("c"));
  const ShardedIndex single = ShardedIndex::load(list("c"));
  EXPECT_EQ(seven.shards().size(), 7u);
  EXPECT_EQ(single.shards().size(), 101u);
  for (const int64_t k : {1, 10, 150}) {
    const auto want = whole.search(queries, k);
    for (const ShardedIndex* index :
         std::vector<const ShardedIndex*>{&four, &seven, &one, &single}) {
      const auto got = index->search(queries, k);
      for (size_t q = 0; q < want.size(); ++q)
        EXPECT_EQ(named(*index, got[q]), named(whole, want[q])) << k;
    }
  }
  EXPECT_EQ(four.id(77), "doc-77");
  EXPECT_EQ(four.find("doc-77"), 77);
  EXPECT_EQ(four.vector(77), whole.vector(77));
  EXPECT_FALSE(four.find("doc-101").has_value());
}

TEST_F(Shards, MergingKeepsTheOrderAndRefusesAnIdThatIsInBoth) {
  const auto part = [&](int64_t begin, int64_t end) {
    const std::vector<std::string> ids = numbered_ids(kCount);
    std::vector<Index> one;
    one.push_back(Index::build({}, kDim, {ids.begin() + begin, ids.begin() + end},
                               std::span(vectors_).subspan(begin * kDim, (end - begin) * kDim)));
    return ShardedIndex(std::move(one));
  };
  const ShardedIndex a = part(0, 60), b = part(60, kCount), c = part(59, 70);
  write_merged({&a, &b}, "", 1, folder_.path() / "all.faiss");
  const Index all = Index::load(folder_.path() / "all.faiss");
  EXPECT_EQ(all.id(100), "doc-100");
  EXPECT_EQ(all.vectors(), Index::build({}, kDim, numbered_ids(kCount), vectors_).vectors());
  EXPECT_TRUE(contains(message_of<DataError>([&] {
                         write_merged({&a, &c}, "", 1, folder_.path() / "x.faiss");
                       }),
                       "doc-59"));
  EXPECT_TRUE(contains(message_of<DataError>([&] {
                         write_merged({&a, &c}, "", 2, list("x"));
                       }),
                       "doc-59"));
}

TEST_F(Shards, IndexesThatDoNotCompareAreNotMerged) {
  const auto with = [&](Metric metric, const char* encoder) {
    IndexOptions options;
    options.metric = metric;
    options.encoder_hash = encoder;
    std::vector<Index> one;
    one.push_back(Index::build(options, kDim, numbered_ids(kCount), vectors_));
    return ShardedIndex(std::move(one));
  };
  const ShardedIndex a = with(Metric::kCosine, "e1"), b = with(Metric::kL2, "e1"),
                     c = with(Metric::kCosine, "e2");
  const auto refusal = [&](const ShardedIndex& other) {
    return message_of<UserError>([&] {
      write_merged({&a, &other}, "", 1, folder_.path() / "x.faiss");
    });
  };
  EXPECT_TRUE(contains(refusal(b), "cosine")) << refusal(b);
  EXPECT_TRUE(contains(refusal(c), "e2")) << refusal(c);
}

TEST_F(Shards, AnIdInTwoIndexesIsNamedWithBothPlacesWhenTheyAreMerged) {
  build(list("a"), 3);
  Index::build({}, kDim, {"fresh", "doc-99"}, std::span(vectors_).first(2 * kDim))
      .save(folder_.path() / "b.faiss");
  const ShardedIndex a = ShardedIndex::load(list("a")),
                     b = ShardedIndex::load(folder_.path() / "b.faiss");
  for (const int64_t shards : {1, 2}) {
    const fs::path to = shards == 1 ? folder_.path() / "x.faiss" : list("x");
    const std::string refusal = message_of<DataError>([&] {
      write_merged({&a, &b}, "", shards, to);
    });
    for (const char* part : {"'doc-99'", "a.00002-of-00003.faiss (row ", "b.faiss (row 1)"})
      EXPECT_TRUE(contains(refusal, part)) << refusal;
    EXPECT_FALSE(fs::exists(to));
  }
}

TEST_F(Shards, AListWhoseShardsDoNotFitIsRefused) {
  build(list("a"), 3);
  build(list("b"), 2);
  const auto refusal = [&](const Json& change) {
    Json json = read_json_file(list("a").string());
    json.update(change);
    write_file_atomic(list("x"), std::string_view(json.dump()));
    return message_of<DataError>([&] { ShardedIndex::load(list("x")); });
  };
  const std::string first = "a.00000-of-00003.faiss", second = "a.00001-of-00003.faiss";
  for (const char* part : {"'doc-0'", "a.00000-of-00003.faiss (row 0) and in"})
    EXPECT_TRUE(contains(refusal({{"shards", {first, first}}}), part)) << part;
  EXPECT_TRUE(contains(refusal({{"shards", {first, second}}}), "101"));
  EXPECT_TRUE(contains(refusal({{"shards", {first, "nowhere.faiss"}}}), "nowhere.faiss"));
  EXPECT_TRUE(contains(refusal({{"shards", {"../a.faiss"}}}), "beside it"));
  EXPECT_TRUE(contains(refusal({{"shards", Json::array()}}), "no shard"));
  EXPECT_TRUE(contains(refusal({{"format", "other"}}), "no list of shards"));
  IndexOptions other;
  other.metric = Metric::kInnerProduct;
  Index::build(other, kDim, {"z"}, std::span(vectors_).first(kDim))
      .save(folder_.path() / "other.faiss");
  EXPECT_TRUE(contains(refusal({{"shards", {first, "other.faiss"}}}), "differ"));
}

TEST_F(Shards, CuttingIntoMoreThanThereAreIsRefused) {
  EXPECT_THROW(build(list("a"), kCount + 1), UsageError);
  EXPECT_THROW(build(folder_.path() / "a.faiss", 2), UsageError)
      << "a list must end in .shards.json";
}

TEST(ChooseIndex, TakesTheMostThatFitsAndSaysWhy) {
  EXPECT_EQ(choose_index(10'000, 384, parse_bytes("1G"), 0.9).factory, "Flat");
  EXPECT_EQ(choose_index(1'000'000, 384, parse_bytes("16G"), 1.0).factory, "Flat");
  EXPECT_EQ(choose_index(1'000'000, 384, parse_bytes("16G"), 0.95).factory, "IVF2048,Flat");
  EXPECT_EQ(choose_index(1'000'000, 384, parse_bytes("1G"), 0.95).factory, "IVF2048,SQ8");
  EXPECT_EQ(choose_index(1'000'000, 384, parse_bytes("300M"), 0.9).factory, "IVF2048,PQ192");
  EXPECT_EQ(choose_index(21'000'000, 768, parse_bytes("16G"), 0.9).factory, "IVF8192,PQ384");
  const IndexChoice choice = choose_index(1'000'000, 384, parse_bytes("1G"), 0.95);
  EXPECT_TRUE(contains(choice.explained, "IVF2048,Flat takes 1.5 GiB")) << choice.explained;
  EXPECT_TRUE(contains(choice.explained, "too much"));
  EXPECT_LE(choice.bytes, int64_t{1} << 30);
  const std::string refusal =
      message_of<UserError>([] { choose_index(1'000'000, 384, 1 << 20, 0.9); });
  EXPECT_TRUE(contains(refusal, "--memory")) << refusal;
  EXPECT_THROW(choose_index(10, 4, 1 << 20, 1.5), UsageError);
}

TEST(ChooseIndex, ReadsAmountsOfMemory) {
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  EXPECT_EQ(parse_bytes("16G"), uint64_t{16} << 30);
  EXPECT_EQ(parse_bytes("1.5MiB"), uint64_t{3} << 19);
  EXPECT_EQ(parse_bytes("2kb"), uint64_t{2048});
  for (const char* bad : {"", "G", "16X", "-1G", "1e30", "16 apples"})
    EXPECT_THROW(parse_bytes(bad), UsageError) << bad;
}

TEST(RecallProbe, TuningReachesTheRecallThatIsAskedFor) {
  const std::vector<float> vectors = random_vectors(2000, 16, 3);
  IndexOptions options;
  options.factory = "IVF32,Flat";
  Index index = Index::build(options, 16, numbered_ids(2000), vectors);
  const RecallProbe probe(options.metric, 16, vectors);
  index.set_search("nprobe=1");
  EXPECT_LT(probe.measure(index), 0.9);
  EXPECT_GE(tune_search(index, probe, 0.9), 0.9);
  EXPECT_TRUE(contains(index.options().search, "nprobe="));
  EXPECT_EQ(tune_search(index, probe, 1.0), 1.0) << "all lists are the exact index";
}

TEST(ExactSearch, AgreesWithTheFlatIndex) {
  const std::vector<float> vectors = random_vectors(500, 8, 4), queries = random_vectors(7, 8, 5);
  for (const Metric metric : {Metric::kCosine, Metric::kInnerProduct, Metric::kL2}) {
    IndexOptions options;
    options.metric = metric;
    const auto want = Index::build(options, 8, numbered_ids(500), vectors).search(queries, 6);
    EXPECT_EQ(overlap(exact_search(metric, 8, vectors, queries, 6), want), 1.0);
  }
}

}  // namespace
}  // namespace contexture::retriever
