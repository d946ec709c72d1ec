// Retrieval measures as trec_eval defines them, from graded judgments and scored results.
//
// Results are ranked by score alone, equal scores (as floats, which is what trec_eval keeps) by
// document id descending. A judgment above 0 is relevant, an unjudged document is not. Pure
// functions: any thread.
#pragma once
#include <vector>

#include "data/trec.h"
#include "eval/score_table.h"

namespace contexture::eval {

struct TrecOptions {
  std::vector<int> cutoffs{1, 3, 5, 10, 20, 100, 1000};  // each at least 1
  bool drop_same_id = false;  // leave out results whose document id is the query's, as BEIR does
  bool missing_is_zero =
      false;  // judged queries without a result count as 0 (trec_eval -c), else are left out
};

// Columns: ndcg@k (gain = relevance, discount log2(rank + 1)), map@k, recall@k, r_cap@k (hits over
// min(k, relevant), BEIR's capped recall), p@k and success@k for every k, then map, rprec and mrr,
// and mrr@k for every k. A query with no relevant document scores 0. Queries by id; notes:
// "judged_queries", "run_queries", "scored_queries", "missing_queries" (judged, no result),
// "unjudged_queries" (results, not judged: never scored). DataError when no query has both;
// UserError for a bad cut-off.
ScoreTable score_retrieval(const data::Qrels& qrels, const data::TrecRun& run,
                           const TrecOptions& options = {});

}  // namespace contexture::eval
