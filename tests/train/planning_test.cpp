// What the planner is told of a run is what tracing it says, and a plan's settings run as planned.
#include "train/planning.h"

#include <gtest/gtest.h>

#include "core/config.h"
#include "core/error.h"
#include "tiny_world.h"
#include "train/model_trace.h"

namespace contexture::train {
namespace {

TEST(PlannedModel, TracesOfAnySizeAreThoseOfSuchAMicrobatch) {
  const TinyWorld world;
  RunConfig config = world.config("bf16");
  config.data.group_size = 2;
  const parallel::PlannedModel planned = planned_model(config, {});
  const model::Model shapes(config.model);
  for (const int64_t n : {1, 2, 3, 6}) {
    SCOPED_TRACE(n);
    RunConfig exactly = config;
    exactly.train.batch_size = n;
    exactly.parallel.dp = exactly.parallel.microbatches = 1;
    const parallel::Trace direct = trace_model(exactly, shapes), scaled = planned.trace(n);
    ASSERT_EQ(direct.blocks.size(), scaled.blocks.size());
    EXPECT_EQ(direct.inputs, scaled.inputs);
    for (size_t b = 0; b < direct.blocks.size(); ++b) {
      const parallel::TraceBlock &a = direct.blocks[b], &c = scaled.blocks[b];
      EXPECT_NEAR(a.forward_flops, c.forward_flops, 1e-9 * a.forward_flops)
          << a.name;  // double rounding
      EXPECT_EQ(a.activation_bytes, c.activation_bytes) << a.name;
      EXPECT_EQ(a.forward_sum_bytes, c.forward_sum_bytes) << a.name;
      EXPECT_EQ(a.backward_sum_bytes, c.backward_sum_bytes) << a.name;
      EXPECT_EQ(a.parameters, c.parameters);
    }
    for (size_t w = 0; w < direct.wires.size(); ++w) {
      if (direct.wires[w].readers.empty())
        continue;  // a loss is one number whatever the size, and goes nowhere
      EXPECT_NEAR(direct.wires[w].forward_bytes(), scaled.wires[w].forward_bytes(), 1.0)
          << direct.wires[w].name;  // bytes are whole
      EXPECT_DOUBLE_EQ(direct.wires[w].distinct_ratio, scaled.wires[w].distinct_ratio)
          << direct.wires[w].name;
    }
  }
}

// Layers are shared out whole over tensor-parallel ranks; embeddings and pooling are repeated.
TEST(PlannedModel, KnowsWhatTensorParallelismDivides) {
  const TinyWorld world;
  const RunConfig config = world.config("fp32");
  const parallel::Trace trace = planned_model(config, {}).trace(2);
  const model::ModelConfig& c = config.model;
  for (const parallel::TraceBlock& block : trace.blocks) {
    if (block.name == "doc.layer.0") {
      EXPECT_EQ(block.split_work, 1.0);
      EXPECT_EQ(block.forward_sums, 2);  // attention, feed-forward
      EXPECT_EQ(block.backward_sums, 2);
      EXPECT_EQ(block.forward_sum_bytes, block.backward_sum_bytes);
      EXPECT_EQ(block.forward_sum_bytes % (2 * 4 * c.width), 0);  // fp32 rows
    }
    if (block.name == "doc.embed" || block.name == "doc.pool") {
      EXPECT_EQ(block.split_work, 0.0) << block.name;
    }
    if (block.name == "dec.layer.0") {
      EXPECT_EQ(block.forward_sums, 3);  // cross-attention, too
    }
  }
}

TEST(PlannedModel, APlansSettingsPlaceTheBlocksAsPlanned) {
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  config.train.batch_size = 8;
  parallel::Planner planner(planned_model(config, {}), parallel::default_cluster(1, 4));
  for (const auto& [schedule, chunks] : {std::pair{"1f1b", 1}, {"zb_h1", 1}, {"interleaved", 2}}) {
    SCOPED_TRACE(schedule);
    const parallel::LayoutPlan plan = planner.price(
        {.dp = 2, .pp = 2, .schedule = schedule, .chunks = chunks, .microbatches = 4, .zero = 1});
    RunConfig run = config;
    run.parallel.recompute = {"doc"};  // what a plan prints replaces what was there
    for (const std::string& setting : parallel::settings_of(plan)) apply_set(run, setting);
    run.validate();
    EXPECT_EQ(run.parallel.dp, 2);
    EXPECT_EQ(run.parallel.zero, 1);
    EXPECT_TRUE(run.parallel.recompute.empty());
    parallel::Groups groups;
    groups.pp = parallel::make_recording_communicator(0, 2);
    const model::Model shapes(config.model);
    const parallel::Placement placement = placement_of(run, shapes, groups);
    EXPECT_EQ(placement.stage_of, plan.cut.stage_of_block);
    EXPECT_EQ(placement.graph.rank_of, plan.cut.device_of_stage);
  }
}

TEST(PlannedModel, RefusesStagesThatTheModelDoesNotHave) {
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  config.parallel.pp = 2;
  parallel::Groups groups;
  groups.pp = parallel::make_recording_communicator(0, 2);
  const model::Model shapes(config.model);
  config.parallel.stages = {0, 1};
  EXPECT_THROW(placement_of(config, shapes, groups), UsageError);
  config.parallel.stages.assign(shapes.blocks().size(), 0);
  config.parallel.stages.back() = 2;
  EXPECT_THROW(placement_of(config, shapes, groups), UsageError);
}

TEST(IndexBytes, FollowTheFactoryString) {
  EXPECT_EQ(index_bytes_per_vector("Flat", 512), 4 * 512 + 8);
  EXPECT_EQ(index_bytes_per_vector("IVF4096,SQ8", 512), 512 + 8 + 4 * 512);
  EXPECT_EQ(index_bytes_per_vector("OPQ64_256,IVF4096,PQ64x8", 512), 64 + 8 + 4 * 512);
}

}  // namespace
}  // namespace contexture::train
