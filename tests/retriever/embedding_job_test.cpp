// Embedding a corpus in chunks: an interruption loses nothing that was finished, and nothing is
// mixed.
#include "retriever/embedding_job.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/files.h"
#include "retriever/text_encoder.h"
#include "vectors.h"

namespace contexture::retriever {
namespace {

namespace fs = std::filesystem;
using testing::contains;
using testing::message_of;

class Job : public ::testing::Test {
 protected:
  TempDir folder_;
  EmbeddingJob job_{folder_.path() / "parts", "encoder-1", "corpus-1", "fp32", 10, 2, 4};
  std::vector<int64_t> embedded_;  // first rows of the chunks that were computed

  std::optional<std::vector<float>> run(int64_t stop_after = 100) {
    return run_embedding_job(
        job_,
        [this](int64_t first, int64_t n) {
          embedded_.push_back(first);
          std::vector<float> out;
          for (int64_t i = 0; i < 2 * n; ++i) out.push_back(static_cast<float>(2 * first + i));
          return out;
        },
        [](const EmbeddingProgress&) {},
        [this, stop_after] { return static_cast<int64_t>(embedded_.size()) >= stop_after; });
  }
};

TEST_F(Job, GoesOnWhereItWasInterrupted) {
  EXPECT_FALSE(run(2).has_value());
  EXPECT_EQ(embedded_, (std::vector<int64_t>{0, 4}));
  const auto vectors = run();
  EXPECT_EQ(embedded_, (std::vector<int64_t>{0, 4, 8})) << "only what was missing is computed";
  ASSERT_TRUE(vectors.has_value());
  ASSERT_EQ(vectors->size(), 20u);
  for (size_t i = 0; i < vectors->size(); ++i) EXPECT_EQ((*vectors)[i], static_cast<float>(i));
}

TEST_F(Job, AKillInTheMiddleOfAChunkLosesThatChunkAlone) {
  run();
  fs::remove(job_.folder / "chunk-000001.npy");
  write_file_atomic(job_.folder / "chunk-000001.npy.tmp", std::string_view("half of it"));
  embedded_.clear();
  EXPECT_TRUE(run().has_value());
  EXPECT_EQ(embedded_, (std::vector<int64_t>{4}));
}

TEST_F(Job, AnotherJobsChunksAreRefusedByKey) {
  run(1);
  for (const auto& [change, key] :
       std::vector<std::pair<std::function<void(EmbeddingJob&)>, const char*>>{
           {[](EmbeddingJob& j) { j.encoder_hash = "encoder-2"; }, "encoder_hash"},
           {[](EmbeddingJob& j) { j.corpus_hash = "corpus-2"; }, "corpus_hash"},
           {[](EmbeddingJob& j) { j.precision = "bf16"; }, "precision"},
           {[](EmbeddingJob& j) { j.count = 11; }, "count"}}) {
    const EmbeddingJob before = job_;
    change(job_);
    EXPECT_TRUE(contains(message_of<UserError>([&] { run(); }), key)) << key;
    job_ = before;
  }
}

TEST_F(Job, AFolderOfSomethingElseIsLeftAlone) {
  fs::create_directories(job_.folder);
  write_file_atomic(job_.folder / "precious.txt", std::string_view("mine"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { run(); }), "job.json"));
  EXPECT_EQ(read_file(job_.folder / "precious.txt"), "mine");
}

TEST_F(Job, ADamagedChunkIsNamed) {
  run();
  const fs::path chunk = job_.folder / "chunk-000002.npy";
  const std::string whole = read_file(chunk);
  write_file_atomic(chunk, std::string_view(whole).substr(0, whole.size() - 1));
  EXPECT_TRUE(contains(message_of<DataError>([&] { run(); }), "chunk-000002.npy"));
}

TEST_F(Job, RemovingItRemovesItsFilesAlone) {
  run();
  remove_embedding_job(job_);
  EXPECT_FALSE(fs::exists(job_.folder));
  run();
  write_file_atomic(job_.folder / "precious.txt", std::string_view("mine"));
  remove_embedding_job(job_);
  EXPECT_TRUE(fs::exists(job_.folder / "precious.txt"));
  EXPECT_FALSE(fs::exists(job_.folder / "job.json"));
}

TEST(TextEncoder, GivesEveryTextItsOwnVectorWhateverTheOrder) {
  const auto encoder = TextEncoder::load(fs::path(CONTEXTURE_SOURCE_DIR) / "tests/golden/tiny_bert",
                                         model::EncoderPrecision::kFp32);
  const std::vector<std::string> texts{"a", "the capital of france is paris", "", "is",
                                       "paris france"};
  const std::vector<float> together = encoder.embed(texts);
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<float> alone = encoder.embed(std::span(&texts[i], 1));
    // A matrix product of other height may sum in another order; states are of size 1 to 5.
    for (int64_t c = 0; c < encoder.dim(); ++c)
      EXPECT_NEAR(alone[c], together[i * encoder.dim() + c], 3e-6) << texts[i];
  }
}

TEST(TextEncoder, TheHashTellsEncodersApart) {
  const fs::path tiny = fs::path(CONTEXTURE_SOURCE_DIR) / "tests/golden/tiny_bert";
  const auto load = [](const fs::path& folder, int64_t tokens = 0) {
    return TextEncoder::load(folder, model::EncoderPrecision::kFp32, tokens).hash();
  };
  EXPECT_EQ(load(tiny), TextEncoder::load(tiny, model::EncoderPrecision::kBf16).hash())
      << "precision is no other encoder";
  EXPECT_NE(load(tiny), load(tiny, 20));
  const TempDir folder;
  const fs::path copy = folder.path() / "model";
  fs::copy(tiny, copy, fs::copy_options::recursive);
  EXPECT_EQ(load(copy), load(tiny));
  std::string weights = read_file(copy / "model.safetensors");
  weights[weights.size() - 1] = static_cast<char>(weights.back() ^ 1);
  write_file_atomic(copy / "model.safetensors", std::string_view(weights));
  EXPECT_NE(load(copy), load(tiny));
  write_file_atomic(copy / "vocab.txt", std::string_view(read_file(copy / "vocab.txt") + "more\n"));
  EXPECT_TRUE(contains(message_of<DataError>([&] { load(copy); }), "vocab_size"));
}

}  // namespace
}  // namespace contexture::retriever
