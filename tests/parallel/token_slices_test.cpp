#include "parallel/token_slices.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/rng.h"
#include "expect_error.h"
#include "parallel/schedule.h"

namespace contexture::parallel {
namespace {

using Lengths = std::vector<int64_t>;

constexpr SliceModel kGolden{.a = 1, .b = .5, .g = .05};

double total_of(const Lengths& lengths, int num_stages, const SliceCost& cost) {
  double sum = 0.0, longest = 0.0;
  int64_t context = 0;
  for (const int64_t length : lengths) {
    const double time = cost(length, context);
    sum += time;
    longest = std::max(longest, time);
    context += length;
  }
  return sum + (num_stages - 1) * longest;
}

TEST(TokenSlices, TheGoldenCutsComeOut) {
  const auto check = [](int num_stages, const Lengths& lengths, double total, double uncut) {
    const SlicePlan plan = plan_token_slices(8, num_stages, kGolden);
    EXPECT_EQ(plan.lengths, lengths);
    EXPECT_NEAR(plan.total, total, 1e-12);  // rounding of a few sums
    EXPECT_NEAR(total_of({8}, num_stages, kGolden), uncut, 1e-12);
  };
  check(2, {5, 3}, 11.725, 13.2);
  check(4, {2, 2, 2, 2}, 17.7, 26.4);
  check(8, Lengths(8, 1), 26.725, 52.8);
}

// All 2^(n-1) cuts of small sequences, with costs that follow no formula.
TEST(TokenSlices, NoCutIsBetter) {
  for (int seed = 0; seed < 200; ++seed) {
    Stream random(seed, "slices");
    const int64_t tokens = 1 + static_cast<int64_t>(random.below(9));
    const int num_stages = 1 + static_cast<int>(random.below(6));
    std::vector<double> costs(100);
    for (double& cost : costs) cost = random.uniform();
    const double growth = random.uniform();
    const SliceCost cost = [&](int64_t l, int64_t c) {
      return costs[l * 10 + c] + growth * static_cast<double>(l);
    };
    double best = std::numeric_limits<double>::infinity();
    for (unsigned cuts = 0; cuts < 1u << (tokens - 1); ++cuts) {
      Lengths lengths{1};
      for (int64_t i = 0; i + 1 < tokens; ++i) {
        if (cuts >> i & 1) {
          lengths.push_back(1);
        } else {
          ++lengths.back();
        }
      }
      best = std::min(best, total_of(lengths, num_stages, cost));
    }
    const SlicePlan plan = plan_token_slices(tokens, num_stages, cost);
    EXPECT_NEAR(plan.total, best, 1e-12) << "seed " << seed;
    EXPECT_NEAR(total_of(plan.lengths, num_stages, cost), plan.total, 1e-12);
    EXPECT_EQ(std::accumulate(plan.lengths.begin(), plan.lengths.end(), int64_t{0}), tokens);

    const double gap = 0.3;
    const double coarse = plan_token_slices(tokens, num_stages, cost, gap).total;
    EXPECT_GE(coarse, best - 1e-12);
    EXPECT_LE(coarse, best + (num_stages - 1) * gap + 1e-12);
  }
}

TEST(TokenSlices, CutsLieAtMultiples) {
  const SlicePlan plan =
      plan_token_slices(1003, 8, SliceModel{.a = 4, .b = .1, .g = 1e-4}, 0.5, 64);
  EXPECT_GT(plan.lengths.size(), 2u);
  for (size_t i = 0; i + 1 < plan.lengths.size(); ++i) EXPECT_EQ(plan.lengths[i] % 64, 0);
  EXPECT_EQ(std::accumulate(plan.lengths.begin(), plan.lengths.end(), int64_t{0}), 1003);
  EXPECT_EQ(plan_token_slices(5, 4, kGolden, 0, 64).lengths, Lengths{5});
}

// The total is what the simulator measures: slices as microbatches of uneven size through equal
// stages.
TEST(TokenSlices, TheSimulatorAgreesWithTheTotal) {
  for (const int num_stages : {1, 2, 3, 8}) {
    const SlicePlan plan = plan_token_slices(24, num_stages, kGolden);
    StageTimes times = unit_times(num_stages);
    times.input_grad.assign(num_stages, 0.0);
    times.weight_grad.assign(num_stages, 0.0);
    int64_t context = 0;
    for (const int64_t length : plan.lengths) {
      times.scale.push_back(kGolden(length, context));
      context += length;
    }
    const int num_slices = static_cast<int>(plan.lengths.size());
    const StageGraph graph = chain(num_stages);
    const Schedule schedule = split_into_slices(make_gpipe(graph, 1), num_slices);
    check_schedule(graph, schedule, num_slices);
    EXPECT_NEAR(simulate(graph, schedule, times).makespan, plan.total, 1e-9);
  }
}

TEST(TokenSlices, ImpossibleRequestsAreRefused) {
  EXPECT_THROW(plan_token_slices(0, 1, kGolden), UsageError);
  EXPECT_THROW(plan_token_slices(8, 0, kGolden), UsageError);
  EXPECT_THROW(plan_token_slices(8, 1, kGolden, -1.0), UsageError);
  EXPECT_THROW(plan_token_slices(8, 1, kGolden, std::nan("")), UsageError);
  EXPECT_THROW(plan_token_slices(8, 1, kGolden, 0.0, 0), UsageError);
  EXPECT_EQ(message_of<UsageError>([] { plan_token_slices(100000, 2, kGolden); }),
            "100000 tokens in multiples of 1 are more than 4096 places to cut at. Take multiples "
            "of 25 or more.");
  EXPECT_EQ(message_of<UserError>([] {
              plan_token_slices(2, 1,
                                [](int64_t l, int64_t c) { return l == 1 && c == 1 ? -1.0 : 1.0; });
            }),
            "a slice of 1 tokens after 1 is said to cost -1, which is impossible");
}

std::vector<SliceTime> measure(const SliceModel& model, double noise, uint64_t seed) {
  Stream random(seed, "noise");
  std::vector<SliceTime> measured;
  for (const int64_t tokens : {16, 64, 128, 512}) {
    for (const double context : {0.0, 128.0, 1024.0}) {
      measured.push_back({tokens, context, model(tokens, context) + noise * random.normal()});
    }
  }
  return measured;
}

TEST(FitSliceModel, ExactTimesGiveTheirModelBack) {
  const SliceModel truth{.a = 2e-3, .b = 3e-5, .g = 4e-9};
  const SliceModel fit = fit_slice_model(measure(truth, 0.0, 0));
  // Double rounding times the condition of three scaled columns.
  EXPECT_NEAR(fit.a / truth.a, 1.0, 1e-9);
  EXPECT_NEAR(fit.b / truth.b, 1.0, 1e-9);
  EXPECT_NEAR(fit.g / truth.g, 1.0, 1e-9);
}

// No small step from the fit lowers the squared error, except towards negative coefficients.
TEST(FitSliceModel, NoNeighbourFitsBetter) {
  const auto error = [](const SliceModel& model, const std::vector<SliceTime>& measured) {
    double sum = 0.0;
    for (const SliceTime& m : measured) sum += std::pow(model(m.tokens, m.context) - m.seconds, 2);
    return sum;
  };
  int clamped = 0;
  for (int seed = 0; seed < 50; ++seed) {
    const SliceModel truth{.a = 1e-3, .b = 2e-5, .g = 5e-9};
    const std::vector<SliceTime> measured = measure(truth, seed % 2 ? 1e-4 : 3e-3, seed);
    const SliceModel fit = fit_slice_model(measured);
    EXPECT_GE(std::min({fit.a, fit.b, fit.g}), 0.0);
    clamped += std::min({fit.a, fit.b, fit.g}) == 0.0;
    const double least = error(fit, measured);
    for (const double step : {1e-3, -1e-3}) {
      for (int i = 0; i < 3; ++i) {
        SliceModel other = fit;
        double& moved = i == 0 ? other.a : i == 1 ? other.b : other.g;
        const double& scale = i == 0 ? truth.a : i == 1 ? truth.b : truth.g;
        moved += step * scale;
        if (moved < 0.0) continue;
        EXPECT_GE(error(other, measured), least) << "seed " << seed << ", coefficient " << i;
      }
    }
  }
  EXPECT_GT(clamped, 0);  // the noise does make some negative
  EXPECT_LT(clamped, 40);
}

TEST(FitSliceModel, MeasurementsThatDoNotTellTheTermsApartAreRefused) {
  const auto refusal = [](const std::vector<SliceTime>& measured) {
    return message_of<UserError>([&] { fit_slice_model(measured); });
  };
  EXPECT_NE(refusal({}).find("these 0 slice measurements do not tell"), std::string::npos);
  EXPECT_NE(refusal({{8, 0, 1.}, {16, 0, 2.}}).find("Measure three slices or more"),
            std::string::npos);
  EXPECT_NE(refusal({{8, 0, 1.}, {8, 8, 2.}, {8, 16, 3.}}).find("these 3"),
            std::string::npos);  // one length
  EXPECT_NE(refusal({{0, 0, 1.}}).find("impossible"), std::string::npos);
  EXPECT_NE(refusal({{1, 0, std::nan("")}}).find("impossible"), std::string::npos);
}

}  // namespace
}  // namespace contexture::parallel
