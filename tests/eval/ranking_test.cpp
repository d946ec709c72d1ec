#include "eval/ranking.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"

namespace contexture::eval {
namespace {

// Sums of a few quotients in double on both sides.
constexpr double kRounding = 1e-9;

TEST(Ranking, EveryQueryMatchesTrecEvalTiesIncluded) {
  const Json expected = read_json_file(CONTEXTURE_SOURCE_DIR "/tests/golden/ranking_scores.json");
  const auto cutoffs = expected["cutoffs"].get<std::vector<int>>();
  std::vector<RankedQuery> queries;
  for (const Json& q : expected["queries"]) {
    std::vector<ScoredId> run;
    for (const Json& d : q["run"]) run.push_back({d["id"], d["score"]});
    queries.push_back({trec_order(run), q["gold"]});
    const RankedQuery& query = queries.back();
    SCOPED_TRACE(q.dump());
    EXPECT_NEAR(reciprocal_rank(query.ranked, query.gold), q["rr"].get<double>(), kRounding);
    for (size_t i = 0; i < cutoffs.size(); ++i) {
      EXPECT_NEAR(recall_at(query.ranked, query.gold, cutoffs[i]), q["recall"][i].get<double>(),
                  kRounding);
      EXPECT_EQ(hit_at(query.ranked, query.gold, cutoffs[i]), q["hit"][i].get<double>());
    }
  }
  const RankingScores scores = score_rankings(queries, cutoffs);
  EXPECT_NEAR(scores.mrr, expected["mrr"].get<double>(), 100 * kRounding);
  for (size_t i = 0; i < cutoffs.size(); ++i) {
    EXPECT_NEAR(scores.hit[i], expected["hit"][i].get<double>(), 100 * kRounding);
    EXPECT_NEAR(scores.recall[i], expected["recall"][i].get<double>(), 100 * kRounding);
  }
}

TEST(Ranking, ARepeatedIdCountsAtItsFirstPlaceOnly) {
  EXPECT_EQ(reciprocal_rank({"x", "x", "x", "gold"}, {"gold"}), 0.5);
  EXPECT_EQ(recall_at({"gold", "gold"}, {"gold", "gold", "other"}, 2), 0.5);
}

TEST(Ranking, QueriesWithoutResultsOrGoldCountAsZero) {
  const RankingScores scores = score_rankings({{{"a"}, {"a"}}, {{}, {"a"}}, {{"a"}, {}}}, {1});
  EXPECT_NEAR(scores.hit[0], 100.0 / 3.0, kRounding);
  EXPECT_NEAR(scores.recall[0], 100.0 / 3.0, kRounding);
  EXPECT_NEAR(scores.mrr, 100.0 / 3.0, kRounding);
}

TEST(Ranking, NoQueriesAndBadCutoffsAreRefused) {
  EXPECT_THROW(score_rankings({}, {1}), UserError);
  EXPECT_THROW(score_rankings({{{"a"}, {"a"}}}, {0}), UserError);
}

}  // namespace
}  // namespace contexture::eval
