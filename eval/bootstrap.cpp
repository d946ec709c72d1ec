#include "eval/bootstrap.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/rng.h"

namespace contexture::eval {
namespace {

// values must be sorted and not empty.
double quantile_of_sorted(const std::vector<double>& values, double q) {
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double fraction = place - static_cast<double>(below);
  return values[below] + fraction * (values[above] - values[below]);
}

double mean_of(std::span<const double> values) {
  double sum = 0.0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  CONTEXTURE_REQUIRE(!values.empty(), "a quantile needs at least one value");
  CONTEXTURE_REQUIRE(q >= 0.0 && q <= 1.0, "a quantile lies within 0..1, got ", q);
  for (const double v : values) {
    CONTEXTURE_REQUIRE(!std::isnan(v), "a quantile of NaN is undefined");
  }
  std::sort(values.begin(), values.end());
  return quantile_of_sorted(values, q);
}

Interval bootstrap_mean(std::span<const double> scores, const BootstrapOptions& options) {
  return bootstrap_means({scores}, options).front();
}

std::vector<Interval> bootstrap_means(const std::vector<std::span<const double>>& columns,
                                      const BootstrapOptions& options) {
  CONTEXTURE_REQUIRE(options.level > 0.0 && options.level < 1.0,
                     "a confidence level lies within 0..1, got ", options.level);
  CONTEXTURE_REQUIRE(options.resamples >= 1, "a bootstrap needs at least one resample, got ",
                     options.resamples);
  for (const auto& scores : columns) {
    CONTEXTURE_REQUIRE(!scores.empty(), "a confidence interval needs at least one score");
    CONTEXTURE_REQUIRE(scores.size() == columns[0].size(), "columns of ", columns[0].size(),
                       " and ", scores.size(), " scores can't be resampled together");
    for (size_t i = 0; i < scores.size(); ++i) {
      CONTEXTURE_REQUIRE(std::isfinite(scores[i]), "score ", i, " of ", scores.size(),
                         " is not finite: ", scores[i]);
    }
  }
  if (columns.empty()) return {};
  const size_t n = columns[0].size();
  Stream stream(options.seed, "eval/bootstrap");
  std::vector<std::vector<double>> means(columns.size());
  std::vector<size_t> drawn(n);
  for (int resample = 0; resample < options.resamples; ++resample) {
    for (size_t& i : drawn) i = stream.below(n);
    for (size_t c = 0; c < columns.size(); ++c) {
      double sum = 0.0;
      for (const size_t i : drawn) sum += columns[c][i];
      means[c].push_back(sum / static_cast<double>(n));
    }
  }
  const double tail = (1.0 - options.level) / 2.0;
  std::vector<Interval> intervals;
  for (size_t c = 0; c < columns.size(); ++c) {
    std::sort(means[c].begin(), means[c].end());
    intervals.push_back({mean_of(columns[c]), quantile_of_sorted(means[c], tail),
                         quantile_of_sorted(means[c], 1.0 - tail)});
  }
  return intervals;
}

Interval bootstrap_difference(std::span<const double> a, std::span<const double> b,
                              const BootstrapOptions& options) {
  CONTEXTURE_REQUIRE(a.size() == b.size(),
                     "a paired comparison needs the same examples on both sides, got ", a.size(),
                     " and ", b.size(), " scores");
  std::vector<double> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return bootstrap_mean(difference, options);
}

}  // namespace contexture::eval
