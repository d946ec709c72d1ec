#include "eval/trec_scores.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/json.h"
#include "eval/ranking.h"

namespace contexture::eval {
namespace {

// One query: relevances by rank, and what there was to find.
struct Judged {
  std::vector<int> ranked;    // [results] 0 where not relevant
  std::vector<int> relevant;  // relevances above 0, descending
};

Judged judge(const std::string& query, const std::map<std::string, int>& judgments,
             const std::vector<data::RunEntry>& results, bool drop_same_id) {
  Judged judged;
  std::vector<ScoredId> scored;
  for (const auto& result : results) {
    if (drop_same_id && result.document == query) continue;
    scored.push_back({result.document, result.score});
  }
  for (const std::string& id : trec_order(std::move(scored))) {
    const auto found = judgments.find(id);
    judged.ranked.push_back(found == judgments.end() ? 0 : std::max(found->second, 0));
  }
  for (const auto& [id, relevance] : judgments) {
    if (relevance > 0) judged.relevant.push_back(relevance);
  }
  std::sort(judged.relevant.rbegin(), judged.relevant.rend());
  return judged;
}

size_t within(const std::vector<int>& values, size_t k) { return std::min(values.size(), k); }

double hits(const Judged& q, size_t k) {
  return static_cast<double>(
      std::count_if(q.ranked.begin(), q.ranked.begin() + static_cast<int64_t>(within(q.ranked, k)),
                    [](int relevance) { return relevance > 0; }));
}

double discounted_gain(const std::vector<int>& gains, size_t k) {
  double sum = 0.0;
  for (size_t i = 0; i < within(gains, k); ++i)
    sum += gains[i] / std::log2(static_cast<double>(i + 2));
  return sum;
}

// 0 where there is nothing to divide by.
double share(double part, double whole) { return whole > 0.0 ? part / whole : 0.0; }

double average_precision(const Judged& q, size_t k) {
  double found = 0.0, sum = 0.0;
  for (size_t i = 0; i < within(q.ranked, k); ++i) {
    if (q.ranked[i] > 0) sum += ++found / static_cast<double>(i + 1);
  }
  return share(sum, static_cast<double>(q.relevant.size()));
}

double reciprocal_rank_at(const Judged& q, size_t k) {
  for (size_t i = 0; i < within(q.ranked, k); ++i) {
    if (q.ranked[i] > 0) return 1.0 / static_cast<double>(i + 1);
  }
  return 0.0;
}

using Measure = double (*)(const Judged&, size_t);

double ndcg(const Judged& q, size_t k) {
  return share(discounted_gain(q.ranked, k), discounted_gain(q.relevant, k));
}
double recall(const Judged& q, size_t k) {
  return share(hits(q, k), static_cast<double>(q.relevant.size()));
}
double capped_recall(const Judged& q, size_t k) {
  return share(hits(q, k), static_cast<double>(std::min(q.relevant.size(), k)));
}
double precision(const Judged& q, size_t k) { return hits(q, k) / static_cast<double>(k); }
double success(const Judged& q, size_t k) { return hits(q, k) > 0.0 ? 1.0 : 0.0; }
double r_precision(const Judged& q, size_t) {
  return q.relevant.empty() ? 0.0 : precision(q, q.relevant.size());
}

void add_column(ScoreTable& table, std::string name, const std::vector<Judged>& queries,
                Measure measure, size_t k) {
  auto& column = table.add(std::move(name));
  for (const Judged& query : queries) column.values.push_back(measure(query, k));
}

}  // namespace

ScoreTable score_retrieval(const data::Qrels& qrels, const data::TrecRun& run,
                           const TrecOptions& options) {
  for (const int k : options.cutoffs)
    CONTEXTURE_REQUIRE(k >= 1, "a cut-off is at least 1, got ", k);
  ScoreTable table;
  std::vector<Judged> queries;
  int64_t missing = 0, unjudged = 0;
  for (const auto& [query, judgments] : qrels) {
    const auto found = run.find(query);
    if (found == run.end()) {
      ++missing;
      if (!options.missing_is_zero) continue;
    }
    static const std::vector<data::RunEntry> kNothing;
    table.ids.push_back(query);
    queries.push_back(judge(query, judgments, found == run.end() ? kNothing : found->second,
                            options.drop_same_id));
  }
  for (const auto& entry : run) unjudged += qrels.contains(entry.first) ? 0 : 1;
  const auto run_queries = static_cast<int64_t>(run.size());
  CONTEXTURE_DATA_REQUIRE(
      unjudged < run_queries, "no query of the run is judged: the judgments begin with query '",
      qrels.empty() ? "" : qrels.begin()->first, "', the run with '",
      run.empty() ? "" : run.begin()->first, "'. Are these files of one another?");
  const std::pair<const char*, Measure> at_k[] = {{"ndcg@", ndcg},     {"map@", average_precision},
                                                  {"recall@", recall}, {"r_cap@", capped_recall},
                                                  {"p@", precision},   {"success@", success}};
  for (const auto& [name, measure] : at_k) {
    for (const int k : options.cutoffs)
      add_column(table, concat(name, k), queries, measure, static_cast<size_t>(k));
  }
  constexpr size_t kAll = static_cast<size_t>(-1);
  add_column(table, "map", queries, average_precision, kAll);
  add_column(table, "rprec", queries, r_precision, kAll);
  add_column(table, "mrr", queries, reciprocal_rank_at, kAll);
  for (const int k : options.cutoffs)
    add_column(table, concat("mrr@", k), queries, reciprocal_rank_at, static_cast<size_t>(k));
  table.notes = {{"judged_queries", qrels.size()},
                 {"run_queries", run.size()},
                 {"scored_queries", queries.size()},
                 {"missing_queries", missing},
                 {"unjudged_queries", unjudged}};
  return table;
}

}  // namespace contexture::eval
