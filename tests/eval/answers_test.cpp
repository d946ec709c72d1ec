#include "eval/answers.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"

namespace contexture::eval {
namespace {

Json golden() { return read_json_file(CONTEXTURE_SOURCE_DIR "/tests/golden/answer_scores.json"); }

// Sums of a few quotients in double on both sides.
constexpr double kRounding = 1e-9;

TEST(Answers, EveryCaseMatchesTheReferenceScorer) {
  const Json expected = golden();
  ASSERT_GE(expected["cases"].size(), 30u);
  for (const Json& c : expected["cases"]) {
    const auto prediction = c["prediction"].get<std::string>();
    const auto references = c["references"].get<std::vector<std::string>>();
    SCOPED_TRACE(c.dump());
    EXPECT_EQ(normalize_answer(prediction), c["normalized"].get<std::string>());
    EXPECT_EQ(exact_match(prediction, references), c["em"].get<double>());
    EXPECT_NEAR(f1_score(prediction, references), c["f1"].get<double>(), kRounding);
  }
}

TEST(Answers, MeansArePercentagesOverAllPredictions) {
  const Json expected = golden();
  std::vector<std::string> predictions;
  std::vector<std::vector<std::string>> references;
  for (const Json& c : expected["cases"]) {
    predictions.push_back(c["prediction"]);
    references.push_back(c["references"]);
  }
  const AnswerScores scores = score_answers(predictions, references);
  EXPECT_NEAR(scores.em, expected["em"].get<double>(), 100 * kRounding);
  EXPECT_NEAR(scores.f1, expected["f1"].get<double>(), 100 * kRounding);
  EXPECT_EQ(scores.em_each.size(), predictions.size());
  EXPECT_EQ(scores.f1_each.size(), predictions.size());
}

TEST(Answers, PunctuationGoesBeforeArticles) {
  EXPECT_EQ(normalize_answer("The A-ha, an 'a'!"), "aha");
}

TEST(Answers, WithoutReferencesNothingMatches) {
  EXPECT_EQ(exact_match("", {}), 0.0);
  EXPECT_EQ(f1_score("", {}), 0.0);
}

TEST(Answers, BrokenUtf8IsReadAsReplacementCharacters) {
  EXPECT_EQ(normalize_answer("caf\xe9"), "caf\xef\xbf\xbd");
}

TEST(Answers, ListsOfDifferentLengthAreRefused) {
  EXPECT_THROW(score_answers({"a", "b"}, {{"a"}}), UserError);
  EXPECT_THROW(score_answers({}, {}), UserError);
}

}  // namespace
}  // namespace contexture::eval
