#include "parallel/chain_planners.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "core/error.h"
#include "parallel/partition.h"
#include "small_graphs.h"

namespace contexture::parallel {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(BalanceChain, MatchesTheGoldenCuts) {
  const std::vector<double> costs = {3, 1, 4, 1, 5, 9, 2, 6};
  EXPECT_EQ(balance_chain(costs, 3), (std::vector<int>{0, 4, 6, 8}));  // sums 9, 14, 8
  EXPECT_EQ(balance_chain(costs, 8), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_THROW(balance_chain(costs, 9), UsageError);
}

TEST(DHondt, MatchesTheGoldenSeats) {
  const std::vector<double> costs = {.10, .45, .40, .05};
  EXPECT_EQ(dhondt(costs, 4),
            (std::vector<int>{1, 2, 1, 2}));  // encoder, decoder, encoder, decoder
  const std::vector<int> order = dhondt(costs, 8);
  std::vector<int> seats(4, 0);
  for (const int party : order) ++seats[party];
  EXPECT_EQ(seats, (std::vector<int>{1, 4, 3, 0}));
}

Trace golden_tree() {
  return small_chain({{"emb", .10},
                      {"enc.0", .1125},
                      {"enc.1", .1125},
                      {"enc.2", .1125},
                      {"enc.3", .1125},
                      {"dec.0", .10},
                      {"dec.1", .10},
                      {"dec.2", .10},
                      {"dec.3", .10},
                      {"head", .05}});
}

std::vector<int> devices_of(const Plan& plan) {
  std::vector<int> devices;
  for (const int stage : plan.stage_of_block) devices.push_back(plan.device_of_stage[stage]);
  return devices;
}

TEST(TreePartition, PlacesTheGoldenTreeAndVisitsDeviceZeroAgain) {
  const Plan plan = partition(
      golden_tree(), {.partitioner = Partitioner::kTree, .num_devices = 4, .memory_weight = 0.0});
  EXPECT_EQ(devices_of(plan), (std::vector<int>{0, 0, 0, 2, 2, 1, 1, 3, 3, 0}));
  EXPECT_EQ(plan.device_of_stage, (std::vector<int>{0, 2, 1, 3, 0}));
}

TEST(TreePartition, CollapsesModulesThatShareAParameter) {
  Trace trace = golden_tree();
  trace.parameters = {{"tied", 100}};
  trace.blocks[0].parameters =
      trace.blocks[9].parameters = {0};  // embedding and head: .15 together
  const Plan plan =
      partition(trace, {.partitioner = Partitioner::kTree, .num_devices = 8, .memory_weight = 0.0});
  EXPECT_EQ(devices_of(plan).front(), devices_of(plan).back());
  EXPECT_TRUE(plan.parameters[0].replica_stages.empty());
}

TEST(TreePartition, WeighsMemoryAgainstTime) {
  // Time asks for 3 | 1, memory for 1 | 3.
  Trace trace = small_chain({{"a", 1}, {"b", 1}, {"c", 1}, {"d", 3}});
  trace.blocks[0].resident_bytes = 300;
  for (int b = 1; b < 4; ++b) trace.blocks[b].resident_bytes = 100;
  PartitionOptions options{
      .partitioner = Partitioner::kTree, .num_devices = 2, .memory_weight = 0.0};
  EXPECT_EQ(devices_of(partition(trace, options)), (std::vector<int>{0, 0, 0, 1}));
  options.memory_weight = 1.0;
  EXPECT_EQ(devices_of(partition(trace, options)), (std::vector<int>{0, 1, 1, 1}));
}

TEST(Baselines, CutByNumberByParametersAndByEdges) {
  Trace trace = small_chain({{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}}, 8);
  trace.parameters = {{"pa", 100}, {"pe", 10}};
  trace.blocks[0].parameters = {0};
  trace.blocks[4].parameters = {1};
  PartitionOptions options{
      .partitioner = Partitioner::kUniform, .num_devices = 2, .ingress = {{0, 1}}};
  EXPECT_EQ(partition(trace, options).stage_of_block, (std::vector<int>{0, 0, 0, 1, 1}));
  options.partitioner = Partitioner::kParameters;
  EXPECT_EQ(partition(trace, options).stage_of_block, (std::vector<int>{0, 1, 1, 1, 1}));
  trace.wires[3].bytes = 1;  // d -> e is the only cheap place
  options.partitioner = Partitioner::kPipedream;
  EXPECT_EQ(partition(trace, options).stage_of_block, (std::vector<int>{0, 0, 0, 0, 1}));
}

// All ways to divide [0, n) into stages whose widths sum to the devices.
void for_all_divisions(int num_layers, int num_devices, const std::vector<int>& widths,
                       std::vector<ReplicatedStage>& stages, const std::function<void()>& visit) {
  const int begin = stages.empty() ? 0 : stages.back().end;
  if (begin == num_layers && num_devices == 0) visit();
  for (int end = begin + 1; end <= num_layers; ++end) {
    for (const int width : widths) {
      if (width > num_devices) continue;
      stages.push_back({begin, end, width});
      for_all_divisions(num_layers, num_devices - width, widths, stages, visit);
      stages.pop_back();
    }
  }
}

TEST(PipeDream, FindsTheBestReplicatedDivision) {
  std::mt19937 engine(1);
  const auto random = [&](int low, int high) {
    return static_cast<double>(std::uniform_int_distribution<int>(low, high)(engine));
  };
  for (int graph = 0; graph < 20; ++graph) {
    std::vector<ChainLayer> layers;
    for (int i = 0; i < 5; ++i) layers.push_back({random(1, 9), random(0, 9), random(0, 9)});
    const double bandwidth = random(1, 8);
    const ChainPlan plan = pipedream(layers, 4, bandwidth, /*replicate=*/true);
    double best = kInfinity;
    std::vector<ReplicatedStage> stages;
    for_all_divisions(5, 4, {1, 2, 3, 4}, stages, [&] {
      double slowest = 0;
      for (const ReplicatedStage& stage : stages) {
        double compute = 0, weights = 0;
        for (int i = stage.begin; i < stage.end; ++i)
          compute += layers[i].compute_s, weights += layers[i].weight_bytes;
        slowest = std::max({slowest, compute / stage.replicas,
                            4 * (stage.replicas - 1) * weights / (stage.replicas * bandwidth)});
        if (stage.begin > 0)
          slowest = std::max(slowest, 2 * layers[stage.begin - 1].activation_bytes / bandwidth);
      }
      best = std::min(best, slowest);
    });
    EXPECT_NEAR(plan.slowest_s, best, 1e-12 * best);  // the same operations
  }
}

TEST(Alpa, FindsTheBestDivisionAndRefusesWhatDoesNotFit) {
  std::mt19937 engine(2);
  for (int graph = 0; graph < 20; ++graph) {
    std::vector<double> seconds;
    for (int i = 0; i < 6; ++i) seconds.push_back(std::uniform_int_distribution<int>(1, 9)(engine));
    const auto time = [&](int begin, int end, int width) {
      double sum = 0;
      for (int i = begin; i < end; ++i) sum += seconds[i];
      return sum / width + 0.3 * (width - 1);  // tensor parallelism pays
    };
    for (const int microbatches : {1, 3, 16}) {
      const ChainPlan plan = alpa(6, 4, {1, 2, 4}, microbatches, time);
      double best = kInfinity;
      std::vector<ReplicatedStage> stages;
      for_all_divisions(6, 4, {1, 2, 4}, stages, [&] {
        double sum = 0, slowest = 0;
        for (const ReplicatedStage& stage : stages) {
          const double t = time(stage.begin, stage.end, stage.replicas);
          sum += t;
          slowest = std::max(slowest, t);
        }
        best = std::min(best, sum + (microbatches - 1) * slowest);
      });
      EXPECT_NEAR(plan.total_s, best, 1e-12 * best);  // sums in another order
    }
  }
  EXPECT_THROW(alpa(2, 2, {1}, 1, [](int, int, int) { return kInfinity; }), UserError);
}

}  // namespace
}  // namespace contexture::parallel
