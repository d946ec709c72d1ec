#include "parallel/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"

namespace contexture::parallel {
namespace {

constexpr Link kGolden{.latency_s = 5e-6, .s_per_byte = 1 / 25e9};  // 16 ranks, 5 us, 25 GB/s

TEST(Collectives, MatchTheGoldenTimes) {
  // Goldens are rounded: to 0.1 us, to 1 us, to 0.01 ms.
  EXPECT_NEAR(ring_all_reduce_s(16, 4e3, kGolden), 150.3e-6, 0.051e-6);
  EXPECT_NEAR(tree_all_reduce_s(16, 4e3, kGolden), 40.3e-6, 0.051e-6);
  EXPECT_NEAR(recursive_doubling_all_reduce_s(16, 4e3, kGolden), 20.6e-6, 0.051e-6);
  EXPECT_NEAR(halving_doubling_all_reduce_s(16, 4e3, kGolden), 40.3e-6, 0.051e-6);
  EXPECT_NEAR(ring_all_reduce_s(16, 4e6, kGolden), 450e-6, 0.51e-6);
  EXPECT_NEAR(tree_all_reduce_s(16, 4e6, kGolden), 360e-6, 0.51e-6);
  EXPECT_NEAR(recursive_doubling_all_reduce_s(16, 4e6, kGolden), 660e-6, 0.51e-6);
  EXPECT_NEAR(halving_doubling_all_reduce_s(16, 4e6, kGolden), 340e-6, 0.51e-6);
  EXPECT_NEAR(ring_all_reduce_s(16, 400e6, kGolden), 30.15e-3, 0.0051e-3);
  EXPECT_NEAR(tree_all_reduce_s(16, 400e6, kGolden), 32.04e-3, 0.0051e-3);
  EXPECT_NEAR(recursive_doubling_all_reduce_s(16, 400e6, kGolden), 64.0e-3, 0.051e-3);
  EXPECT_NEAR(halving_doubling_all_reduce_s(16, 400e6, kGolden), 30.04e-3, 0.0051e-3);
}

TEST(Collectives, HalvesOfARingMakeTheRingAndOneRankIsFree) {
  EXPECT_DOUBLE_EQ(reduce_scatter_s(8, 1e6, kGolden) + all_gather_s(8, 1e6, kGolden),
                   ring_all_reduce_s(8, 1e6, kGolden));
  EXPECT_DOUBLE_EQ(kGolden.seconds(1e6), 5e-6 + 40e-6);
  EXPECT_DOUBLE_EQ(broadcast_s(8, 1e6, kGolden), 3 * kGolden.seconds(1e6));
  EXPECT_DOUBLE_EQ(all_to_all_s(8, 8e6, kGolden), 7 * kGolden.seconds(1e6));
  for (const auto cost : {ring_all_reduce_s, tree_all_reduce_s, recursive_doubling_all_reduce_s,
                          halving_doubling_all_reduce_s, broadcast_s, all_to_all_s}) {
    EXPECT_EQ(cost(1, 1e6, kGolden), 0.0);
    EXPECT_THROW(cost(0, 1e6, kGolden), UsageError);
  }
}

TEST(Collectives, SayWhenLogarithmicCostDoesNotHold) {
  const double limit = logarithmic_limit_bytes(16, kGolden);
  EXPECT_NEAR(limit, 4 * 5e-6 * 25e9 * 16 / 15, 1.0);  // 533 KB; rounding of a few doubles
  EXPECT_EQ(best_all_reduce(16, 4e3, kGolden).algorithm, "recursive doubling");
  EXPECT_EQ(best_all_reduce(16, 400e6, kGolden).algorithm, "halving doubling");
  EXPECT_EQ(logarithmic_statement(16, 4e3, kGolden),
            "an all-reduce of 0.004 MB over 16 ranks takes 0.021 ms (recursive doubling): below "
            "0.533 MB latency dominates, so "
            "its cost "
            "grows as log2 n.");
  EXPECT_EQ(logarithmic_statement(16, 400e6, kGolden),
            "an all-reduce of 400.000 MB over 16 ranks takes 30.040 ms (halving doubling): above "
            "0.533 MB bandwidth dominates, "
            "so its cost "
            "is nearly the same for any n and log2 n overstates it.");
  // Doubling the ranks: one more round of latency below, almost nothing above.
  EXPECT_NEAR(best_all_reduce(32, 1, kGolden).seconds / best_all_reduce(16, 1, kGolden).seconds,
              5.0 / 4, 1e-4);
  EXPECT_NEAR(best_all_reduce(32, 4e9, kGolden).seconds / best_all_reduce(16, 4e9, kGolden).seconds,
              1.0, 0.05);
}

TEST(ReferenceCost, HasBothPublishedReadings) {
  EXPECT_DOUBLE_EQ(reference_cost(0.5, std::log2(16)), 0.625);
  EXPECT_NEAR(reference_cost(0.5, std::log2(8)), 0.6667, 5e-5);  // the golden's last digit
  EXPECT_NEAR(1 / reference_cost(0.5, std::log2(16)), 1.60, 1e-12);
  EXPECT_NEAR(1 / reference_cost(0.5, std::log2(8)), 1.50, 1e-12);
  EXPECT_NEAR(1 / reference_cost(0.5, std::log2(4)), 1.33, 0.005);
  EXPECT_EQ(reference_cost(0.0, 4), 1.0);
  EXPECT_THROW(reference_cost(1.5, 4), UsageError);
  EXPECT_THROW(reference_cost(0.5, 0), UsageError);
}

TEST(ZeroBytes, MatchTheGoldensOf1500MillionParameters) {
  const double n8[] = {24, 8.25, 5.625, 3.0}, n64[] = {24, 6.281, 3.328, 0.375};
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_NEAR(zero_bytes(1.5e9, stage, 8).total() / 1e9, n8[stage], 1e-9);
    EXPECT_NEAR(zero_bytes(1.5e9, stage, 64).total() / 1e9, n64[stage], 5e-4);  // three digits
    EXPECT_EQ(zero_traffic_elements(1.5e9, stage), (stage == 3 ? 3 : 2) * 1.5e9);
  }
  EXPECT_THROW(zero_bytes(1, 4, 8), UsageError);
}

TEST(MegatronBytes, FollowTheThreePrecisions) {
  EXPECT_EQ(megatron_bytes_per_parameter(MegatronPrecision::kFp16, 0), 20);
  EXPECT_EQ(megatron_bytes_per_parameter(MegatronPrecision::kFp16, 4), 4 + 16 / 4.0);
  EXPECT_EQ(megatron_bytes_per_parameter(MegatronPrecision::kBf16, 0), 18);
  EXPECT_EQ(megatron_bytes_per_parameter(MegatronPrecision::kBf16, 4), 6 + 12 / 4.0);
  EXPECT_EQ(megatron_bytes_per_parameter(MegatronPrecision::kFp32, 0), 16);
  EXPECT_EQ(megatron_bytes_per_parameter(MegatronPrecision::kFp32, 4), 8 + 8 / 4.0);
}

TEST(Activations, FollowTheLayerFormula) {
  // s = 1024, b = 2, h = 1024, a = 16: 5 a s / h = 80.
  EXPECT_EQ(layer_activation_bytes(1024, 2, 1024, 16, 1, false), 1024.0 * 2 * 1024 * (34 + 80));
  EXPECT_EQ(layer_activation_bytes(1024, 2, 1024, 16, 4, true), 1024.0 * 2 * 1024 * 34 / 4);
}

TEST(Traffic, OfTensorToPipelineIsFourLayersTimesTheRingFactorToTwo) {
  for (const int n : {2, 4, 8}) {
    const double layers = 6;
    const double ratio =
        layers * tensor_parallel_bytes(128, 4, 512, 2, n) / pipeline_boundary_bytes(128, 4, 512, 2);
    EXPECT_NEAR(ratio, 4 * layers * 2 * (n - 1) / n / 2, 1e-12 * ratio);
  }
}

TEST(Flops, CountSixPerParameterAndAttention) {
  EXPECT_EQ(transformer_flops_per_token(1e9, 24, 2048, 1000, false), 6e9 + 12.0 * 24 * 2048 * 1000);
  EXPECT_EQ(transformer_flops_per_token(1e9, 24, 2048, 1000, true), 6e9 + 6.0 * 24 * 2048 * 1000);
  EXPECT_EQ(model_flops_utilisation(156e12, 1.0, 312e12), 0.5);
  EXPECT_EQ(refresh_flop_ratio(1e6, 1e8, 100, 64, 20, 1e8, 4), 1e6 / (4.0 * 100 * 64 * 20));
}

TEST(RankGroup, GoesOverTheLinksInsideFirstWhereThatIsShorter) {
  const Link inside{.latency_s = 0.0, .s_per_byte = 1e-9},
      across{.latency_s = 0.0, .s_per_byte = 16e-9};
  const RankGroup group{.nodes = 2, .per_node = 4, .inside = inside, .across = across};
  // Three quarters inside, half of a quarter across, three quarters inside; the scatter is the
  // first half of it.
  EXPECT_DOUBLE_EQ(reduce_scatter_s(group, 8e9), 6 + 16);
  EXPECT_DOUBLE_EQ(all_gather_s(group, 8e9), 6 + 16);
  EXPECT_DOUBLE_EQ(all_reduce_s(group, 8e9), 6 + 32 + 6);
  const RankGroup slow_inside{.nodes = 2, .per_node = 4, .inside = across, .across = inside};
  EXPECT_DOUBLE_EQ(all_reduce_s(slow_inside, 8e9), ring_all_reduce_s(8, 8e9, inside));
  const RankGroup one_each{.nodes = 4, .per_node = 1, .inside = inside, .across = across};
  EXPECT_DOUBLE_EQ(reduce_scatter_s(one_each, 8e9), reduce_scatter_s(4, 8e9, across));
  EXPECT_EQ(all_reduce_s({.nodes = 1, .per_node = 1, .inside = inside, .across = across}, 8e9),
            0.0);
}

}  // namespace
}  // namespace contexture::parallel
