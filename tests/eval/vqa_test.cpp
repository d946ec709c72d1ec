#include "eval/vqa.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/json.h"

namespace contexture::eval {
namespace {

constexpr double kRounding = 1e-9;  // sums of a few quotients

const Json& golden() {
  static const Json json = read_json_file(CONTEXTURE_SOURCE_DIR "/tests/golden/vqa_scores.json");
  return json;
}

TEST(Vqa, NormalisationEqualsTheReferences) {
  for (const Json& c : golden()["texts"]) {
    const std::string punctuation = vqa_punctuation(c["text"].get<std::string>());
    EXPECT_EQ(punctuation, c["punctuation"].get<std::string>()) << c.dump();
    EXPECT_EQ(vqa_digits_and_articles(punctuation), c["normalized"].get<std::string>()) << c.dump();
  }
}

TEST(Vqa, AccuracyEqualsTheReferences) {
  for (const Json& c : golden()["sets"]) {
    EXPECT_NEAR(vqa_accuracy(c["prediction"].get<std::string>(),
                             c["answers"].get<std::vector<std::string>>()),
                c["accuracy"].get<double>(), kRounding)
        << c.dump();
  }
  EXPECT_EQ(vqa_accuracy("x", {}), 0.0);
}

double total(const ScoreTable& table, const std::string& name) {
  for (const auto& [key, v] : table.totals) {
    if (key == name) return v;
  }
  throw std::runtime_error("no total " + name);
}

// The values are those of the published script's functions, by hand.
TEST(InfoSeek, NumbersAndRangesAreFoundInText) {
  const auto parsed = [](const char* text) {
    const NumberRange r = parse_number_range(text);
    return std::vector<double>{r.low, r.high, r.is_range ? 1.0 : 0.0};
  };
  EXPECT_EQ(parsed("about 1,250 m"), (std::vector<double>{1250, 1250, 0}));
  EXPECT_EQ(parsed("9-10"), (std::vector<double>{9, 10, 1}));
  EXPECT_EQ(parsed("10 to 9"), (std::vector<double>{10, 10, 0})) << "descending: the first alone";
  EXPECT_EQ(parsed("-3.5e2"), (std::vector<double>{-350, -350, 0}));
  EXPECT_EQ(parsed("12."), (std::vector<double>{12, 12, 0}));
  EXPECT_EQ(parsed(".5"), (std::vector<double>{5, 5, 0}))
      << "the reference strips full stops at the ends";
  EXPECT_EQ(parsed("1 2 3"), (std::vector<double>{1, 2, 1}));
  EXPECT_EQ(parsed("none"), (std::vector<double>{0, 0, 1}));
}

TEST(InfoSeek, ANumberMustLieInTheRangeAndARangeOverlapHalf) {
  EXPECT_EQ(number_in_range({9.0, 9.0, false}, 9.0, 11.0), 1.0);
  EXPECT_EQ(number_in_range({8.9, 8.9, false}, 9.0, 11.0), 0.0);
  EXPECT_EQ(number_in_range({9.5, 10.0, true}, 9.0, 11.0), 1.0) << "inside";
  EXPECT_EQ(number_in_range({8.0, 11.0, true}, 9.0, 11.0), 1.0) << "2 of 3";
  EXPECT_EQ(number_in_range({7.0, 11.0, true}, 9.0, 11.0), 1.0) << "2 of 4: exactly half";
  EXPECT_EQ(number_in_range({6.9, 11.0, true}, 9.0, 11.0), 0.0);
}

TEST(InfoSeek, TheScoreIsTheHarmonicMeanOfTheSplits) {
  const std::vector<InfoSeekReference> references{
      {"1", {"Paris"}, {}, "string", false},
      {"2", {"Rome", "Roma"}, {}, "string", true},
      {"3", {}, std::pair{9.0, 11.0}, "numerical", true},
      {"4", {"1990"}, {}, "time", true}};
  const ScoreTable table = score_infoseek(references, {"paris", "roma", "12", "in 1990"});
  EXPECT_EQ(table.columns[0].values, (std::vector<double>{1, 1, 0, 0}));
  EXPECT_NEAR(total(table, "unseen_question"), 100.0, kRounding);
  EXPECT_NEAR(total(table, "unseen_entity"), 100.0 / 3, kRounding);
  EXPECT_NEAR(total(table, "score"), 50.0, kRounding) << "2 / (1/100 + 3/100)";
  EXPECT_NEAR(total(table, "string"), 100.0, kRounding);
  EXPECT_NEAR(total(table, "time"), 0.0, kRounding);
  EXPECT_NEAR(total(score_infoseek({references[1]}, {"x"}), "score"), 0.0, kRounding)
      << "one split alone";
}

TEST(EncyclopedicVqa, AlternativesAndListsAreMatched) {
  const std::vector<EncyclopedicReference> references{{"1", "Paris|City of Light", "templated"},
                                                      {"2", "red&&white&&blue", "multi_answer"},
                                                      {"3", "red&&white&&blue", "multi_answer"},
                                                      {"4", "ten metres", "automatic"}};
  const ScoreTable table =
      score_encyclopedic(references, {"the city of light", "white, red", "red, green", "ten"});
  EXPECT_EQ(table.columns[0].values, (std::vector<double>{1, 1, 0, 0}))
      << "2 of 3 and 1 of 4 parts";
  EXPECT_NEAR(table.columns[1].values[3], 2.0 / 3, kRounding);
  EXPECT_NEAR(total(table, "em-multi_answer"), 50.0, kRounding);
}

}  // namespace
}  // namespace contexture::eval
