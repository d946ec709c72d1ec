#include "eval/paired_test.h"

#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/rng.h"

namespace contexture::eval {
namespace {

// Sums that differ by rounding alone count as equal.
constexpr double kRounding = 1e-12;

// The sum with the sign of value i flipped where bit i of the pattern is set.
double flipped_sum(const std::vector<double>& values, uint64_t pattern) {
  double sum = 0.0;
  for (size_t i = 0; i < values.size(); ++i)
    sum += (pattern >> i & 1) != 0 ? -values[i] : values[i];
  return sum;
}

double drawn_sum(const std::vector<double>& values, Stream& stream) {
  double sum = 0.0;
  uint64_t bits = 0;
  for (size_t i = 0; i < values.size(); ++i, bits >>= 1) {
    if (i % 64 == 0) bits = stream.next_u64();
    sum += (bits & 1) != 0 ? -values[i] : values[i];
  }
  return sum;
}

}  // namespace

PairedTest paired_test(std::span<const double> a, std::span<const double> b,
                       const PairedTestOptions& options) {
  CONTEXTURE_REQUIRE(a.size() == b.size() && !a.empty(),
                     "a paired test needs the same examples on both sides, at least one; got ",
                     a.size(), " and ", b.size(), " scores");
  CONTEXTURE_REQUIRE(options.draws >= 1 && options.exact_up_to >= 0 && options.exact_up_to <= 24,
                     "a paired test needs draws >= 1 and exact_up_to within 0..24, got ",
                     options.draws, " and ", options.exact_up_to);
  PairedTest result;
  std::vector<double> differences;  // those that are not 0: the others change no sum
  double observed = 0.0, size = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = a[i] - b[i];
    CONTEXTURE_REQUIRE(std::isfinite(difference), "score ", i, " of ", a.size(),
                       " is not finite: ", a[i], " and ", b[i]);
    observed += difference;
    size += std::abs(difference);
    (difference > 0 ? result.better : difference < 0 ? result.worse : result.same) += 1;
    if (difference != 0) differences.push_back(difference);
  }
  result.difference = observed / static_cast<double>(a.size());
  result.exact = differences.size() <= static_cast<size_t>(options.exact_up_to);
  const double threshold = std::abs(observed) - kRounding * size;
  if (result.exact) {
    const uint64_t patterns = uint64_t{1} << differences.size();
    uint64_t as_far = 0;
    for (uint64_t pattern = 0; pattern < patterns; ++pattern) {
      as_far += std::abs(flipped_sum(differences, pattern)) >= threshold ? 1 : 0;
    }
    result.p_value = static_cast<double>(as_far) / static_cast<double>(patterns);
    return result;
  }
  Stream stream(options.seed, "eval/sign-flip");
  int as_far = 1;
  for (int draw = 0; draw < options.draws; ++draw) {
    as_far += std::abs(drawn_sum(differences, stream)) >= threshold ? 1 : 0;
  }
  result.p_value = static_cast<double>(as_far) / static_cast<double>(options.draws + 1);
  return result;
}

}  // namespace contexture::eval
