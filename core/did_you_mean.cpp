#include "core/did_you_mean.h"

#include <algorithm>
#include <cctype>

namespace contexture {

int edit_distance(std::string_view a, std::string_view b) {
  const auto folded = [](char c) {
    return c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  };
  const size_t n = b.size();
  std::vector<int> before_last(n + 1), last(n + 1), row(n + 1);
  for (size_t j = 0; j <= n; ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, row);
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= n; ++j) {
      const bool same = folded(a[i - 1]) == folded(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) &&
          folded(a[i - 2]) == folded(b[j - 1])) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
  }
  return row[n];
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  if (name.size() > 200) return "";  // no typo; and the distance costs the product of the lengths
  std::string best;
  int best_distance = 0;
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(name, candidate);
    const int limit =
        std::max<int>(2, static_cast<int>(std::max(name.size(), candidate.size())) / 3);
    // A distance as long as the word itself would suggest anything for "x".
    if (distance > limit || distance >= static_cast<int>(std::min(name.size(), candidate.size()))) {
      continue;
    }
    if (best.empty() || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean_hint(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string nearest = did_you_mean(name, candidates);
  return nearest.empty() ? "" : " Did you mean '" + nearest + "'?";
}

}  // namespace contexture
