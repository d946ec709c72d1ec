#include "eval/trec_scores.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"

namespace contexture::eval {
namespace {

// trec_eval's sums and ours are both in double, in the same order.
constexpr double kRounding = 1e-9;

const ScoreTable::Column& column(const ScoreTable& table, const std::string& name) {
  for (const auto& c : table.columns) {
    if (c.name == name) return c;
  }
  throw std::runtime_error("no column " + name);
}

TEST(TrecScores, EveryMeasureOfEveryQueryEqualsTrecEvals) {
  const Json golden = read_json_file(CONTEXTURE_SOURCE_DIR "/tests/golden/trec_scores.json");
  data::Qrels qrels;
  data::TrecRun run;
  for (const auto& [query, judged] : golden["qrels"].items()) {
    for (const auto& [document, relevance] : judged.items()) qrels[query][document] = relevance;
  }
  for (const auto& [query, results] : golden["run"].items()) {
    for (const auto& [document, score] : results.items()) run[query].push_back({document, score});
  }
  TrecOptions options;
  options.cutoffs = golden["cutoffs"].get<std::vector<int>>();
  const ScoreTable table = score_retrieval(qrels, run, options);
  ASSERT_EQ(table.ids.size(), golden["scores"].size()) << "queries with judgments and results";
  size_t compared = 0;
  for (size_t i = 0; i < table.ids.size(); ++i) {
    for (const auto& [name, value] : golden["scores"][table.ids[i]].items()) {
      EXPECT_NEAR(column(table, name).values[i], value.get<double>(), kRounding)
          << name << " of " << table.ids[i];
      ++compared;
    }
  }
  EXPECT_EQ(compared, table.ids.size() * (5 * options.cutoffs.size() + 3));
  EXPECT_EQ(table.notes["missing_queries"], 1);
  EXPECT_EQ(table.notes["unjudged_queries"], 1);
}

TEST(TrecScores, MissingQueriesCountAsZeroWhenAsked) {
  const data::Qrels qrels{{"1", {{"a", 1}}}, {"2", {{"b", 1}}}};
  const data::TrecRun run{{"1", {{"a", 1.0}}}};
  EXPECT_EQ(column(score_retrieval(qrels, run), "mrr").values, (std::vector<double>{1.0}));
  TrecOptions options;
  options.missing_is_zero = true;
  EXPECT_EQ(column(score_retrieval(qrels, run, options), "mrr").values,
            (std::vector<double>{1.0, 0.0}));
}

// BEIR's capped recall and its habit of dropping the query itself have no trec_eval counterpart.
TEST(TrecScores, CappedRecallAndDroppedQueriesFollowBeir) {
  const data::Qrels qrels{{"q", {{"a", 1}, {"b", 1}, {"c", 1}}}};
  const data::TrecRun run{{"q", {{"q", 9.0}, {"a", 8.0}, {"x", 7.0}, {"b", 6.0}}}};
  TrecOptions options;
  options.cutoffs = {2};
  EXPECT_EQ(column(score_retrieval(qrels, run, options), "r_cap@2").values[0], 0.5);
  EXPECT_EQ(column(score_retrieval(qrels, run, options), "mrr@2").values[0], 0.5);
  options.drop_same_id = true;
  EXPECT_EQ(column(score_retrieval(qrels, run, options), "mrr@2").values[0], 1.0);
  EXPECT_EQ(column(score_retrieval(qrels, run, options), "p@2").values[0], 0.5);
}

TEST(TrecScores, FilesThatDoNotBelongTogetherAndBadCutoffsAreRefused) {
  EXPECT_THROW(score_retrieval({{"1", {{"a", 1}}}}, {{"2", {{"a", 1.0}}}}), DataError);
  EXPECT_THROW(score_retrieval({{"1", {{"a", 1}}}}, {}), DataError);
  TrecOptions options;
  options.cutoffs = {0};
  EXPECT_THROW(score_retrieval({{"1", {{"a", 1}}}}, {{"1", {{"a", 1.0}}}}, options), UserError);
}

}  // namespace
}  // namespace contexture::eval
