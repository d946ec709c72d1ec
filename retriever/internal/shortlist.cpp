#include "retriever/internal/shortlist.h"

#include <algorithm>
#include <cmath>

namespace contexture::retriever::internal {

void Shortlist::add(float score, int64_t row, int64_t k, double slack) {
  items.emplace_back(score, row);
  if (items.size() < capacity) return;
  prune(k, slack);
  capacity = std::max(capacity, 2 * items.size());
}

void Shortlist::prune(int64_t k, double slack) {
  if (static_cast<int64_t>(items.size()) <= k) return;
  std::nth_element(items.begin(), items.begin() + (k - 1), items.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  const double bound = static_cast<double>(items[k - 1].first) - slack;
  bar = std::nextafter(static_cast<float>(bound), -std::numeric_limits<float>::infinity());
  std::erase_if(items, [this](const auto& item) { return item.first < bar; });
}

double inner_product_slack(double query_length, double longest, int64_t dim) {
  const double u = std::ldexp(1.0, -24), m = static_cast<double>(dim) + 3;
  return 2 * (m * u / (1 - m * u) * query_length * longest + m * 1e-37);
}

std::vector<int64_t> merge_shortlists(const std::vector<std::vector<Shortlist>>& by_thread,
                                      int64_t query, int64_t k, double slack) {
  Shortlist all;
  for (const auto& lists : by_thread) {
    if (lists.empty()) continue;
    all.items.insert(all.items.end(), lists[query].items.begin(), lists[query].items.end());
  }
  all.prune(k, slack);
  std::vector<int64_t> rows;
  rows.reserve(all.items.size());
  for (const auto& [score, row] : all.items) rows.push_back(row);
  return rows;
}

}  // namespace contexture::retriever::internal
