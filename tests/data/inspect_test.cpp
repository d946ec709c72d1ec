#include "data/inspect.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.h"
#include "core/files.h"

namespace contexture::data {
namespace {

class InspectTest : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) {
    const auto path = folder_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    write_file_atomic(path, content);
    return path.string();
  }
  void write_picture(const std::string& name, int side) {
    const Image image{side, side, std::vector<uint8_t>(static_cast<size_t>(side * side * 3), 100)};
    write_file_atomic(folder_.path() / name, std::span<const std::byte>(encode_png(image)));
  }
  std::string good_corpus() {
    write_picture("a.png", 8);
    write_picture("b.png", 16);
    return write("corpus.jsonl",
                 "{\"id\":\"fr\",\"title\":\"France\",\"text\":\"The capital is "
                 "Paris.\",\"image\":\"a.png\",\"kind\":\"country\"}\n"
                 "{\"id\":\"pe\",\"title\":\"Peru\",\"text\":\"The capital is "
                 "Lima.\",\"image\":\"b.png\",\"facts\":{\"x\":[\"y\"]}}\n"
                 "{\"id\":\"no\",\"title\":\"None\",\"text\":\"Nothing.\"}\n");
  }
  TempDir folder_;
};

TEST_F(InspectTest, FindsNothingWrongWithGoodData) {
  InspectInputs inputs{.corpus = good_corpus(), .examples = {}, .tokenizer = ""};
  inputs.examples = {write(
      "train.jsonl", R"({"id":"1","question":"capital?","answers":["Paris"],"documents":["fr"]})")};
  const CheckReport report = check_data(inputs);
  EXPECT_EQ(report.exit_code(), 0) << report.to_text();
  EXPECT_EQ(report.documents, 3);
  EXPECT_EQ(report.examples, 1);
  EXPECT_EQ(report.images, 2);
  EXPECT_TRUE(report.warnings.empty());
  EXPECT_EQ(report.to_json()["ok"], true);
}

TEST_F(InspectTest, ListsEveryBadRecordWithItsPlace) {
  InspectInputs inputs{.corpus = good_corpus(), .examples = {}, .tokenizer = ""};
  std::string lines;
  for (int i = 0; i < 30; ++i) lines += "nonsense\n";  // more than are named elsewhere
  lines += R"({"id":"1","question":"?","answers":["Rome"],"documents":["fr"]})"
           "\n";
  lines += R"({"id":"2","question":"?","answers":["x"],"documents":["missing"]})"
           "\n";
  lines += R"({"id":"3","question":"?","answers":["x"],"image":"gone.png"})"
           "\n";
  inputs.examples = {write("train.jsonl", lines)};
  const CheckReport report = check_data(inputs);
  EXPECT_EQ(report.exit_code(), 3);
  EXPECT_EQ(report.problems.size(), 32U);
  EXPECT_NE(report.to_text().find("train.jsonl:30: not JSON"), std::string::npos);
  EXPECT_NE(report.to_text().find("missing"), std::string::npos);
  EXPECT_NE(report.to_text().find("gone.png"), std::string::npos);
  ASSERT_EQ(report.warnings.size(), 1U);
  EXPECT_NE(report.warnings[0].find("Rome"), std::string::npos);
}

TEST_F(InspectTest, ListsAFileWithoutOneGoodRecord) {
  const CheckReport report =
      check_data({.corpus = write("c.jsonl", "x\ny\n"), .examples = {}, .tokenizer = ""});
  EXPECT_EQ(report.exit_code(), 3);
  EXPECT_EQ(report.bad.count, 3);
}

