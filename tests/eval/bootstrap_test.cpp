#include "eval/bootstrap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/json.h"

namespace contexture::eval {
namespace {

Json golden() { return read_json_file(CONTEXTURE_SOURCE_DIR "/tests/golden/bootstrap.json"); }

TEST(Bootstrap, QuantilesMatchNumpy) {
  const Json expected = golden();
  for (const Json& c : expected["quantiles"]) {
    for (size_t i = 0; i < c["q"].size(); ++i) {
      EXPECT_NEAR(quantile(c["values"], c["q"][i]), c["expected"][i].get<double>(),
                  1e-12);  // one interpolation in double
    }
  }
}

TEST(Bootstrap, IntervalsAgreeWithScipyUpToTheNoiseOfResampling) {
  const Json expected = golden();
  for (const Json& c : expected["intervals"]) {
    const auto scores = c["scores"].get<std::vector<double>>();
    const Interval interval = bootstrap_mean(scores, {.resamples = 20000, .seed = 3});
    EXPECT_NEAR(interval.mean, c["mean"].get<double>(), 1e-12);  // a sum of zeros and ones
    // The deviation of a 2.5 % quantile over R resamples is sqrt(p (1 - p) / R) / density, 0.019
    // standard errors at R = 20,000; five of them, and one example, as means are multiples of 1/n.
    const double noise =
        0.1 * c["standard_error"].get<double>() + 1.0 / static_cast<double>(scores.size());
    EXPECT_NEAR(interval.low, c["low"].get<double>(), noise);
    EXPECT_NEAR(interval.high, c["high"].get<double>(), noise);
  }
}

TEST(Bootstrap, SameSeedGivesTheSameInterval) {
  const std::vector<double> scores = {0, 1, 1, 0, 1, 1, 1, 0, 0, 1, 0.5, 0.25};
  const Interval a = bootstrap_mean(scores, {.seed = 1}), b = bootstrap_mean(scores, {.seed = 1});
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.high, b.high);
}

TEST(Bootstrap, EqualScoresLeaveNoDoubt) {
  const Interval interval = bootstrap_mean(std::vector<double>(9, 0.25));
  EXPECT_EQ(interval.low, 0.25);
  EXPECT_EQ(interval.high, 0.25);
}

TEST(Bootstrap, PairedDifferenceIgnoresWhatBothSidesShare) {
  // Hard and easy examples spread the scores, but b is always a - 0.1.
  std::vector<double> a, b;
  for (int i = 0; i < 50; ++i) {
    a.push_back(i % 2);
    b.push_back(a.back() - 0.1);
  }
  const Interval interval = bootstrap_difference(a, b);
  EXPECT_NEAR(interval.low, 0.1, 1e-12);  // 1 - 0.9 and 0 - -0.1 differ in the last bit
  EXPECT_NEAR(interval.high, 0.1, 1e-12);
}

TEST(Bootstrap, ImpossibleInputsAreRefused) {
  const std::vector<double> one = {1.0}, two = {1.0, 0.0};
  const std::vector<double> nan = {std::numeric_limits<double>::quiet_NaN()};
  EXPECT_THROW(bootstrap_mean({}), UserError);
  EXPECT_THROW(bootstrap_mean(nan), UserError);
  EXPECT_THROW(bootstrap_mean(one, {.level = 1.0}), UserError);
  EXPECT_THROW(bootstrap_mean(one, {.resamples = 0}), UserError);
  EXPECT_THROW(bootstrap_difference(one, two), UserError);
  EXPECT_THROW(quantile({}, 0.5), UserError);
  EXPECT_THROW(quantile(one, 1.5), UserError);
}

}  // namespace
}  // namespace contexture::eval
