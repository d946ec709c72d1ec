// Retrieval figures of one query from its ranked document ids and its gold ids, and their means.
// Ids are strings; a repeated id counts at its first place only. Pure functions: any thread.
#pragma once

#include <string>
#include <vector>

namespace contexture::eval {

struct ScoredId {
  std::string id;
  double score = 0.0;
};

// Ids in trec_eval's order: score descending (compared as float, as trec_eval stores it), equal
// scores by id descending. For run files; the index ranks its own results (retriever/index.h).
std::vector<std::string> trec_order(std::vector<ScoredId> scored);

// 1 if any gold id is among the first k, else 0 (open-domain QA's recall@k; TREC's Success@k).
double hit_at(const std::vector<std::string>& ranked, const std::vector<std::string>& gold, int k);

// The share of the gold ids among the first k (TREC's and BEIR's Recall@k); 0 without gold ids.
double recall_at(const std::vector<std::string>& ranked, const std::vector<std::string>& gold,
                 int k);

// 1 / place of the first gold id, 0 if there is none.
double reciprocal_rank(const std::vector<std::string>& ranked,
                       const std::vector<std::string>& gold);

struct RankedQuery {
  std::vector<std::string> ranked;  // best first
  std::vector<std::string> gold;    // any order
};

struct RankingScores {
  std::vector<int> k;            // the cut-offs asked for
  std::vector<double> hit;       // [k] percent of queries with any gold id in the first k
  std::vector<double> recall;    // [k] mean share of the gold ids found, percent
  double mrr = 0.0;              // percent
  std::vector<double> mrr_each;  // [n] 0..1
};

// Means over all queries, those without a result or without gold ids (0) included.
// UserError without queries or when a cut-off is below 1.
RankingScores score_rankings(const std::vector<RankedQuery>& queries, const std::vector<int>& k);

}  // namespace contexture::eval
