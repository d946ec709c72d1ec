// Search over ranks: the answers of the whole index, bit for bit, whatever the number of ranks and
// however shards lie on them.
#include "retriever/rank_search.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "parallel/parameters.h"
#include "retriever/spread_index.h"
#include "vectors.h"

namespace contexture::retriever {
namespace {

namespace fs = std::filesystem;
using testing::contains;
using testing::numbered_ids;
using testing::random_vectors;

constexpr int64_t kDim = 12, kCount = 101;

// body(communicator) on threads; what each rank threw.
template <typename Body>
std::vector<std::string> on_ranks(int ranks, const Body& body) {
  const auto world = parallel::make_thread_communicators(ranks, /*deadline_s=*/60.0);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(world[r]);
      } catch (const std::exception& error) {
        errors[r] = error.what();
        world[r]->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void expect_none(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

class RankSearch : public ::testing::Test {
 protected:
  // Every fifth vector is that of a row before: ties, also across ranks.
  RankSearch() : vectors_(random_vectors(kCount, kDim, 1)) {
    for (int64_t row = 20; row < kCount; row += 5) {
      std::copy_n(vectors_.begin() + (row - 20) * kDim, kDim, vectors_.begin() + row * kDim);
    }
  }
  Index build(int64_t begin, int64_t end) const {
    const std::vector<std::string> ids = numbered_ids(kCount);
    return Index::build({}, kDim, {ids.begin() + begin, ids.begin() + end},
                        std::span(vectors_).subspan(begin * kDim, (end - begin) * kDim));
  }
  std::vector<float> vectors_;
};

TEST_F(RankSearch, EachRankGetsTheWholeIndexsAnswerToItsOwnQueries) {
  const Index whole = build(0, kCount);
  const std::vector<std::string> ids = numbered_ids(kCount);
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const int64_t k : {1, 10, 150}) {
      expect_none(on_ranks(ranks, [&](const std::shared_ptr<parallel::Communicator>& world) {
        const int64_t rank = world->rank();
        const auto [begin, end] = parallel::part_of(kCount, {world->rank(), ranks});
        const Index mine = build(begin, end);
        const int64_t first = begin;
        const auto search = [&](std::span<const float> queries, int64_t most) {
          auto found = mine.search(queries, most);
          for (Ranking& ranking : found) {
            for (Hit& hit : ranking) hit.row += first;
          }
          return found;
        };
        // Rank r asks r * 2 things (rank 0 none), some of them stored vectors; with one rank,
        // three.
        std::vector<float> queries(vectors_.begin(),
                                   vectors_.begin() + (ranks == 1 ? 3 : rank) * kDim);
        const std::vector<float> others = random_vectors(rank, kDim, 100 + rank);
        queries.insert(queries.end(), others.begin(), others.end());
        const at::Tensor query_BE =
            at::tensor(at::ArrayRef<float>(queries), at::kFloat).view({-1, kDim});
        auto got = *search_ranks(*world, query_BE, rank == ranks - 1 ? k : 0, search);
        EXPECT_EQ(static_cast<int64_t>(got.size()), query_BE.size(0));
        const auto want = queries.empty() ? std::vector<Ranking>() : whole.search(queries, k);
        for (size_t q = 0; q < got.size(); ++q) {
          keep_best(got[q], k, [&](int64_t row) -> const std::string& { return ids[row]; });
          ASSERT_EQ(got[q].size(), want[q].size());
          for (size_t h = 0; h < got[q].size(); ++h) {
            EXPECT_EQ(got[q][h].row, want[q][h].row);
            EXPECT_EQ(got[q][h].score, want[q][h].score);  // not near: the same bits
          }
        }
        EXPECT_FALSE(search_ranks(*world, query_BE, 0, search)) << "all gave k = 0";
      }));
    }
  }
}

TEST_F(RankSearch, AListOfShardsIsSearchedByAnyNumberOfRanks) {
  const TempDir folder;
  const Index whole = build(0, kCount);
  build_shards({}, kDim, numbered_ids(kCount), vectors_, 5, folder.path() / "a.shards.json");
  whole.save(folder.path() / "one.faiss");
  std::vector<float> queries = random_vectors(300, kDim, 2);  // more than go at once
  queries.insert(queries.end(), vectors_.begin(), vectors_.begin() + 3 * kDim);
  const auto want = whole.search(queries, 7);
  for (const auto& [file, ranks] : std::vector<std::pair<const char*, int>>{{"a.shards.json", 1},
                                                                            {"a.shards.json", 2},
                                                                            {"a.shards.json", 3},
                                                                            {"a.shards.json", 5},
                                                                            {"a.shards.json", 7},
                                                                            {"one.faiss", 2}}) {
    expect_none(
        on_ranks(ranks, [&, file = file](const std::shared_ptr<parallel::Communicator>& world) {
          const SpreadIndex index =
              SpreadIndex::load(folder.path() / file, /*mapped=*/world->rank() == 1, world);
          EXPECT_EQ(index.size(), kCount);
          EXPECT_EQ(index.vector_of("doc-77"), whole.vector(77));
          EXPECT_FALSE(index.vector_of("nobody"));
          if (world->rank() != 0) return index.assist();
          const auto got = index.search(queries, 7);
          ASSERT_EQ(got.size(), want.size());
          for (size_t q = 0; q < got.size(); ++q) {
            ASSERT_EQ(got[q].size(), want[q].size());
            for (size_t h = 0; h < got[q].size(); ++h) {
              EXPECT_EQ(got[q][h].id, whole.id(want[q][h].row));
              EXPECT_EQ(got[q][h].score, want[q][h].score);
            }
          }
          index.release();
        }));
  }
}

TEST_F(RankSearch, ShardsThatDoNotBelongTogetherAreRefusedAcrossRanks) {
  const TempDir folder;
  const fs::path list = folder.path() / "a.shards.json";
  build_shards({}, kDim, numbered_ids(kCount), vectors_, 2, list);
  const auto refusal = [&] {
    return on_ranks(2, [&](const std::shared_ptr<parallel::Communicator>& world) {
      const SpreadIndex index = SpreadIndex::load(list, false, world);
      if (world->rank() != 0) index.assist();
    });
  };
  const Json whole = read_json_file(list.string());
  Json json = whole;
  json["count"] = kCount + 1;
  write_file_atomic(list, std::string_view(json.dump()));
  EXPECT_TRUE(contains(refusal()[0], "its shards have 101")) << refusal()[0];
  IndexOptions other;
  other.encoder_hash = "another";
  Index::build(other, kDim, {"z"}, std::span(vectors_).first(kDim))
      .save(folder.path() / "other.faiss");
  json = whole;
  json["shards"][1] = "other.faiss";
  write_file_atomic(list, std::string_view(json.dump()));
  EXPECT_TRUE(contains(refusal()[0], "differ in dimension, metric or encoder"));
  json["shards"][1] = "nowhere.faiss";
  write_file_atomic(list, std::string_view(json.dump()));
  EXPECT_TRUE(contains(refusal()[1], "there is no such index"));
  EXPECT_TRUE(contains(refusal()[0], "nowhere.faiss")) << "rank 0 learns the cause";
}

TEST_F(RankSearch, AnIdInShardsOfTwoRanksIsNamedWithBothPlaces) {
  const TempDir folder;
  const fs::path list = folder.path() / "a.shards.json";
  build_shards({}, kDim, numbered_ids(kCount), vectors_, 4, list);
  Index::build({}, kDim, {"fresh", "doc-3"}, std::span(vectors_).first(2 * kDim))
      .save(folder.path() / "more.faiss");
  Json json = read_json_file(list.string());
  json["shards"].push_back("more.faiss");
  json["count"] = kCount + 2;
  write_file_atomic(list, std::string_view(json.dump()));
  for (const int ranks : {2, 3, 5, 6}) {
    const auto refusals =
        on_ranks(ranks, [&](const std::shared_ptr<parallel::Communicator>& world) {
          const SpreadIndex index = SpreadIndex::load(list, false, world);
          if (world->rank() != 0) index.assist();
        });
    for (const char* part : {"'doc-3'", "a.00000-of-00004.faiss (row 3)", "more.faiss (row 1)"}) {
      EXPECT_TRUE(contains(refusals[0], part)) << ranks << ": " << refusals[0];
    }
  }
}

}  // namespace
}  // namespace contexture::retriever
