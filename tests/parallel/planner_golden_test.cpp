// The planner's golden table: ten nodes, three devices, objective = largest stage time + beta *
// forward bytes across the cuts. A wire pays once per consuming stage. Values by brute force over
// 3^10 assignments.
#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/partition.h"
#include "small_graphs.h"

namespace contexture::parallel {
namespace {

PartitionOptions golden_options(double beta, Partitioner partitioner) {
  return {.partitioner = partitioner,
          .num_devices = 3,
          .sum_weight = 0.0,
          .max_weight = 1.0,
          .byte_weight = beta};
}

Plan solve(const Trace& trace, double beta, Partitioner partitioner) {
  return partition(trace, golden_options(beta, partitioner));
}

// Names of the blocks of each stage, as "Q,P / R / ...".
std::string stages_text(const Trace& trace, const Plan& plan) {
  std::string text;
  for (const StageCost& stage : plan.stages) {
    if (!text.empty()) text += " / ";
    for (size_t i = 0; i < stage.blocks.size(); ++i)
      text += (i ? "," : "") + trace.blocks[stage.blocks[i]].name;
  }
  return text;
}

const std::vector<int> kLate = {5, 6}, kEverySecond = {2, 4, 6}, kAll = {1, 2, 3, 4, 5, 6};
constexpr double kRounding = 1e-9;  // sums of a few doubles

struct Row {
  const std::vector<int>* layers;
  double beta, blind, linear, exact;
};
const Row kTable[] = {
    {&kLate, .02, 11.12, 9.10, 9.10},          {&kLate, .05, 17.30, 12.25, 9.50},
    {&kEverySecond, .02, 11.12, 11.10, 10.18}, {&kEverySecond, .05, 17.30, 14.30, 13.45},
    {&kAll, .02, 11.12, 11.10, 11.10},         {&kAll, .05, 17.30, 14.30, 14.30}};

TEST(PlannerGolden, ObjectivesOfBlindLinearAndExactCutsMatchTheTable) {
  for (const Row& row : kTable) {
    const Trace trace = ten_nodes(*row.layers);
    const std::string where =
        std::to_string(row.layers->size()) + " layers, beta " + std::to_string(row.beta);
    EXPECT_NEAR(blind_plan(trace, golden_options(row.beta, Partitioner::kLinear)).objective,
                row.blind, kRounding)
        << where;
    EXPECT_NEAR(solve(trace, row.beta, Partitioner::kLinear).objective, row.linear, kRounding)
        << where;
    const Plan exact = solve(trace, row.beta, Partitioner::kExact);
    EXPECT_NEAR(exact.objective, row.exact, kRounding) << where;
    EXPECT_TRUE(exact.is_exact);
    EXPECT_EQ(exact.lower_bound, exact.objective);
    EXPECT_NEAR(exact.blind_objective, row.blind, kRounding) << where;
    EXPECT_NEAR(brute_force(trace, golden_options(row.beta, Partitioner::kExact)).objective,
                row.exact, kRounding)
        << where;
  }
}

TEST(PlannerGolden, TheBlindCutIsAfterNodes2And6With206Bytes) {
  for (const auto* layers : {&kLate, &kEverySecond, &kAll}) {
    const Plan plan = blind_plan(ten_nodes(*layers), golden_options(.02, Partitioner::kLinear));
    EXPECT_EQ(plan.max_s, 7);
    EXPECT_EQ(plan.forward_bytes, 206);
    EXPECT_EQ(plan.stage_of_block, (std::vector<int>{0, 0, 1, 1, 1, 1, 2, 2, 2, 2}));
  }
}

TEST(PlannerGolden, CountingEachReaderChargesTheBlindCut306And406And706Bytes) {
  const PartitionOptions options = golden_options(.02, Partitioner::kLinear);
  EXPECT_EQ(blind_plan(ten_nodes(kLate), options).forward_bytes_per_edge, 306);
  EXPECT_EQ(blind_plan(ten_nodes(kEverySecond), options).forward_bytes_per_edge, 406);
  EXPECT_EQ(blind_plan(ten_nodes(kAll), options).forward_bytes_per_edge, 706);
}

TEST(PlannerGolden, LinearCutsKnowingTheBytesAreThoseOfTheTable) {
  const Trace late = ten_nodes(kLate), second = ten_nodes(kEverySecond);
  const Plan cheap = solve(late, .02, Partitioner::kLinear);
  EXPECT_EQ(stages_text(late, cheap), "Q,P,R / L1,L2,L3 / L4,L5,L6,H");  // cuts 3, 6
  EXPECT_EQ(cheap.max_s, 7);
  EXPECT_EQ(cheap.forward_bytes, 105);
  EXPECT_EQ(stages_text(second, solve(second, .05, Partitioner::kLinear)),
            "Q / P,R,L1,L2 / L3,L4,L5,L6,H");  // cuts 1, 5
}

TEST(PlannerGolden, ExactPutsTheContextEncoderWhereItsStatesAreRead) {
  const Trace late = ten_nodes(kLate), second = ten_nodes(kEverySecond), all = ten_nodes(kAll);
  const Plan late_plan = solve(late, .05, Partitioner::kExact);
  EXPECT_EQ(late_plan.max_s, 9);
  EXPECT_EQ(late_plan.forward_bytes, 10);
  EXPECT_EQ(stages_text(late, late_plan), "Q,L1,L2,L3,L4 / P,R,L5,L6 / H");
  const Plan second_plan = solve(second, .02, Partitioner::kExact);
  EXPECT_EQ(second_plan.max_s, 8);
  EXPECT_EQ(second_plan.forward_bytes, 109);
  EXPECT_EQ(stages_text(second, second_plan), "Q,L1 / P,L2,L3 / R,L4,L5,L6,H");
  const Plan all_plan = solve(all, .05, Partitioner::kExact);
  EXPECT_EQ(all_plan.max_s, 9);
  EXPECT_EQ(all_plan.forward_bytes, 106);
}

TEST(PlannerGolden, SaysThatThereIsNoGainOnlyWhereThereIsNone) {
  const Plan none = solve(ten_nodes(kAll), .02, Partitioner::kExact);  // 11.10 against 11.12
  EXPECT_TRUE(none.no_gain);
  EXPECT_EQ(none.remark,
            "No gain: knowing the contexts saves 0.18 % over a cut that only balances time (11.1 "
            "against 11.12).");
  const Plan gain = solve(ten_nodes(kLate), .05, Partitioner::kExact);
  EXPECT_FALSE(gain.no_gain);
  EXPECT_EQ(gain.remark,
            "45.1 % below a cut that only balances time (9.5 against 17.3), with 10 bytes between "
            "stages against 206 bytes.");
}

}  // namespace
}  // namespace contexture::parallel
