// What save() writes, what load() accepts, and what it refuses.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/json.h"
#include "retriever/card.h"
#include "retriever/index.h"
#include "vectors.h"

namespace contexture::retriever {
namespace {

namespace fs = std::filesystem;
using testing::contains;
using testing::message_of;
using testing::numbered_ids;
using testing::random_vectors;

constexpr int64_t kDim = 16, kCount = 300;

Index sample(const std::string& factory, Metric metric = Metric::kCosine) {
  IndexOptions options;
  options.factory = factory;
  options.metric = metric;
  options.encoder_hash = "weights-1";
  options.seed = 18446744073709551615u;
  return Index::build(options, kDim, numbered_ids(kCount), random_vectors(kCount, kDim, 1));
}

class IndexFiles : public ::testing::Test {
 protected:
  fs::path path() const { return folder_.path() / "documents.faiss"; }
  fs::path card() const { return path().string() + ".card.json"; }
  fs::path ids() const { return path().string() + ".ids.jsonl"; }
  std::string refusal() const {
    return message_of<DataError>([&] { Index::load(path()); });
  }
  // Changes the index file and lets the card vouch for the result, as an attacker would.
  template <typename Change>
  void forge(const Change& change) {
    std::string bytes = read_file(path());
    change(bytes);
    write_file_atomic(path(), bytes);
    Json json = read_json_file(card().string());
    json["index"] = {{"bytes", bytes.size()}, {"sha256", sha256_hex(bytes)}};
    write_file_atomic(card(), json.dump());
  }
  template <typename T>
  static void put(std::string& bytes, size_t offset, T value) {
    std::memcpy(bytes.data() + offset, &value, sizeof(value));
  }