TEST_F(InspectTest, CountsWhatIsThere) {
  InspectInputs inputs{.corpus = good_corpus(), .examples = {}, .tokenizer = ""};
  inputs.examples = {write(
      "train.jsonl",
      R"({"id":"1","question":"capital?","answers":["Paris"],"documents":["fr"],"type":"capital"})"
      "\n"
      R"({"id":"2","question":"capital?","answers":["Rome"],"documents":["fr"],"type":"capital"})")};
  const StatsReport report = data_stats(inputs);
  EXPECT_EQ(report.figures["corpus"]["n"], 3);
  EXPECT_EQ(report.figures["corpus"]["kinds"]["country"], 1);
  EXPECT_EQ(report.figures["corpus"]["images"]["formats"]["png"], 2);
  EXPECT_EQ(report.figures["corpus"]["texts"]["characters"]["most"], 21);
  EXPECT_EQ(report.figures["examples"][0]["types"]["capital"], 2);
  EXPECT_EQ(report.figures["examples"][0]["questions"]["duplicates"], 1);
  EXPECT_EQ(report.figures["examples"][0]["answer_in_gold_document"]["share"], 0.5);
  EXPECT_NE(report.to_text().find("corpus.texts.characters"), std::string::npos);
}

TEST_F(InspectTest, CountsTokensWhenGivenATokenizer) {
  std::vector<std::string> lines;
  for (int i = 0; i < 300; ++i)
    lines.push_back("The capital number " + std::to_string(i) + " is Paris or Lima.");
  const std::string model = (folder_.path() / "t.model").string();
  Tokenizer::train(lines, model, {.vocab_size = 330});
  const StatsReport report =
      data_stats({.corpus = good_corpus(), .examples = {}, .tokenizer = model});
  EXPECT_EQ(report.figures["corpus"]["texts"]["tokens"]["n"], 3);
  EXPECT_GT(report.figures["corpus"]["texts"]["tokens"]["median"], 2);
}

TEST_F(InspectTest, PacksShardsThatReadBackTheSame) {
  const std::string corpus = good_corpus();
  const std::string output = (folder_.path() / "packed").string();
  const PackReport report =
      pack({.input = corpus, .output = output, .shard_bytes = 1});  // one sample a shard
  EXPECT_EQ(report.samples, 3);
  EXPECT_EQ(report.images, 2);
  ASSERT_EQ(report.shards.size(), 3U);
  BadRecords bad;
  const Corpus before = read_corpus(corpus, bad);
  const Corpus after = read_corpus(output + "/shard-{000000..000002}.tar", bad);
  ASSERT_EQ(after.documents.size(), before.documents.size());
  for (size_t i = 0; i < before.documents.size(); ++i) {
    EXPECT_EQ(after.documents[i].id, before.documents[i].id);
    EXPECT_EQ(after.documents[i].title, before.documents[i].title);
    EXPECT_EQ(after.documents[i].text, before.documents[i].text);
    EXPECT_EQ(after.documents[i].meta, before.documents[i].meta);
    ASSERT_EQ(after.documents[i].image.empty(), before.documents[i].image.empty());
    if (after.documents[i].image.empty()) continue;
    EXPECT_EQ(after.images->read(after.documents[i].image),
              before.images->read(before.documents[i].image));
  }
  EXPECT_THROW(pack({.input = corpus, .output = output}),
               UserError);  // the folder holds shards already
}

TEST_F(InspectTest, PackLeavesNoHalfShardWhenARecordIsBad) {
  const std::string input =
      write("c.jsonl",
            "{\"id\":\"a\",\"text\":\"1\"}\n{\"id\":\"b\",\"text\":\"2\",\"image\":\"no.png\"}\n");
  const std::string output = (folder_.path() / "packed").string();
  EXPECT_THROW(pack({.input = input, .output = output}), DataError);
  EXPECT_TRUE(std::filesystem::is_empty(output));
  const PackReport report =
      pack({.input = input, .output = output, .policy = BadRecords::Policy::kSkip});
  EXPECT_EQ(report.samples, 1);
  EXPECT_EQ(report.bad.count, 1);
}

}  // namespace
}  // namespace contexture::data
