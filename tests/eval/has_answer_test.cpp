#include "eval/has_answer.h"

#include <gtest/gtest.h>

#include "core/json.h"

namespace contexture::eval {
namespace {

const Json& golden() {
  static const Json json = read_json_file(CONTEXTURE_SOURCE_DIR "/tests/golden/qa_scores.json");
  return json;
}

TEST(HasAnswer, TokensAndMatchesEqualTheReferences) {
  for (const Json& c : golden()["matches"]) {
    const auto passage = c["passage"].get<std::string>();
    EXPECT_EQ(dpr_tokens(passage), c["tokens"].get<std::vector<std::string>>()) << passage;
    EXPECT_EQ(has_answer(passage, c["answers"].get<std::vector<std::string>>()),
              c["has"].get<bool>())
        << c.dump();
  }
}

TEST(HasAnswer, PatternsMatchAsTheReferencesDo) {
  for (const Json& c : golden()["patterns"]) {
    EXPECT_EQ(has_answer_regex(c["passage"].get<std::string>(),
                               c["answers"].get<std::vector<std::string>>()),
              c["has"].get<bool>())
        << c.dump();
  }
}

TEST(HasAnswer, APatternThatNeverEndsIsGivenUp) {
  EXPECT_FALSE(has_answer_regex(std::string(200, 'a') + "!", {"(a+)+$"}));
}

}  // namespace
}  // namespace contexture::eval
