#include "eval/ranking.h"

#include <algorithm>
#include <set>

#include "core/error.h"

namespace contexture::eval {
namespace {

// The gold ids found, in order, as the places (from 1) of distinct documents.
std::vector<int> gold_places(const std::vector<std::string>& ranked,
                             const std::vector<std::string>& gold) {
  const std::set<std::string> wanted(gold.begin(), gold.end());
  std::set<std::string> seen;
  std::vector<int> places;
  int place = 0;
  for (const auto& id : ranked) {
    if (!seen.insert(id).second) continue;
    ++place;
    if (wanted.count(id) != 0) places.push_back(place);
  }
  return places;
}

int found_within(const std::vector<int>& places, int k) {
  return static_cast<int>(
      std::count_if(places.begin(), places.end(), [k](int place) { return place <= k; }));
}

}  // namespace

std::vector<std::string> trec_order(std::vector<ScoredId> scored) {
  std::sort(scored.begin(), scored.end(), [](const ScoredId& a, const ScoredId& b) {
    const float x = static_cast<float>(a.score), y = static_cast<float>(b.score);
    return x != y ? x > y : a.id > b.id;
  });
  std::vector<std::string> ids;
  ids.reserve(scored.size());
  for (auto& s : scored) ids.push_back(std::move(s.id));
  return ids;
}

double hit_at(const std::vector<std::string>& ranked, const std::vector<std::string>& gold, int k) {
  return found_within(gold_places(ranked, gold), k) > 0 ? 1.0 : 0.0;
}

double recall_at(const std::vector<std::string>& ranked, const std::vector<std::string>& gold,
                 int k) {
  const std::set<std::string> distinct(gold.begin(), gold.end());
  if (distinct.empty()) return 0.0;
  return static_cast<double>(found_within(gold_places(ranked, gold), k)) /
         static_cast<double>(distinct.size());
}

double reciprocal_rank(const std::vector<std::string>& ranked,
                       const std::vector<std::string>& gold) {
  const auto places = gold_places(ranked, gold);
  return places.empty() ? 0.0 : 1.0 / places.front();
}

RankingScores score_rankings(const std::vector<RankedQuery>& queries, const std::vector<int>& k) {
  CONTEXTURE_REQUIRE(!queries.empty(), "no queries to score: the evaluation set is empty");
  RankingScores scores;
  scores.k = k;
  const double percent = 100.0 / static_cast<double>(queries.size());
  for (const int cut : k) {
    CONTEXTURE_REQUIRE(cut >= 1, "recall needs a cut-off of at least 1, got ", cut);
    double hits = 0.0, recall = 0.0;
    for (const auto& q : queries) {
      hits += hit_at(q.ranked, q.gold, cut);
      recall += recall_at(q.ranked, q.gold, cut);
    }
    scores.hit.push_back(percent * hits);
    scores.recall.push_back(percent * recall);
  }
  for (const auto& q : queries) {
    scores.mrr_each.push_back(reciprocal_rank(q.ranked, q.gold));
    scores.mrr += percent * scores.mrr_each.back();
  }
  return scores;
}

}  // namespace contexture::eval
