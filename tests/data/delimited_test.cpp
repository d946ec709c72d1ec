#include "data/internal/delimited.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"
#include "data/internal/json_stream.h"

namespace contexture::data::internal {
namespace {

TEST(PythonList, ReadsWhatPythonReadsAndRunsNothing) {
  const Json golden = read_json_file(CONTEXTURE_SOURCE_DIR "/tests/golden/python_lists.json");
  for (const Json& c : golden["good"]) {
    EXPECT_EQ(parse_python_list(c["text"].get<std::string>()),
              c["value"].get<std::vector<std::string>>())
        << c["text"];
  }
  for (const Json& text : golden["bad"])
    EXPECT_THROW(parse_python_list(text.get<std::string>()), DataError) << text;
}

TEST(PythonList, SaysWhereItBreaks) {
  try {
    parse_python_list("['a' 1]");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("expected ',' or ']' at character 6"),
              std::string::npos)
        << error.what();
  }
}

using Rows = std::vector<std::vector<std::string>>;

Rows rows(const std::string& text, char delimiter, BadRecords& bad,
          std::vector<std::string>* places = nullptr) {
  Rows out;
  for_each_row(text, "f.tsv", delimiter, bad,
               [&](const std::string& where, std::vector<std::string> cells) {
                 out.push_back(std::move(cells));
                 if (places != nullptr) places->push_back(where);
               });
  return out;
}

TEST(Delimited, QuotesAreReadAsPythonsCsvModuleDoes) {
  BadRecords bad;
  EXPECT_EQ(rows("a\tb\r\n1\t\"say \"\"hi\"\"\"\n", '\t', bad),
            (Rows{{"a", "b"}, {"1", "say \"hi\""}}));
  EXPECT_EQ(rows("x\tthe \"middle\" stays\n", '\t', bad), (Rows{{"x", "the \"middle\" stays"}}));
  EXPECT_EQ(rows("\"a\"b,c", ',', bad), (Rows{{"ab", "c"}}));
  EXPECT_EQ(rows("\xEF\xBB\xBF"
                 "a,\n,b\n\n",
                 ',', bad),
            (Rows{{"a", ""}, {"", "b"}}));
  std::vector<std::string> places;
  EXPECT_EQ(rows("\"two\nlines\",x\nlast,y", ',', bad, &places),
            (Rows{{"two\nlines", "x"}, {"last", "y"}}));
  EXPECT_EQ(places, (std::vector<std::string>{"f.tsv:1", "f.tsv:3"}));
}

TEST(Delimited, BadRowsAreNamedAndTheOthersRead) {
  BadRecords bad(BadRecords::Policy::kSkip);
  EXPECT_EQ(rows("a,b\n\"open,c\nd,e\n", ',', bad), (Rows{{"a", "b"}, {"d", "e"}}));
  EXPECT_EQ(rows("ok,1\n\xff,2\n", ',', bad), (Rows{{"ok", "1"}}));
  EXPECT_EQ(bad.first,
            (std::vector<std::string>{"f.tsv:2: quote not closed", "f.tsv:2: not UTF-8 text"}));
}

struct Streamed {
  std::vector<Json> records;
  std::vector<std::string> places;
  BadRecords bad{BadRecords::Policy::kSkip};
};

void stream(const std::string& text, const std::string& member, Streamed& out) {
  for_each_element(text, "f.json", member, out.bad, [&](const std::string& where, Json record) {
    out.records.push_back(std::move(record));
    out.places.push_back(where);
  });
}

TEST(JsonStream, GivesTheElementsOfAListOneByOne) {
  Streamed root, member, empty;
  stream("\xEF\xBB\xBF [{\"a\":\"]},[\\\"\"},\n 3, \"x\",[1,[2]] ]", "", root);
  EXPECT_EQ(root.records, (std::vector<Json>{{{"a", "]},[\""}}, 3, "x", Json::parse("[1,[2]]")}));
  EXPECT_EQ(root.places[1], "f.json:2 (record 2)");
  stream(R"({"info":{"annotations":[9]},"annotations":[1,2],"other":[3]})", "annotations", member);
  EXPECT_EQ(member.records, (std::vector<Json>{1, 2}));
  stream("[]", "", empty);
  EXPECT_TRUE(empty.records.empty());
  EXPECT_EQ(empty.bad.count, 0);
  EXPECT_THROW(stream(R"({"x":[1]})", "annotations", empty), DataError);
}

TEST(JsonStream, NamesBadElementsAndBrokenStructure) {
  Streamed element;
  stream("[1,\n{\"a\":nonsense},\n2]", "", element);
  EXPECT_EQ(element.records, (std::vector<Json>{1, 2}));
  ASSERT_EQ(element.bad.count, 1);
  EXPECT_EQ(element.bad.first[0].rfind("f.json:2 (record 2): not JSON", 0), 0U)
      << element.bad.first[0];
  for (const char* text : {"[1,{\"a\":2", "[1,\"abc", "[1 2]", "[1,", "[1,]"}) {
    Streamed broken;
    stream(text, "", broken);
    EXPECT_EQ(broken.records.front(), Json(1)) << text;
    EXPECT_EQ(broken.bad.count, 1) << text;
  }
  Streamed strict;
  strict.bad = BadRecords(BadRecords::Policy::kFail);
  EXPECT_THROW(stream("[1,nonsense,2]", "", strict), DataError);
  EXPECT_EQ(strict.bad.count, 1) << "named once";
}

TEST(JsonStream, GivesTheMembersOfAnObjectAndTellsJsonlApart) {
  std::map<std::string, Json> members;
  BadRecords bad;
  for_each_member(R"({"u\u0031":{"t":1}, "u2" : [2]})", "f.json", bad,
                  [&](const std::string&, const std::string& key, Json value) {
                    members[key] = std::move(value);
                  });
  EXPECT_EQ(members, (std::map<std::string, Json>{{"u1", {{"t", 1}}}, {"u2", Json::parse("[2]")}}));
  EXPECT_TRUE(looks_like_jsonl("\n{\"a\":1}\n{\"a\":2}"));
  EXPECT_TRUE(looks_like_jsonl("{\"a\":1}"));
  EXPECT_FALSE(looks_like_jsonl("{\n\"a\":1}"));
  EXPECT_FALSE(looks_like_jsonl("[{}]"));
}

}  // namespace
}  // namespace contexture::data::internal
