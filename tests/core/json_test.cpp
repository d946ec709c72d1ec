#include "core/json.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "expect_error.h"

namespace contexture {
namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;

std::string refusal(std::string_view text) {
  return message_of<DataError>([&] { parse_json(text, "f.json"); });
}

TEST(ParseJson, BuildsTheDocument) {
  const Json json =
      parse_json(R"({"a": [1, -2, 2.5, "x", null, true], "b": {"c": {}}, "": []})", "f");
  EXPECT_EQ(json.dump(), R"({"":[],"a":[1,-2,2.5,"x",null,true],"b":{"c":{}}})");
  EXPECT_EQ(parse_json(" 7 ", "f"), Json(7));
  EXPECT_EQ(parse_json("7", "f"), Json(7));
  EXPECT_EQ(parse_json(R"("\u0000é😀")", "f").get<std::string>(), "\0é😀"s);
}

TEST(ParseJson, KeepsDoublesAndBigIntegersExactly) {
  EXPECT_EQ(parse_json("0.1", "f").get<double>(), 0.1);
  EXPECT_EQ(parse_json("18446744073709551615", "f").get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(parse_json("-9223372036854775808", "f").get<int64_t>(), INT64_MIN);
}

TEST(ParseJson, NamesLineAndColumnOfAnError) {
  EXPECT_TRUE(refusal("{\n  \"a\": 1,\n  \"b\" 2\n}").starts_with("f.json:3:7: not valid JSON"))
      << refusal("{\n  \"a\": 1,\n  \"b\" 2\n}");
  JsonOptions line_12;
  line_12.first_line = 12;
  const std::string message = message_of<DataError>([&] { parse_json("{]", "c.jsonl", line_12); });
  EXPECT_TRUE(message.starts_with("c.jsonl:12:2: ")) << message;
}

TEST(ParseJson, RefusesWhatIsNotStrictJson) {
  for (const std::string_view text :
       {"{"sv, "[1,]"sv, "{\"a\":1,}"sv, "[1] 2"sv, "{'a':1}"sv, "[NaN]"sv, "[Infinity]"sv,
        "[1e999]"sv, "[01]"sv, "[.5]"sv, "// c\n1"sv, "\"\xff\""sv, "\"\xed\xa0\x80\""sv,
        "\"a\nb\""sv, "\"\\ud800\""sv, "tru"sv}) {
    EXPECT_TRUE(refusal(text).starts_with("f.json:1")) << text << " gave " << refusal(text);
  }
}

TEST(ParseJson, RefusesARawNulWhereverItIs) {
  // nlohmann takes it for the end of input and would accept the first two.
  for (const std::string_view text : {"[1]\0"sv, "[1]\0garbage"sv, "[\0 1]"sv, "[\"a\0b\"]"sv}) {
    EXPECT_NE(refusal(text).find("raw NUL"), std::string::npos) << refusal(text);
  }
}

TEST(ParseJson, SkipsAUtf8ByteOrderMark) {
  EXPECT_EQ(parse_json("\xef\xbb\xbf{\"a\":1}", "f"), Json({{"a", 1}}));
}

TEST(ParseJson, TellsUtf16FromDamage) {
  for (const std::string_view text :
       {"\xff\xfe{\0}\0"sv, "\xfe\xff\0{\0}"sv, "{\0}\0"sv, "\0{\0}"sv}) {
    EXPECT_NE(refusal(text).find("UTF-16"), std::string::npos) << refusal(text);
  }
}

TEST(ParseJson, RefusesAnEmptyText) {
  for (const std::string_view text : {""sv, " \n"sv, "\xef\xbb\xbf"sv}) {
    EXPECT_NE(refusal(text).find("empty"), std::string::npos) << refusal(text);
  }
}

TEST(ParseJson, RefusesDuplicateKeysUnlessAllowed) {
  EXPECT_NE(refusal("{\"a\":1,\n \"a\":2}")
                .find("f.json:2:2: not valid JSON: the key \"a\" occurs twice"),
            std::string::npos)
      << refusal("{\"a\":1,\n \"a\":2}");
  EXPECT_NO_THROW(parse_json(R"([{"a":1},{"a":2}])", "f"));
  JsonOptions lenient;
  lenient.allow_duplicate_keys = true;
  EXPECT_EQ(parse_json(R"({"a":1,"a":2})", "f", lenient), Json({{"a", 2}}));
}

TEST(ParseJson, CapsNesting) {
  const std::string fits = std::string(200, '[') + std::string(200, ']');
  EXPECT_NO_THROW(parse_json(fits, "f"));
  EXPECT_NE(refusal("[" + fits + "]").find("deeper than 200"), std::string::npos);
  EXPECT_NE(refusal(std::string(1'000'000, '[')).find("deeper than 200"), std::string::npos);
}

TEST(ParseJsonLocated, KnowsThePlaceOfEveryKeyAndValue) {
  const LocatedJson located =
      parse_json_located("{\"a\": 1,\n \"b/c\": [10 ,\n  {\"d\": \"x\"}]}", "f");
  const auto place = [](const std::map<std::string, TextPlace>& places,
                        const std::string& pointer) {
    return std::to_string(places.at(pointer).line) + ":" +
           std::to_string(places.at(pointer).column);
  };
  EXPECT_EQ(place(located.values, ""), "1:1");
  EXPECT_EQ(place(located.keys, "/a"), "1:2");
  EXPECT_EQ(place(located.values, "/a"), "1:7");
  EXPECT_EQ(place(located.keys, "/b~1c"), "2:2");
  EXPECT_EQ(place(located.values, "/b~1c"), "2:9");
  EXPECT_EQ(place(located.values, "/b~1c/0"), "2:10");
  EXPECT_EQ(place(located.values, "/b~1c/1"), "3:3");
  EXPECT_EQ(place(located.keys, "/b~1c/1/d"), "3:4");
  EXPECT_EQ(place(located.values, "/b~1c/1/d"), "3:9");
  EXPECT_EQ(located.keys.size(), 3u);
}

TEST(JsonGet, ConvertsExactlyOrSaysWhatItFound) {
  const Json json =
      parse_json(R"({"i":3,"f":1.5,"s":"x","l":[1,2],"n":null,"big":300000000000})", "f");
  EXPECT_EQ(json_get<int>(json, "i", "f:1"), 3);
  EXPECT_EQ(json_get<double>(json, "i", "f:1"), 3.0);
  EXPECT_EQ(json_get<int64_t>(json, "big", "f:1"), 300000000000);
  EXPECT_EQ(json_get<std::vector<int64_t>>(json, "l", "f:1"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(json_get_or<int>(json, "absent", 7, "f:1"), 7);
  EXPECT_EQ(json_get_or<int>(json, "n", 7, "f:1"), 7);
  EXPECT_EQ(message_of<DataError>([&] { json_get<int>(json, "f", "f:1"); }),
            "f:1: 'f' must be a whole number from -2147483648 to 2147483647, found 1.5");
  EXPECT_EQ(message_of<DataError>([&] { json_get<std::string>(json, "gone", "f:1"); }),
            "f:1: the key 'gone' is missing");
  EXPECT_THROW(json_get<int>(json, "big", "f:1"), DataError);
  EXPECT_THROW(json_get<uint64_t>(parse_json(R"({"a":-1})", "f"), "a", "f"), DataError);
  EXPECT_THROW(json_get<std::vector<std::string>>(json, "l", "f:1"), DataError);
  EXPECT_THROW(json_get_or<int>(Json::array(), "a", 1, "f"), DataError);
}

TEST(JsonExcerpt, IsShortAndCutsBetweenLetters) {
  const std::string excerpt = json_excerpt(Json(std::string(75, 'a') + "ééé"));
  EXPECT_NO_THROW((void)Json(excerpt).dump());
  EXPECT_LE(excerpt.size(), 80u);
  EXPECT_EQ(json_excerpt(Json(std::vector<int>(1000, 1))), "a list of 1000");
}

}  // namespace
}  // namespace contexture
