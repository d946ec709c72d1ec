#include "retriever/refresh.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

#include "core/error.h"

namespace contexture::retriever {

RefreshSchedule RefreshSchedule::parse(const std::string& text) {
  RefreshSchedule out;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view piece = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), piece.size() + 1));
    int64_t numbers[3] = {-1, -1, -1};
    const char *at = piece.data(), *end = at + piece.size();
    for (int i = 0; i < 3; ++i) {
      const auto [next, error] = std::from_chars(at, end, numbers[i]);
      const bool good = error == std::errc() &&
                        (i == 2 ? next == end : next < end && *next == (i == 0 ? '-' : ':'));
      CONTEXTURE_USAGE_REQUIRE(
          good && numbers[i] >= 0, "retriever.refresh_schedule=", text, ": '", piece,
          "' is not of the form first-last:every, as in 0-100:10,100-100000:500.");
      at = next + 1;
    }
    const auto [first, last, every] = numbers;
    CONTEXTURE_USAGE_REQUIRE(first < last && every > 0, "retriever.refresh_schedule=", text, ": '",
                             piece,
                             "' never refreshes. The first step must be less than the last, and "
                             "the interval at least 1.");
    CONTEXTURE_USAGE_REQUIRE(out.ranges_.empty() || first >= out.ranges_.back().end,
                             "retriever.refresh_schedule=", text, ": '", piece,
                             "' begins before the range in front of it ends.");
    out.ranges_.push_back({first, last, every});
  }
  return out;
}

RefreshSchedule RefreshSchedule::every(int64_t steps) {
  RefreshSchedule out;
  if (steps > 0) out.ranges_.push_back({0, std::numeric_limits<int64_t>::max(), steps});
  return out;
}

bool RefreshSchedule::due(int64_t step) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [step](const Range& r) {
    return step >= r.begin && step < r.end && step % r.every == 0;
  });
}

int64_t RefreshSchedule::shortest() const {
  const auto least =
      std::min_element(ranges_.begin(), ranges_.end(),
                       [](const Range& a, const Range& b) { return a.every < b.every; });
  return least == ranges_.end() ? 0 : least->every;
}

std::string staleness_warning(const Staleness& found) {
  if (found.recall >= 0.5) return "";
  return concat("the index was ", found.steps, " steps old, and had found ",
                std::round(100 * found.recall),
                " % of what the present encoder finds: most documents read since were the wrong "
                "ones. Refresh more often (retriever.refresh_every, or partial_every and "
                "partial_documents), or set retriever.overretrieve.");
}

}  // namespace contexture::retriever
