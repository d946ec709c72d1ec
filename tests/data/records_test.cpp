#include "data/records.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/files.h"

namespace contexture::data {
namespace {

constexpr const char* kThree =
    "{\"id\":\"a\",\"text\":\"one\"}\n{\"id\":\"b\",\"text\":\"two\"}\n{\"id\":\"c\",\"text\":"
    "\"three\"}\n";

struct Read {
  std::vector<std::string> ids;
  BadRecords bad{BadRecords::Policy::kSkip};
};

Read read(const std::string& content) {
  const TempDir folder;
  const auto path = folder.path() / "c.jsonl";
  write_file_atomic(path, content);
  Read result;
  for (const Document& d : read_corpus(path.string(), result.bad).documents)
    result.ids.push_back(d.id);
  return result;
}

const std::vector<std::string> kAbc = {"a", "b", "c"};

TEST(ReadCorpus, ReadsDocumentsAndKeepsUnknownFields) {
  const Document d = parse_document(Json::parse(
      R"({"id":7,"title":"T","text":"x","image":"i.png","kind":"flag","facts":{"capital":["Paris"]}})"));
  EXPECT_EQ(d.id, "7");
  EXPECT_EQ(d.title, "T");
  EXPECT_EQ(d.image, "i.png");
  EXPECT_EQ(d.meta["facts"]["capital"][0], "Paris");
  EXPECT_EQ(parse_document(to_record(d)).meta, d.meta);
}

TEST(ReadExamples, ReadsExamplesAndBack) {
  const Json record = Json::parse(
      R"({"id":"q","question":"?","answers":["a"],"documents":["d",3],"type":"t","entity":"e","style":"noto"})");
  const Example e = parse_example(record);
  EXPECT_EQ(e.documents, (std::vector<std::string>{"d", "3"}));
  EXPECT_EQ(e.meta["style"], "noto");
  EXPECT_EQ(parse_example(to_record(e)).documents, e.documents);
  EXPECT_THROW(parse_example(Json::parse(R"({"id":"q"})")), DataError);
  EXPECT_THROW(parse_example(Json::parse(R"({"question":"?","answers":"a"})")), DataError);
  EXPECT_THROW(parse_example(Json::parse(R"({"question":"?","answers":[1]})")), DataError);
}

// Case 10: byte-order marks.
TEST(ReadCorpus, SkipsByteOrderMarksAtTheStartAndInTheMiddle) {
  const std::string mark = "\xEF\xBB\xBF";
  EXPECT_EQ(read(mark + kThree).ids, kAbc);
  EXPECT_EQ(read(mark + mark + kThree).ids, kAbc);
  EXPECT_EQ(read(std::string(kThree) + mark + "{\"id\":\"d\",\"text\":\"\"}").ids.size(), 4U);
  EXPECT_EQ(read(mark + kThree).bad.count, 0);
}

TEST(ReadCorpus, AcceptsCrlfEmptyLinesAndAMissingLastNewline) {
  EXPECT_EQ(
      read("\r\n{\"id\":\"a\",\"text\":\"1\"}\r\n\r\n  \n{\"id\":\"b\",\"text\":\"2\"}").ids.size(),
      2U);
}

TEST(ReadCorpus, SaysThatAFileIsUtf16) {
  std::string little = "\xFF\xFE", plain;
  for (const char c : std::string(kThree)) {
    little += {c, '\0'};
    plain += {c, '\0'};
  }
  for (const std::string& content : {little, plain}) {
    try {
      read(content);
      FAIL();
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("UTF-16"), std::string::npos) << error.what();
    }
  }
}

// Case 12: a lone surrogate, and what else the JSON library lets through.
TEST(ReadCorpus, NamesBadRecordsAndKeepsTheOthers) {
  const std::vector<std::string> bad_lines = {
      R"({"id":"x","text":"\ud800"})",
      std::string("{\"id\":\"x\",\"text\":\"1\"}\0{\"b\":2}", 29),
      R"({"id":"x","text":"1"} trailing)",
      std::string(100'000, '['),
      "{\"id\":\"x\",\"text\":\"\xFF\"}",
      R"(["id","x"])",
      R"({"id":"x"})",
      R"({"id":"x","text":3})",
      R"({"id":"","text":"1"})",
      R"({"id":1.5,"text":"1"})",
      R"({"id":"a","text":"again"})",
      "nonsense",
  };
  for (const std::string& line : bad_lines) {
    const Read result =
        read("{\"id\":\"a\",\"text\":\"1\"}\n" + line + "\n{\"id\":\"c\",\"text\":\"3\"}\n");
    EXPECT_EQ(result.ids, (std::vector<std::string>{"a", "c"})) << line.substr(0, 60);
    EXPECT_EQ(result.bad.count, 1) << line.substr(0, 60);
    ASSERT_EQ(result.bad.first.size(), 1U);
    EXPECT_NE(result.bad.first[0].find("c.jsonl:2: "), std::string::npos) << result.bad.first[0];
  }
}

TEST(ReadCorpus, StopsAtTheFirstBadRecordWhenAskedTo) {
  const TempDir folder;
  const auto path = folder.path() / "c.jsonl";
  write_file_atomic(path, std::string(kThree) + "{\"id\":\"\\ud800\"}\n");
  BadRecords strict(BadRecords::Policy::kFail);
  EXPECT_THROW(read_corpus(path.string(), strict), DataError);
}

TEST(ReadCorpus, RefusesAFileWithNotOneGoodRecord) {
  EXPECT_THROW(read(""), DataError);
  EXPECT_THROW(read("x\ny\n"), DataError);
}

TEST(BadRecordsTest, SummarisesByReason) {
  BadRecords bad(BadRecords::Policy::kSkip);
  bad.add("f:1", "not JSON");
  bad.add("f:2", "duplicate id", "a");
  bad.add("f:3", "not JSON");
  EXPECT_EQ(bad.summary(), "3 bad records (1 duplicate id, 2 not JSON), first: f:1: not JSON");
  EXPECT_THROW(BadRecords::parse_policy("ignore"), UsageError);
}

TEST(FolderImages, StaysInsideItsFolder) {
  const TempDir folder;
  write_file_atomic(folder.path() / "in.png", std::string("x"));
  const auto images = folder_images(folder.path().string());
  EXPECT_EQ(images->read("in.png").size(), 1U);
  EXPECT_EQ(images->read("./a/../in.png").size(), 1U);
  for (const std::string name : {"../in.png", "/etc/passwd", "a/../../x", "", "missing.png"}) {
    EXPECT_THROW(images->read(name), DataError) << name;
  }
}

TEST(RequireGoldDocuments, DropsAndNamesExamplesWithoutTheirDocument) {
  Corpus corpus;
  corpus.index["d"] = 0;
  ExampleSet set;
  set.examples = {
      Example{.id = "1", .question = "", .answers = {}, .image = "", .documents = {"d"}},
      Example{.id = "2", .question = "", .answers = {}, .image = "", .documents = {"e"}}};
  BadRecords bad(BadRecords::Policy::kSkip);
  require_gold_documents(set, corpus, bad);
  ASSERT_EQ(set.examples.size(), 1U);
  EXPECT_EQ(bad.first[0], "example 2: gold document not in the corpus: e");
}

}  // namespace
}  // namespace contexture::data
