// One tiny run from training to its report, and every command that reads a run.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "core/error.h"
#include "program.h"

namespace contexture::cli {
namespace {
namespace fs = std::filesystem;

const std::string kFlags = std::string(CONTEXTURE_SOURCE_DIR) + "/tests/fixtures/flags/";

class TinyRun : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TempDir;
    trained_ = new Result(run_program(tiny_training(run(), {"--json"})));
  }
  static void TearDownTestSuite() {
    delete trained_;
    delete dir_;
  }
  void SetUp() override { ASSERT_EQ(trained_->code, 0) << trained_->err; }
  static fs::path run() { return dir_->path() / "run"; }
  static std::string checkpoint(const char* step) { return run() / "checkpoints" / step; }

  static TempDir* dir_;
  static Result* trained_;
};
TempDir* TinyRun::dir_ = nullptr;
Result* TinyRun::trained_ = nullptr;

TEST_F(TinyRun, TrainingWritesTheRunFolder) {
  const Json result = trained_->json();
  EXPECT_EQ(result["steps"], 20);
  EXPECT_GT(result["examples_per_s"].get<double>(), 0.0);
  EXPECT_EQ(losses(run()).size(), 20u);
  for (const char* file : {"config.resolved.json", "data_health.json", "report.html",
                           "tokenizer.model", "checkpoints/step-00000020/manifest.json"}) {
    EXPECT_TRUE(fs::exists(run() / file)) << file;
  }
}

TEST_F(TinyRun, AFolderThatHoldsARunIsRefusedWithoutResume) {
  const Result again = run_program(tiny_training(run()));
  EXPECT_EQ(again.code, 1);
  EXPECT_NE(again.err.find("--resume"), std::string::npos) << again.err;
  EXPECT_EQ(losses(run()).size(), 20u) << "and nothing of it is touched";
}

TEST_F(TinyRun, TheSameSeedGivesTheSameLosses) {
  const fs::path other = dir_->path() / "other";
  ASSERT_EQ(run_program(tiny_training(other)).code, 0);
  EXPECT_EQ(losses(other), losses(run()));
  const Result same = run_program({"checkpoint", "diff", run(), other, "--json"});
  EXPECT_EQ(same.code, 0) << same.out;
  EXPECT_TRUE(same.json()["equal"].get<bool>());
}

