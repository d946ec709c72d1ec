// Percentile bootstrap: how far a mean over n examples may be trusted, without assumptions about
// how the scores are spread. Draws come from the named random stream "eval/bootstrap", so the same
// seed and scores give the same interval on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace contexture::eval {

struct Interval {
  double mean = 0.0;  // of the scores as given
  double low = 0.0, high = 0.0;
};

struct BootstrapOptions {
  double level = 0.95;  // share of the resampled means inside the interval, 0 < level < 1
  int resamples = 2000;
  uint64_t seed = 0;
};

// The q-quantile (0..1) of values, linear between order statistics (numpy's default).
// UserError if values is empty, holds a NaN, or q is outside 0..1.
double quantile(std::vector<double> values, double q);

// The mean of scores with its interval, in the unit of the scores. UserError if scores is empty or
// holds a number that is not finite, or an option is out of range.
Interval bootstrap_mean(std::span<const double> scores, const BootstrapOptions& options = {});

// The same for several scores of the same examples, [columns][n], which are resampled together:
// each interval is what bootstrap_mean gives for its column. UserError also if the lengths differ.
std::vector<Interval> bootstrap_means(const std::vector<std::span<const double>>& columns,
                                      const BootstrapOptions& options = {});

// The mean of a[i] - b[i], resampling examples so that the pairs stay together: an interval that
// leaves out 0 says that the two systems differ on such examples. UserError if lengths differ.
Interval bootstrap_difference(std::span<const double> a, std::span<const double> b,
                              const BootstrapOptions& options = {});

}  // namespace contexture::eval
