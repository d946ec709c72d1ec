// The planner on small made-up models: closed forms of time and memory, and a search that leaves
// nothing out.
#include "parallel/planner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/error.h"
#include "core/json.h"
#include "expect_error.h"
#include "parallel/plan_report.h"
#include "planner_models.h"

namespace contexture::parallel {
namespace {

TEST(Planner, EqualStagesIdleAsTheClosedFormsSay) {
  Planner planner(chain_of({}, 8), machines(1, 4));
  Layout layout{.pp = 4, .microbatches = 8};
  for (const auto& [schedule, idle] :
       {std::pair{"gpipe", 3.0 / 11}, {"1f1b", 3.0 / 11}, {"zb_h1", 1.0 / 9}}) {
    layout.schedule = schedule;
    const LayoutPlan plan = planner.price(layout);
    EXPECT_NEAR(plan.idle, idle, 1e-12) << schedule;  // double rounding
    EXPECT_NEAR(plan.step_s, 8 * 2 * 3 / (1 - idle), 1e-9)
        << schedule;  // eight microbatches, two blocks a rank, three seconds each
  }
  layout.schedule = "interleaved";
  layout.chunks = 2;
  EXPECT_NEAR(planner.price(layout).idle, .1579, 5e-5);  // of docs/parallel.md, four digits
}

TEST(Planner, AShardedIndexIsOnAllRanksAndAWholeOneOnEachReplicasFirst) {
  PlannedModel model = chain_of({}, 8);
  model.index_bytes = 800;
  for (const bool sharded : {true, false}) {
    model.index_sharded = sharded;
    Planner planner(model, machines(1, 4));
    const LayoutPlan plan = planner.price({.dp = 2, .pp = 2, .microbatches = 4});
    ASSERT_EQ(plan.memory.size(), 2u);
    EXPECT_EQ(plan.memory[0].index, sharded ? 200 : 800);
    EXPECT_EQ(plan.memory[1].index, sharded ? 200 : 0);
  }
}

TEST(Planner, StatesTakeTheBytesOfEachZeroStage) {
  constexpr double kParameters = 8 * 50.0;  // 100 bytes a block
  for (const bool bf16 : {true, false}) {
    PlannedModel model = chain_of({.parameter_bytes = bf16 ? 100 : 200}, 8);
    model.weight_bytes = bf16 ? 2 : 4;
    Planner planner(model, machines(1, 4));
    for (const double n : {1.0, 4.0}) {
      const double per_parameter[] = {bf16 ? 18 : 16.0, bf16 ? 6 + 12 / n : 8 + 8 / n,
                                      bf16 ? 2 + 16 / n : 4 + 12 / n, (bf16 ? 18 : 16) / n};
      for (int zero = 0; zero <= 3; ++zero) {
        const LayoutPlan plan = planner.price({.dp = static_cast<int>(n), .zero = zero});
        EXPECT_DOUBLE_EQ(plan.memory[0].states(), per_parameter[zero] * kParameters)
            << "ZeRO " << zero << " of " << n;
      }
    }
  }
}

TEST(Planner, ActivationsAreThoseInFlight) {
  Planner planner(chain_of({.activation_bytes = 10, .wire_bytes = 3}, 8), machines(1, 4));
  for (const auto& [schedule, counts] :
       {std::pair{"gpipe", std::vector<int>{8, 8, 8, 8}}, {"1f1b", std::vector<int>{4, 3, 2, 1}}}) {
    const LayoutPlan plan = planner.price({.pp = 4, .schedule = schedule, .microbatches = 8});
    for (int r = 0; r < 4; ++r)
      EXPECT_DOUBLE_EQ(plan.memory[r].activations, counts[r] * (2 * 10 + (r > 0 ? 3 : 0)))
          << schedule << " rank " << r;
  }
}

TEST(Planner, RecomputedBlocksKeepTheirOutputsAndRunForwardAgain) {
  PlannedModel model = chain_of({.activation_bytes = 10, .wire_bytes = 3}, 2);
  Planner planner(model, machines(1, 1));
  const LayoutPlan plan = planner.price({.microbatches = 2, .recompute = {"layer.1"}});
  EXPECT_DOUBLE_EQ(plan.memory[0].activations, 7 * 10 + 3);
  EXPECT_DOUBLE_EQ(
      plan.memory[0].working,
      6.5);  // the last layer's gradients; when layer.1 runs again, the others have gone
  EXPECT_DOUBLE_EQ(plan.step_s, 2 * (8 * 3 + 1));
  EXPECT_DOUBLE_EQ(plan.recomputed_flops, 2e12);
  EXPECT_DOUBLE_EQ(plan.executed_flops, 2 * 8 * 3e12);
  EXPECT_DOUBLE_EQ(plan.mfu, 48.0 / 50.0);
}

TEST(Planner, BytesAreCountedOnTheLinksThatCarryThem) {
  // Two nodes of two: pipeline ranks 0 and 1 inside, 2 and 3 on the other node.
  Cluster cluster = machines(2, 2);
  cluster.across = {.latency_s = 0.0, .s_per_byte = 1e-9};
  Planner planner(chain_of({.parameter_bytes = 100, .wire_bytes = 5}, 8), cluster);
  const LayoutPlan pipeline = planner.price({.pp = 4, .microbatches = 8});
  EXPECT_DOUBLE_EQ(pipeline.inside.pipeline, 8 * 2 * 2 * 5);  // two boundaries, there and back
  EXPECT_DOUBLE_EQ(pipeline.across.pipeline, 8 * 2 * 5);
  EXPECT_EQ(
      pipeline.across.data + pipeline.inside.data + pipeline.inside.tensor + pipeline.across.tensor,
      0.0);
  // Four replicas in a ring: two of its four hops lead to the other node. 400 parameters, fp32
  // gradients.
  const LayoutPlan replicas = planner.price({.dp = 4, .microbatches = 2});
  EXPECT_DOUBLE_EQ(replicas.across.data, 2 * .75 * 400 * 4 * 4 / 2);
  EXPECT_DOUBLE_EQ(replicas.inside.data, replicas.across.data);
}

TEST(Planner, OnlyWhatOutlastsBackwardOfTheReductionCounts) {
  Cluster cluster = machines(1, 2);
  PlannedModel model = chain_of({.blocks = 1, .parameter_bytes = 2000}, 2);
  model.bucket_bytes = 400;  // a tenth of the gradients
  for (const double seconds : {1.0, 10.0}) {
    cluster.inside = {.latency_s = 0.0,
                      .s_per_byte = seconds / 4000};  // of a ring all-reduce of 4000 bytes over two
    const LayoutPlan plan = Planner(model, cluster).price({.dp = 2});
    EXPECT_DOUBLE_EQ(plan.reduce_s, seconds);
    EXPECT_NEAR(plan.exposed_reduce_s, seconds == 1.0 ? 0.1 : 8.0,
                1e-12);  // the last bucket, or all but backward's two seconds
  }
  const LayoutPlan sharded = Planner(model, cluster).price({.dp = 2, .zero = 1});
  EXPECT_DOUBLE_EQ(sharded.reduce_s, 5.0);
  EXPECT_DOUBLE_EQ(sharded.publish_s, 2.5);  // values have half the bytes
}

TEST(Planner, TensorParallelRanksDivideWhatIsSplitAndWaitForSums) {
  PlannedModel model = chain_of({}, 1);
  const auto whole = model.trace;
  model.trace = [whole](int64_t n) {
    Trace trace = whole(n);
    for (TraceBlock& block : trace.blocks) {
      block.split_work = 0.5;
      block.forward_sums = block.backward_sums = 1;
      block.forward_sum_bytes = block.backward_sum_bytes = 1000;
    }
    return trace;
  };
  Cluster cluster = machines(1, 2);
  cluster.inside = {.latency_s = 0.0, .s_per_byte = 1e-3};  // an all-reduce over two takes a second
  const LayoutPlan plan = Planner(model, cluster).price({.tp = 2});
  // Three quarters of the work, and the forward's sums; the backward's travel while weights'
  // gradients are computed (0.75 of a second).
  EXPECT_DOUBLE_EQ(plan.step_s, 8 * (3 * 0.75 + 1 + 0.25));
  EXPECT_DOUBLE_EQ(plan.tensor_s, 8 * 1.25);
  EXPECT_DOUBLE_EQ(plan.inside.tensor, 8 * 2 * 1000 * 2);  // a ring sends each tensor once a rank
}

TEST(Planner, SpotMachinesSaveAtDalysInterval) {
  Cluster cluster = machines(1, 1);
  cluster.usd_per_gpu_hour = 3.6;
  cluster.spot_usd_per_gpu_hour = 1.8;
  cluster.spot_interruptions_per_hour = 1.0;
  cluster.storage_bytes_per_s = 8 * 50 * 12 / 18.0;  // 400 parameters in 12 bytes: 18 seconds
  PlannedModel model = chain_of({.parameter_bytes = 100}, 1);
  model.steps = 1000;
  const LayoutPlan plan = Planner(model, cluster).price({});
  EXPECT_DOUBLE_EQ(*plan.usd_per_1k_samples, 24.0);  // 24 s a sample at 0.001 $/s
  ASSERT_TRUE(plan.spot);
  EXPECT_NEAR(plan.spot->young_s, 360.0, 1e-9);  // sqrt(2 * 18 * 3600); double rounding
  EXPECT_NEAR(plan.spot->checkpoint_every_s, 360.0 * (1 + .05 / 3 + .0025 / 9) - 18, 1e-9);
  EXPECT_NEAR(plan.spot->interruptions, 24000 * (1 + plan.spot->overhead) / 3600, 1e-9);
  EXPECT_NEAR(plan.spot->usd_per_1k_samples, 12.0 * (1 + plan.spot->overhead), 1e-9);
}

// Uneven blocks with side branches, shared and split parameters, sums and links of any price.
PlannedModel random_model(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto between = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  Trace one;
  one.timed = true;
  const int n = between(5, 9);
  for (int p = 0; p < n; ++p)
    one.parameters.push_back({concat("p", p), 100 * between(1, 20), between(0, 1) == 1});
  for (int b = 0; b < n; ++b) {
    TraceBlock block = small_block(concat("b", b), between(1, 6) * 1e-3, 50 * between(0, 20));
    block.input_grad_s = between(1, 6) * 1e-3;
    block.weight_grad_s = between(0, 6) * 1e-3;
    block.forward_flops = 1e9;
    block.parameters = {b};
    if (b > 0 && between(0, 3) == 0) block.parameters = {0, b};
    block.split_work = between(0, 2) / 2.0;
    block.split_activations = between(0, 2) / 2.0;
    block.forward_sums = between(0, 2);
    block.forward_sum_bytes = 100 * block.forward_sums;
    one.blocks.push_back(block);
    if (b == 0 || between(0, 4) == 0) continue;  // a branch of its own begins
    one.wires.push_back(small_wire(concat("w", b), 100 * between(1, 10), b - 1, {b}));
  }
  one.wires.push_back(small_wire("skip", 700, 0, {n / 2, n - 1}));
  // Some blocks run in token slices, unless they read what needs all slices.
  std::vector<bool> after(n, false);
  for (int b = 0; b < n; ++b) {
    bool reads_slices = false;
    for (const TraceWire& wire : one.wires) {
      if (std::find(wire.readers.begin(), wire.readers.end(), b) == wire.readers.end()) continue;
      after[b] = after[b] || after[wire.producer];
      reads_slices = reads_slices || one.blocks[wire.producer].rows > 0;
    }
    if (!after[b] && between(0, 1) == 1) {
      one.blocks[b].rows = 512;
      one.blocks[b].pair_work = between(0, 2) / 4.0;
    } else {
      after[b] = after[b] || reads_slices;
    }
  }
  if (seed % 3 == 1) {  // what the skip's readers get is about documents
    one.wires.back().sharing = Sharing::kDocument;
    one.wires.back().distinct_ratio = 0.5;
  }
  PlannedModel model;
  model.slice_s = between(0, 2) * 1e-4;
  model.offload = seed % 5 == 0;
  model.offload_in_file = seed % 2 == 0;
  model.batch_size = 16;
  model.trace = [one](int64_t inputs) {
    Trace trace = one;
    for (TraceBlock& block : trace.blocks) {
      for (double* s : {&block.forward_s, &block.input_grad_s, &block.weight_grad_s})
        *s *= static_cast<double>(inputs);
      block.activation_bytes *= inputs;
      block.forward_sum_bytes *= inputs;
    }
    for (TraceWire& wire : trace.wires) wire.bytes *= inputs;
    return trace;
  };
  model.forward_work = {{.name = "lookup", .wires = {"w1"}},
                        {.name = "again", .wires = {"skip"}, .only_when_cut = true}};
  return model;
}

TEST(Planner, PrunedSearchFindsWhatPricingEverythingFinds) {
  int sliced = 0, planned = 0, grouped = 0, reordered = 0;  // of the answers
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    Cluster cluster = machines(2, seed % 2 == 0 ? 2 : 4, seed % 3 == 0 ? 60e3 : 1e9);
    cluster.inside = {.latency_s = 1e-6, .s_per_byte = 1e-8};
    cluster.across = {.latency_s = 1e-5, .s_per_byte = seed % 4 == 0 ? 1e-5 : 1e-7};
    const double distinct = seed % 2 == 0 ? 0.0 : 0.2;
    Planner pruned(random_model(seed), cluster, {.distinct_ratio = distinct}),
        exhaustive(random_model(seed), cluster, {.prune = false, .distinct_ratio = distinct});
    const std::vector<LayoutPlan> some = pruned.search({}, 4), all = exhaustive.search({}, 4);
    ASSERT_EQ(some.size(), all.size());
    for (size_t i = 0; i < all.size(); ++i) EXPECT_DOUBLE_EQ(some[i].step_s, all[i].step_s);
    EXPECT_LE(pruned.layouts_priced(), exhaustive.layouts_priced());
    EXPECT_EQ(exhaustive.layouts_priced(), exhaustive.layouts_possible());
    for (const LayoutPlan& plan : all) {
      sliced += plan.layout.token_slices > 1 ? 1 : 0;
      planned += plan.layout.token_slices == 0 ? 1 : 0;
      grouped += plan.layout.assembly == "grouped" ? 1 : 0;
      reordered += plan.layout.order != "dp,pp,tp" ? 1 : 0;
    }
  }
  for (const int chosen : {sliced, planned, grouped, reordered}) EXPECT_GT(chosen, 0);
}

TEST(Planner, PlansNeverExceedTheMemoryThatMayBeUsed) {
  const PlannedModel model = chain_of({.parameter_bytes = 200, .activation_bytes = 100}, 8);
  // 800 parameters of 18 bytes and 8 x 100 bytes an input do not fit 6000 bytes: a pipeline or
  // shares must do.
  Planner planner(model, machines(1, 4, 6000 / 0.9));
  const std::vector<LayoutPlan> plans = planner.search({}, 20);
  ASSERT_FALSE(plans.empty());
  for (const LayoutPlan& plan : plans)
    EXPECT_LE(plan.memory_bytes, 6000 * (1 + 1e-12)) << in_words(plan.layout);
}

TEST(Planner, WhatDoesNotFitIsToldWithTheLeastThatWould) {
  const PlannedModel model = chain_of({.parameter_bytes = 2000}, 64);
  Planner planner(model, machines(1, 2, 30000));
  EXPECT_TRUE(planner.search({}, 1).empty());
  EXPECT_GT(planner.leanest({}).memory_bytes, planner.usable_bytes());
  const int nodes = planner.nodes_that_fit({});
  ASSERT_GT(nodes, 1);
  EXPECT_FALSE(Planner(model, machines(nodes, 2, 30000)).search({}, 1).empty());
  EXPECT_TRUE(Planner(model, machines(nodes / 2, 2, 30000)).search({}, 1).empty());
}

TEST(Planner, RefusesLayoutsThatContradictThemselves) {
  Planner planner(chain_of({}, 8), machines(2, 4));
  EXPECT_TRUE(says(message_of<UsageError>([&] { planner.search({.dp = 3}, 1); }),
                   "8 GPUs, which parallel.dp=3 do not divide"));
  EXPECT_TRUE(says(message_of<UsageError>([&] { planner.search({.dp = 2, .pp = 2, .tp = 1}, 1); }),
                   "make 4 ranks, but the cluster has 8 GPUs"));
  EXPECT_TRUE(says(message_of<UsageError>([&] { planner.search({.schedule = "list"}, 1); }),
                   "parallel.schedule=list cannot be planned"));
  EXPECT_TRUE(
      says(message_of<UsageError>([&] { planner.search({.chunks = 2, .schedule = "1f1b"}, 1); }),
           "needs parallel.schedule=interleaved"));
  EXPECT_TRUE(says(message_of<UsageError>([&] {
                     Planner(chain_of({.blocks = 2}, 8), machines(2, 4)).search({.pp = 8}, 1);
                   }),
                   "2 blocks do not fill parallel.pp=8"));
}

TEST(Planner, ATimelineHasEveryActionOfTheSchedule) {
  Planner planner(chain_of({}, 8), machines(1, 4));
  const LayoutPlan plan = planner.price({.pp = 4, .schedule = "zb_h1", .microbatches = 8});
  const Json trace = chrome_trace(plan);
  int actions = 0;
  double end = 0.0;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++actions;
    end = std::max(end, event["ts"].get<double>() + event["dur"].get<double>());
  }
  EXPECT_EQ(actions, 4 * 8 * 3);
  EXPECT_NEAR(end, plan.pipeline_s * 1e6, 1e-3);  // double rounding of microseconds
}

}  // namespace
}  // namespace contexture::parallel
