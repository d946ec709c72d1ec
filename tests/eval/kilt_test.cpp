#include "eval/kilt.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace contexture::eval {
namespace {

data::KiltRecord record(const std::string& text) { return data::parse_kilt(Json::parse(text)); }

double value(const ScoreTable& table, const std::string& name, size_t row = 0) {
  for (const auto& column : table.columns) {
    if (column.name == name) return column.values.at(row);
  }
  throw std::runtime_error("no column " + name);
}

TEST(KiltRougeL, EqualsTheReferencePackages) {
  for (const Json& c :
       read_json_file(CONTEXTURE_SOURCE_DIR "/tests/golden/qa_scores.json")["rouge"]) {
    EXPECT_NEAR(kilt_rouge_l(c["prediction"].get<std::string>(), c["reference"].get<std::string>()),
                c["f"].get<double>(), 1e-9)
        << c.dump();  // double rounding
  }
  EXPECT_EQ(kilt_rouge_l("", "x"), 0.0);
}

// Two evidence sets: {1} alone, or {2, 3} together.
const char* const kGold = R"({"id":"q","input":"?","output":[
  {"answer":"Paris","provenance":[{"wikipedia_id":"1","title":"a"}]},
  {"answer":"the City of Light","provenance":[{"wikipedia_id":"2"},{"wikipedia_id":3},{"wikipedia_id":"3"}]},
  {"answer":"Paname"}]})";

ScoreTable score_pages(const std::string& pages, const std::string& answer = "paris") {
  std::string provenance;
  for (const char page : pages) {
    provenance += std::string(provenance.empty() ? "" : ",") + R"({"wikipedia_id":")" + page +
                  R"(","text":"It is Paris."})";
  }
  KiltOptions options;
  options.cutoffs = {1, 2, 5};
  return score_kilt({record(kGold)},
                    {record(R"({"id":"q","output":[{"answer":")" + answer + R"(","provenance":[)" +
                            provenance + "]}]}")},
                    options);
}

TEST(Kilt, AnswersAreScoredStrictlyAndNormalised) {
  const ScoreTable lower = score_pages("1");
  EXPECT_EQ(value(lower, "accuracy"), 0.0) << "strict: the case differs";
  EXPECT_EQ(value(lower, "em"), 1.0);
  EXPECT_EQ(value(score_pages("1", "Paris"), "accuracy"), 1.0);
  EXPECT_NEAR(value(score_pages("1", "city light"), "f1"), 2 * 1.0 * (2.0 / 3) / (1 + 2.0 / 3),
              1e-12)
      << "'city of light' without the";
  EXPECT_EQ(value(score_pages("1", "The"), "f1"), 0.0) << "no token is left";
}

TEST(Kilt, EvidenceIsTheBestOfTheSets) {
  const ScoreTable one = score_pages("19");
  EXPECT_EQ(value(one, "rprec"), 1.0);
  EXPECT_EQ(value(one, "recall@5"), 0.5) << "one of two sets";
  EXPECT_EQ(value(one, "precision@5"), 0.2);
  EXPECT_EQ(value(one, "kilt-em"), 1.0);
  const ScoreTable half = score_pages("92");
  EXPECT_EQ(value(half, "rprec"), 0.5) << "one of two pages among the first two";
  EXPECT_EQ(value(half, "kilt-em"), 0.0);
  EXPECT_EQ(value(half, "em"), 1.0);
}

TEST(Kilt, ASetCountsOnceWhereItsLastPageWasFound) {
  // 2 begins the set at place 1; 9 is a stray; 3 completes the set, which leaves its first place:
  // 9, set.
  const ScoreTable table = score_pages("293");
  EXPECT_EQ(value(table, "success_rate@1"), 0.0);
  EXPECT_EQ(value(table, "success_rate@2"), 1.0);
  EXPECT_EQ(value(table, "precision@2"), 0.5);
  const ScoreTable both = score_pages("231");
  EXPECT_EQ(value(both, "recall@2"), 1.0) << "2 and 3 take one place together";
  EXPECT_EQ(value(both, "answer_in_context@1"), 1.0);
  EXPECT_EQ(value(score_pages(""), "recall@5"), 0.0);
}

TEST(Kilt, FilesThatDoNotFitAreRefusedByName) {
  const auto gold = record(kGold);
  const auto guess = record(R"({"id":"q","output":[{"answer":"x"}]})");
  const auto refused = [](const std::vector<data::KiltRecord>& g,
                          const std::vector<data::KiltRecord>& s, const char* part) {
    try {
      score_kilt(g, s);
      ADD_FAILURE() << part;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused({gold}, {}, "no guess for 'q'");
  refused({gold}, {guess, guess}, "guess 'q' was made twice");
  refused({gold, gold}, {guess}, "'q' is there twice");
  refused({gold}, {record(R"({"id":"q","output":[{"answer":"x"},{"answer":"y"}]})")},
          "exactly one output");
  refused({gold}, {record(R"({"id":"q","output":[{"answer":" "}]})")}, "exactly one output");
  refused({record(R"({"id":"q"})")}, {guess}, "has no answer");
  refused({gold}, {guess, record(R"({"id":"z","output":[{"answer":"x"}]})")}, "for no gold record");
  EXPECT_THROW(record(R"({"input":"?"})"), DataError);
  EXPECT_THROW(record(R"({"id":"q","output":{}})"), DataError);
}

}  // namespace
}  // namespace contexture::eval