  TempDir folder_;
};

TEST_F(IndexFiles, ASavedIndexAnswersAsTheOneInMemory) {
  const std::vector<float> queries = random_vectors(25, kDim, 2);
  for (const char* factory : {"Flat", "IVF8,Flat", "HNSW8", "OPQ4,IVF4,PQ4x4", "IVF4,PQ8x4fs,RFlat",
                              "SQ8", "IVF1024,Flat"}) {
    SCOPED_TRACE(factory);
    for (const Metric metric : {Metric::kCosine, Metric::kL2}) {
      Index before = sample(factory, metric);
      if (contains(factory, "IVF8")) before.set_search("nprobe=3");
      before.save(path());
      Index after = Index::load(path());
      EXPECT_EQ(after.built_factory(), before.built_factory());
      EXPECT_EQ(after.options().factory, factory);
      EXPECT_EQ(after.options().search, before.options().search);
      EXPECT_EQ(after.options().seed, 18446744073709551615u);
      EXPECT_EQ(after.options().encoder_hash, "weights-1");
      EXPECT_EQ(after.normalised(), before.normalised());
      EXPECT_EQ(after.vectors(), before.vectors());
      const auto want = before.search(queries, 6), got = after.search(queries, 6);
      for (size_t q = 0; q < want.size(); ++q) {
        for (size_t i = 0; i < 6; ++i) {
          EXPECT_EQ(got[q][i].row, want[q][i].row) << factory;
          EXPECT_EQ(got[q][i].score, want[q][i].score) << factory;
        }
      }
      const Index mapped = Index::load(path(), /*mapped=*/true);
      EXPECT_EQ(mapped.vectors(), before.vectors());
      const auto seen = mapped.search(queries, 6);
      for (size_t q = 0; q < want.size(); ++q) {
        for (size_t i = 0; i < 6; ++i) {
          EXPECT_EQ(seen[q][i].row, want[q][i].row) << factory;
          EXPECT_EQ(seen[q][i].score, want[q][i].score) << factory;
        }
      }
      after.add({"later"}, random_vectors(1, kDim, 3));
      EXPECT_EQ(after.id(kCount), "later");
    }
  }
}

TEST_F(IndexFiles, AMappedIndexIsReadInPlaceAndItsListsAreNotChanged) {
  sample("IVF8,Flat").save(path());
  Index lists = Index::load(path(), /*mapped=*/true);
  const std::vector<float> more = random_vectors(1, kDim, 3);
  const std::string refusal = message_of<UserError>([&] { lists.add({"later"}, more); });
  EXPECT_TRUE(contains(refusal, "Load it into memory")) << refusal;
  EXPECT_THROW(lists.replace(std::vector<int64_t>{1}, more), UserError);
  EXPECT_THROW(lists.save(folder_.path() / "copy.faiss"), UserError);
  EXPECT_FALSE(fs::exists(folder_.path() / "copy.faiss"));
  sample("Flat").save(path());
  Index flat = Index::load(path(), /*mapped=*/true);
  flat.add({"later"}, more);  // copies first: the file stays as it is
  EXPECT_EQ(flat.size(), kCount + 1);
  flat.replace(std::vector<int64_t>{0}, more);
  EXPECT_EQ(flat.vector(0), flat.vector(kCount));
  EXPECT_EQ(Index::load(path()).size(), kCount);
}

TEST_F(IndexFiles, AMappedIndexRefusesWhatItsLengthsGiveAway) {
  for (const char* factory : {"Flat", "IVF8,Flat"}) {
    sample(factory).save(path());
    const std::string whole = read_file(path());
    for (const size_t bytes : {size_t{0}, size_t{20}, size_t{1000}, whole.size() - 1}) {
      write_file_atomic(path(), std::string_view(whole).substr(0, bytes));
      EXPECT_NE(message_of<DataError>([&] { Index::load(path(), true); }), "") << factory << bytes;
      forge([](std::string&) {});  // and when the card vouches for the length
      EXPECT_NE(message_of<DataError>([&] { Index::load(path(), true); }), "") << factory << bytes;
      sample(factory).save(path());
    }
  }
}

// faiss#153, #2963, autofaiss#125: ids lost at 2^53.
TEST_F(IndexFiles, KeepsIdsExactly) {
  const std::vector<std::string> odd = {"9007199254740993",
                                        "Q42",
                                        "a \"quoted\"\\\n\tid",
                                        "日本",
                                        "07",
                                        "7",
                                        "-1",
                                        std::string("nul\0inside", 10)};
  const std::vector<float> vectors = random_vectors(8, 4, 4);
  Index::build({}, 4, odd, vectors).save(path());
  const Index index = Index::load(path());
  for (int64_t row = 0; row < 8; ++row) {
    EXPECT_EQ(index.id(row), odd[row]);
    EXPECT_EQ(index.find(odd[row]), row);
    const auto best = index.search(std::span(vectors).subspan(row * 4, 4), 1)[0][0];
    EXPECT_EQ(index.id(best.row), odd[row]);
  }
  EXPECT_EQ(index.find("9007199254740992"), std::nullopt);
  EXPECT_THROW(Index::build({}, 4, {"\xff\xfe"}, std::span(vectors).first(4)), DataError);
}

TEST_F(IndexFiles, AFlatIndexIsTheFileThatFaissWrites) {
  const std::vector<float> vectors = {1, 2, 3, 4, 5, 6};
  IndexOptions options;
  options.metric = Metric::kL2;
  Index::build(options, 3, {"a", "b"}, vectors).save(path());
  std::string want = "IxF2";
  const auto append = [&](auto value) {
    want.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  append(int32_t{3});
  append(int64_t{2});
  append(int64_t{1} << 20);
  append(int64_t{1} << 20);
  append(uint8_t{1});
  append(int32_t{1});
  append(uint64_t{6});
  for (const float value : vectors) append(value);
  EXPECT_EQ(read_file(path()), want);
}

TEST_F(IndexFiles, RefusesAFileThatIsCutShort) {
  for (const char* factory : {"Flat", "IVF8,Flat"}) {
    sample(factory).save(path());
    const std::string whole = read_file(path());
    for (const size_t length : {size_t{1000}, size_t{20}, size_t{0}, whole.size() - 1}) {
      write_file_atomic(path(), whole.substr(0, length));
      EXPECT_TRUE(contains(refusal(), "cut short")) << length << ": " << refusal();
    }
    // With a card that vouches for the stump, too.
    sample(factory).save(path());
    forge([](std::string& bytes) { bytes.resize(1000); });
    EXPECT_FALSE(refusal().empty());
  }
}

TEST_F(IndexFiles, RefusesAPointerOfGitLfs) {
  sample("Flat").save(path());
  write_file_atomic(
      path(),
      std::string_view("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"));
  EXPECT_TRUE(contains(refusal(), "git lfs pull")) << refusal();
}

TEST_F(IndexFiles, RefusesDamageAnywhere) {
  sample("Flat").save(path());
  const std::string whole = read_file(path());
  for (const size_t where : {size_t{60}, whole.size() / 2, whole.size() - 1}) {
    std::string damaged = whole;
    damaged[where] = static_cast<char>(damaged[where] ^ 1);
    write_file_atomic(path(), damaged);
    EXPECT_TRUE(contains(refusal(), "SHA-256")) << refusal();
  }
  write_file_atomic(path(), whole);
  write_file_atomic(ids(), std::string(read_file(ids()).size(), ' '));
  EXPECT_TRUE(contains(refusal(), "SHA-256")) << refusal();
}

// Forged files: the checks behind the checksum. Each would make FAISS allocate 2^60 of something.
TEST_F(IndexFiles, RefusesImpossibleSizesBeforeAllocating) {
  constexpr uint64_t kHuge = uint64_t{1} << 60;
  sample("Flat").save(path());
  forge([](std::string& bytes) { put(bytes, 8, kHuge); });
  EXPECT_TRUE(contains(refusal(), "header says 1152921504606846976 vectors")) << refusal();

  sample("Flat").save(path());
  forge([](std::string& bytes) { put(bytes, 37, kHuge); });
  EXPECT_TRUE(contains(refusal(), "says it holds 1152921504606846976")) << refusal();

  sample("Flat").save(path());
  Json json = read_json_file(card().string());
  json["count"] = kHuge;
  write_file_atomic(card(), json.dump());
  EXPECT_TRUE(contains(refusal(), "count 1152921504606846976 is outside")) << refusal();

  sample("Flat").save(path());
  json["count"] = int64_t{1} << 40;
  write_file_atomic(card(), json.dump());
  EXPECT_FALSE(refusal().empty());

  // Every eight bytes of an inverted file in turn: sizes are refused, and what is no size may be
  // anything.
  sample("IVF4,Flat").save(path());
  const std::string whole = read_file(path()), honest = read_file(card());
  int refused = 0;
  for (size_t where = 5; where + 8 < 400; where += 4) {  // where the sizes after the metric lie
    write_file_atomic(path(), whole);
    write_file_atomic(card(), honest);
    forge([&](std::string& bytes) { put(bytes, where, kHuge); });
    try {
      Index::load(path());
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 10);
}

TEST_F(IndexFiles, RefusesACardOfAnotherIndexOrVersion) {
  sample("Flat").save(path());
  const Json honest = read_json_file(card().string());
  const auto with = [&](const char* key, const Json& value) {
    Json json = honest;
    json[key] = value;
    write_file_atomic(card(), json.dump());
    return refusal();
  };
  EXPECT_TRUE(contains(with("version", 2), "reads up to version 1"));
  EXPECT_TRUE(contains(with("metric", "l2"), "its card 'l2'"));
  EXPECT_TRUE(contains(with("metric", "dot"), "Unknown metric 'dot'"));
  EXPECT_TRUE(contains(with("dim", 8), "its card says 300 of 8"));
  EXPECT_TRUE(contains(with("dim", -8), "dim -8 is outside"));
  EXPECT_TRUE(contains(with("dim", "16"), "dim"));
  EXPECT_TRUE(contains(with("built_factory", "IVF4,Flat"), "tag is IxFI"));
  EXPECT_TRUE(contains(with("format", "other"), "not the card of an index"));
  EXPECT_TRUE(contains(with("index", 3), "'index' must be an object"));
  write_file_atomic(card(), std::string_view("{"));
  EXPECT_FALSE(refusal().empty());
  fs::remove(card());
  EXPECT_TRUE(contains(refusal(), "has no card"));
  fs::remove(path());
  EXPECT_TRUE(contains(refusal(), "no such index"));
}

// faiss#607, autofaiss#178: a full disk left a partial file under the final name, or none and no
// error.
void expect_save_fails_and_keeps_the_old_index(const fs::path& path) {
  sample("Flat").save(path);
  const int64_t n = 20000;
  const Index large = Index::build({}, kDim, numbered_ids(n), random_vectors(n, kDim, 5));
  EXPECT_FALSE(message_of<UserError>([&] { large.save(path); }).empty());
  EXPECT_EQ(Index::load(path).size(), kCount);
  int files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(path.parent_path())) ++files;
  EXPECT_EQ(files, 3) << "a temporary file was left behind";
}

TEST_F(IndexFiles, AFileThatMayNotGrowKeepsTheOldIndex) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1 << 20;
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_save_fails_and_keeps_the_old_index(path());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
}

TEST_F(IndexFiles, AFullDiskKeepsTheOldIndex) {
  const fs::path disk = folder_.path() / "disk";
  fs::create_directory(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "mounting a small tmpfs needs root: " << std::strerror(errno);
  }
  expect_save_fails_and_keeps_the_old_index(disk / "documents.faiss");
  umount(disk.c_str());
}

TEST_F(IndexFiles, ADeviceIsNoPlaceForAnIndex) {
  EXPECT_FALSE(message_of<UserError>([] { sample("Flat").save("/dev/full"); }).empty());
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  EXPECT_FALSE(fs::exists("/dev/full.card.json"));
}

}  // namespace
}  // namespace contexture::retriever