TEST_F(TinyRun, EvalPrintsTheTable) {
  const Result result = run_program({"eval", run(), "--examples", "6", "--edits", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.json()["n"], 6);
  EXPECT_TRUE(result.json()["em"].contains("closed_book"));
  EXPECT_TRUE(result.json().contains("edit_follow"));
}

TEST_F(TinyRun, AnEvaluationIsShownByTheReport) {
  write_file_atomic(run() / "summary.json", Json{{"train", {{"steps", 20}}}}.dump());
  const Result evaluated = run_program({"eval", run(), "--edits"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  fs::remove(run() / "report.html");
  const Result result = run_program({"report", run(), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json shown = result.json();
  Json figures = evaluated.json();
  figures.erase("bad_records");
  EXPECT_EQ(shown["summary"]["held_out"], figures);
  EXPECT_EQ(shown["summary"]["train"]["steps"], 20) << "an evaluation says nothing of training";
  EXPECT_EQ(figures["n"], 12);
  ASSERT_EQ(shown["samples"].size(), 12u);
  EXPECT_EQ(shown["samples"][0]["documents"].size(), 2u);
  ASSERT_EQ(shown["edits"].size(), 3u) << "one of each kind of fact";
  const std::string page = read_file(run() / "report.html");
  for (const Json& text :
       {shown["samples"][0]["question"], shown["edits"][0]["fact_after"], Json("edit_follow")})
    EXPECT_NE(page.find(text.get<std::string>()), std::string::npos) << text;

  ASSERT_EQ(run_program({"eval", run(), "--examples", "4"}).code, 0);
  const Json later = run_program({"report", run(), "--json"}).json();
  EXPECT_EQ(later["summary"]["held_out"]["n"], 4);
  EXPECT_EQ(later["samples"].size(), 4u);
  EXPECT_TRUE(later["edits"].empty()) << "none of another evaluation";
}

TEST_F(TinyRun, AskAndGenerateAnswerWithTheirDocuments) {
  const Result asked = run_program({"ask", run(), "What is the capital of this country?",
                                    "--picture", kFlags + "images/EE.png", "--json"});
  ASSERT_EQ(asked.code, 0) << asked.err;
  EXPECT_EQ(asked.json()["documents"].size(), 2u);
  const Result generated = run_program({"generate", run(), kFlags + "test.jsonl"});
  ASSERT_EQ(generated.code, 0) << generated.err;
  EXPECT_EQ(std::count(generated.out.begin(), generated.out.end(), '\n'), 12);
  EXPECT_EQ(run_program({"ask", run(), "?", "--picture", kFlags + "corpus.jsonl"}).code, 3)
      << "that is no picture";
}

// A flag that no country has, as a 24-bit BMP: a disc on a ground cut in two, darker or lighter.
std::string invented_flag(int light) {
  constexpr int kSide = 64, kBytes = 54 + 3 * kSide * kSide;
  std::string bmp(kBytes, '\0');
  const auto put = [&](int at, uint32_t value) {
    for (int byte = 0; byte < 4; ++byte) bmp[at + byte] = static_cast<char>(value >> (8 * byte));
  };
  bmp[0] = 'B';
  bmp[1] = 'M';
  put(2, kBytes);
  put(10, 54);  // where the pixels begin
  put(14, 40);
  put(18, kSide);
  put(22, kSide);
  put(26, 1 | 24 << 16);
  for (int p = 0; p < kSide * kSide; ++p) {
    const int x = p % kSide - kSide / 2, y = p / kSide - kSide / 2;
    const bool disc = x * x + y * y<300, above = x + y> 0;
    bmp[54 + 3 * p] = static_cast<char>(disc ? 60 + light : above ? 90 + light : 10 + light);
    bmp[54 + 3 * p + 1] = static_cast<char>(disc ? 180 + light : above ? 20 : 90 + light);
    bmp[54 + 3 * p + 2] = static_cast<char>(disc ? 210 + light : above ? 90 + light : 20);
  }
  return bmp;
}

TEST_F(TinyRun, AnInventedCountryIsFoundAsSoonAsItIsInTheCorpus) {
  const fs::path data = dir_->path() / "flags", drawn = dir_->path() / "drawn.bmp";
  fs::copy(kFlags, data, fs::copy_options::recursive);
  write_file_atomic(drawn, invented_flag(20));
  const auto ask = [&] {
    const Result asked =
        run_program({"ask", run(), "What is the capital of this country?", "--picture", drawn,
                     "--set", "data.root=" + data.string(), "--json"});
    EXPECT_EQ(asked.code, 0) << asked.err;
    return asked.json()["documents"];
  };
  for (const Json& document : ask()) EXPECT_NE(document["id"], "country:ZZ");
  write_file_atomic(data / "images" / "ZZ.bmp", invented_flag(0));
  write_file_atomic(
      data / "corpus.jsonl",
      read_file(data / "corpus.jsonl") +
          Json{{"id", "country:ZZ"},
               {"title", "Zubrowka"},
               {"text", "The capital city is Lutz. A person from there is Zubrowkan."},
               {"image", "images/ZZ.bmp"}}
              .dump() +
          "\n");
  const Json documents = ask();
  ASSERT_EQ(documents.size(), 2u);
  EXPECT_EQ(documents[0]["id"], "country:ZZ") << documents;
  EXPECT_NE(documents[0]["text"].get<std::string>().find("Lutz"), std::string::npos);
}

TEST_F(TinyRun, ReportIsWrittenAnew) {
  fs::remove(run() / "report.html");
  const Result result = run_program({"report", run(), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(result.json().is_object());
  EXPECT_TRUE(fs::exists(run() / "report.html"));
}

TEST_F(TinyRun, AnIndexOfItsCorpusIsBuiltAndSearched) {
  const std::string index = dir_->path() / "flags.index";
  const Result built = run_program({"index", "build", run(), "--output", index, "--json"});
  ASSERT_EQ(built.code, 0) << built.err;
  EXPECT_EQ(built.json()["documents"], 12);
  EXPECT_EQ(built.json()["overlap_with_exact"], 1.0);
  EXPECT_EQ(run_program({"index", "info", index, "--json"}).json()["dim"], built.json()["dim"]);
  const Result like =
      run_program({"index", "search", index, "--like", "country:JP", "-k", "3", "--json"});
  ASSERT_EQ(like.code, 0) << like.err;
  EXPECT_EQ(like.json()["hits"].size(), 3u);
  EXPECT_EQ(like.json()["hits"][0]["id"], "country:JP");
  const Result pictured = run_program({"index", "search", index, "--run", run(), "--picture",
                                       kFlags + "images/JP.png", "-k", "2", "--json"});
  ASSERT_EQ(pictured.code, 0) << pictured.err;
  EXPECT_EQ(pictured.json()["hits"].size(), 2u);
  const Result stale =
      run_program({"index", "search", index, "--run", run(), "--step", "10", "--question", "?"});
  EXPECT_EQ(stale.code, 1) << "the vectors come from another checkpoint's encoder: " << stale.err;
  EXPECT_EQ(run_program({"index", "search", index}).code, 2);
}

// A run whose retriever started from a published encoder, and the folder that it was exported to.
class ExportedEncoder : public testing::Test {
 protected:
  void SetUp() override {
    const std::string from = std::string(CONTEXTURE_SOURCE_DIR) + "/tests/golden/tiny_bert";
    const Result trained = run_program(tiny_training(
        published_, {"--set", "model.text_encoder=" + from, "--set", "data.query=both", "--set",
                     "train.precision=fp32", "--set", "train.steps=3"}));
    ASSERT_EQ(trained.code, 0) << trained.err;
    const Result written =
        run_program({"checkpoint", "export-encoder", published_, exported_, "--json"});
    ASSERT_EQ(written.code, 0) << written.err;
    EXPECT_EQ(written.json(), Json({{"folder", exported_}}));
  }
  TempDir folder_;
  const std::string published_ = folder_.path() / "published",
                    exported_ = folder_.path() / "exported";
};

TEST_F(ExportedEncoder, IndexesAsTheRunDoes) {
  const std::string by_run = folder_.path() / "run.index",
                    by_encoder = folder_.path() / "encoder.index";
  EXPECT_EQ(run_program({"checkpoint", "export-encoder", published_, exported_}).code, 2);
  ASSERT_EQ(run_program({"index", "build", published_, "--output", by_run}).code, 0);
  const Result built =
      run_program({"index", "build", "--encoder", exported_, "--corpus", kFlags + "corpus.jsonl",
                   "--precision", "fp32", "--output", by_encoder});
  ASSERT_EQ(built.code, 0) << built.err;
  const std::string question = "What is the capital of France?";
  const Json a = run_program({"index", "search", by_run, "--run", published_, "--question",
                              question, "-k", "3", "--json"})
                     .json()["hits"];
  const Json b = run_program({"index", "search", by_encoder, "--encoder", exported_, "--precision",
                              "fp32", "--question", question, "-k", "3", "--json"})
                     .json()["hits"];
  ASSERT_EQ(a.size(), 3u);
  ASSERT_EQ(b.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(a[i]["id"], b[i]["id"]);
    // fp32 sums in another order
    EXPECT_NEAR(a[i]["score"].get<double>(), b[i]["score"].get<double>(), 1e-5);
  }
}

TEST_F(ExportedEncoder, IsSentenceTransformersToo) {
  const char* python = std::getenv("CONTEXTURE_PEERS_PYTHON");
  if (python == nullptr) {
    GTEST_SKIP() << "CONTEXTURE_PEERS_PYTHON is not set: no Python with sentence-transformers "
                    "(tests/bench/peers/setup.sh makes one)";
  }
  const std::string vectors = folder_.path() / "v.npy", texts = folder_.path() / "texts.json";
  const Result built = run_program(
      {"index", "build", "--encoder", exported_, "--corpus", kFlags + "corpus.jsonl", "--precision",
       "fp32", "--save-vectors", vectors, "--output", folder_.path() / "v.index"});
  ASSERT_EQ(built.code, 0) << built.err;
  Json list = Json::array();
  std::istringstream corpus(read_file(kFlags + "corpus.jsonl"));
  for (std::string line; std::getline(corpus, line);) {
    const Json document = parse_json(line, "corpus");
    list.push_back(document["title"].get<std::string>() + " " +
                   document["text"].get<std::string>());
  }
  write_file_atomic(texts, list.dump());
  const std::string command =
      concat("'", python, "' '", CONTEXTURE_SOURCE_DIR, "/tests/cli/exported_encoder_reader.py' '",
             exported_, "' '", vectors, "' '", texts, "' 2>/dev/null");
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
  ASSERT_EQ(pclose(pipe), 0) << command << "\n" << output;
  const Json found = parse_json(output, "reader");
  EXPECT_EQ(found["texts"], 12);
  for (const char* by : {"sentence_transformers", "transformers"})
    EXPECT_LE(found[by].get<double>(), 1e-5) << by << ": fp32 sums in another order";
}

TEST_F(TinyRun, CheckpointsAreInspectedVerifiedAndCompared) {
  const Result inspected =
      run_program({"checkpoint", "inspect", run(), "--file", "model", "--json"});
  ASSERT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_EQ(inspected.json()["files"]["model"]["elements"], trained_->json()["parameters"]);
  EXPECT_EQ(run_program({"checkpoint", "verify", run()}).code, 0);
  const Result differ = run_program(
      {"checkpoint", "diff", checkpoint("step-00000010"), checkpoint("step-00000020"), "--json"});
  EXPECT_EQ(differ.code, 1);
  EXPECT_FALSE(differ.json()["differences"].empty());
}

TEST_F(TinyRun, ADamagedCheckpointIsRefused) {
  const fs::path copy = dir_->path() / "damaged";
  fs::copy(run(), copy, fs::copy_options::recursive);
  const fs::path file = copy / "checkpoints" / "step-00000020" / "model.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() - 3] ^= 1;
  write_file_atomic(file, bytes);
  const Result verified = run_program({"checkpoint", "verify", copy, "--json"});
  EXPECT_EQ(verified.code, 3);
  EXPECT_FALSE(verified.json()["ok"].get<bool>());
  const Result evaluated = run_program({"eval", copy});
  EXPECT_EQ(evaluated.code, 3);
  EXPECT_NE(evaluated.err.find("model.safetensors"), std::string::npos) << evaluated.err;
  EXPECT_EQ(run_program(tiny_training(copy, {"--resume"})).code, 3);
  write_file_atomic(copy / "checkpoints" / "step-00000020" / "manifest.json", "{}");
  EXPECT_EQ(run_program({"checkpoint", "verify", copy}).code, 3);
}

}  // namespace
}  // namespace contexture::cli
