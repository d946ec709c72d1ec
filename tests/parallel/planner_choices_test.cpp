// Token slices, the mesh's order and the assembly of batches as the planner prices and chooses
// them: cases with a clear right answer, each compared with the best of all.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/error.h"
#include "core/json.h"
#include "expect_error.h"
#include "parallel/mesh.h"
#include "parallel/plan_report.h"
#include "planner_models.h"

namespace contexture::parallel {
namespace {

const std::vector<std::string> kOrders = {"dp,pp,tp", "dp,tp,pp", "pp,dp,tp",
                                          "pp,tp,dp", "tp,dp,pp", "tp,pp,dp"};
const std::vector<int64_t> kSlices = {1, 2, 4, 8, 16, 0};

// The best of all layouts of a mesh that fit, each by its own price.
LayoutPlan best_of_all(Planner& planner, const Layout& mesh) {
  const bool by_rows = planner.model().trace(1).blocks.back().rows > 0;
  std::optional<LayoutPlan> best;
  for (const std::string& order : kOrders) {
    for (const int64_t slices : kSlices) {
      for (const char* assembly : {"arrival", "grouped"}) {
        for (const auto& [schedule, chunks] :
             {std::pair{"1f1b", 1}, {"gpipe", 1}, {"zb_h1", 1}, {"interleaved", 2}}) {
          Layout layout = mesh;
          layout.order = order;
          layout.token_slices = slices;
          layout.assembly = assembly;
          layout.schedule = schedule;
          layout.chunks = chunks;
          if (slices != 1 && (mesh.pp == 1 || !by_rows || schedule[0] == 'z' || chunks > 1))
            continue;
          if (chunks > 1 && (mesh.pp == 1 || mesh.microbatches % mesh.pp != 0)) continue;
          LayoutPlan plan = planner.price(layout);
          if (plan.memory_bytes > planner.usable_bytes()) continue;
          if (!best || plan.step_s < best->step_s) best = std::move(plan);
        }
      }
    }
  }
  return std::move(*best);
}

// Blocks that run whole (a document's encoder), then a decoder's equal layers, which run by rows
// and of whose work this share compares pairs of them.
PlannedModel long_decoder(int whole_blocks, int layers, double pair_work) {
  PlannedModel model = chain_of({.blocks = whole_blocks + layers, .wire_bytes = 1000}, 1);
  const auto whole = model.trace;
  model.trace = [whole, whole_blocks, pair_work](int64_t n) {
    Trace trace = whole(n);
    for (size_t b = whole_blocks; b < trace.blocks.size(); ++b) {
      trace.blocks[b].rows = 4096;
      trace.blocks[b].pair_work = pair_work;
    }
    return trace;
  };
  return model;
}

FixedLayout fixed_mesh(int dp, int pp, int tp, int64_t microbatches) {
  FixedLayout fixed;
  fixed.dp = dp;
  fixed.pp = pp;
  fixed.tp = tp;
  fixed.microbatches = microbatches;
  fixed.zero = 0;
  fixed.recompute = std::vector<std::string>();
  return fixed;
}

TEST(PlannerSlices, TakeTheTimeOfTheirClosedForm) {
  // One microbatch through eight stages of one block each: the first runs whole, then seven layers,
  // each a second forward and two back. Of eight slices the last layer waits for six.
  PlannedModel model = long_decoder(1, 7, 0.0);
  model.slice_s = 0.0;
  Planner planner(model, machines(1, 8));
  EXPECT_NEAR(planner.price({.pp = 8}).step_s, 8 * 3, 1e-9);  // double rounding, here and below
  const LayoutPlan sliced = planner.price({.pp = 8, .token_slices = 8});
  EXPECT_NEAR(sliced.step_s, 3 + 3 * (1 + 6.0 / 8), 1e-9);
  EXPECT_EQ(sliced.slice_rows, std::vector<double>(8, 0.125));
  // Seven further slices of a layer cost slice_s forward and twice that back, and so does each of
  // the six that the last layer waits for.
  model.slice_s = 0.01;
  EXPECT_NEAR(Planner(model, machines(1, 8)).price({.pp = 8, .token_slices = 8}).step_s,
              3 + 3 * (1 + 6.0 / 8) + 3 * 0.01 * 13, 1e-9);
}

TEST(PlannerSlices, CostALatencyForEachMessage) {
  Cluster cluster = machines(1, 2);
  cluster.inside = {.latency_s = 0.5, .s_per_byte = 1e-3};
  PlannedModel model = long_decoder(1, 1, 0.0);
  model.slice_s = 0.0;
  // What is written whole goes over whole, however many slices read it: a latency and 1000 bytes.
  for (const int64_t slices : {1, 4})
    EXPECT_NEAR(Planner(model, cluster).price({.pp = 2, .token_slices = slices}).step_s,
                6 + 2 * 1.5, 1e-9);
  // What is written in slices in as many messages, for which the link is busy longer than the ranks
  // (which would be done in 5.25 s).
  model = long_decoder(0, 2, 0.0);
  model.slice_s = 0.0;
  EXPECT_NEAR(Planner(model, cluster).price({.pp = 2, .token_slices = 4}).pipeline_s,
              2 * (4 * 0.5 + 1.0), 1e-9);
  cluster.inside.latency_s = 0.25;
  EXPECT_NEAR(Planner(model, cluster).price({.pp = 2, .token_slices = 4}).pipeline_s,
              3 * 1.25 + 2 * 0.5, 1e-9);
}

TEST(PlannerSlices, LaterOnesTakeLongerWhereAttentionIsCausal) {
  PlannedModel model = long_decoder(1, 7, 1.0);
  model.slice_s = 1e-6;
  Planner planner(model, machines(1, 8));
  const LayoutPlan halves = planner.price({.pp = 8, .token_slices = 2});
  std::set<double> forwards;
  for (size_t part = 0; part < halves.step.slice_of.size(); ++part) {
    if (halves.step.slice_of[part] >= 0) forwards.insert(halves.step.times.forward[part]);
  }
  EXPECT_EQ(forwards, (std::set<double>{0.25, 0.75 + 1e-6}));  // of all pairs
  // Planned cuts give later slices fewer rows, and are faster than equal ones.
  const LayoutPlan planned = planner.price({.pp = 8, .token_slices = 0});
  ASSERT_GT(planned.slice_rows.size(), 1u);
  EXPECT_GT(planned.slice_rows.front(), planned.slice_rows.back());
  EXPECT_LT(planned.step_s, planner.price({.pp = 8, .token_slices = 8}).step_s);
}

TEST(PlannerSlices, WinForOneMicrobatchInADeepPipelineUnlessTheyCostTooMuch) {
  for (const double slice_s : {1e-3, 10.0}) {
    PlannedModel model = long_decoder(1, 15, 0.5);
    model.slice_s = slice_s;
    Planner planner(model, machines(1, 8));
    const std::vector<LayoutPlan> plans = planner.search(fixed_mesh(1, 8, 1, 1), 1);
    ASSERT_EQ(plans.size(), 1u);
    EXPECT_EQ(plans[0].layout.token_slices == 1, slice_s == 10.0) << in_words(plans[0].layout);
    EXPECT_DOUBLE_EQ(plans[0].step_s, best_of_all(planner, {.pp = 8}).step_s);
    // Planned cuts that leave one slice take as long as none: they are not what is said.
    FixedLayout fixed = fixed_mesh(1, 8, 1, 1);
    fixed.schedule = "1f1b";
    EXPECT_EQ(planner.search(fixed, 1)[0].layout.token_slices == 1, slice_s == 10.0);
    EXPECT_EQ(planner.price({.pp = 8, .token_slices = 0}).slice_rows.size() == 1, slice_s == 10.0);
  }
}

TEST(PlannerSlices, AreLeftAloneWhereTheRunOrTheUserSaysSo) {
  PlannedModel model = long_decoder(1, 15, 0.5);
  model.slice_s = 0.0;
  FixedLayout fixed = fixed_mesh(1, 8, 1, 1);
  fixed.token_slices = 4;
  EXPECT_EQ(Planner(model, machines(1, 8)).search(fixed, 1)[0].layout.token_slices, 4);
  fixed.pp = 1;
  fixed.tp = 8;
  EXPECT_TRUE(says(message_of<UsageError>([&] { Planner(model, machines(1, 8)).search(fixed, 1); }),
                   "parallel.token_slices=4 needs a pipeline"));
  fixed = fixed_mesh(1, 8, 1, 1);
  fixed.token_slices = 4;
  fixed.schedule = "zb_h1";
  EXPECT_TRUE(says(message_of<UsageError>([&] { Planner(model, machines(1, 8)).search(fixed, 1); }),
                   "parallel.token_slices=4 cannot be planned with parallel.schedule=zb_h1"));
  model.token_slices = false;
  fixed = fixed_mesh(1, 8, 1, 1);
  EXPECT_EQ(Planner(model, machines(1, 8)).search(fixed, 1)[0].layout.token_slices, 1);
  fixed.token_slices = 4;
  EXPECT_TRUE(says(message_of<UsageError>([&] { Planner(model, machines(1, 8)).search(fixed, 1); }),
                   "cannot be planned for this model"));
}

TEST(PlannerOrder, PutsTheHeaviestTrafficInsideNodes) {
  Cluster cluster = machines(2, 4);
  cluster.inside = {.latency_s = 0.0, .s_per_byte = 1e-9};
  cluster.across = {.latency_s = 0.0, .s_per_byte = 1e-6};
  for (const bool gradients : {true, false}) {
    SCOPED_TRACE(gradients);
    // Much to reduce and little between stages, or the reverse.
    Planner planner(chain_of({.parameter_bytes = gradients ? 4000000 : 4,
                              .wire_bytes = gradients ? 4 : 1000000},
                             16),
                    cluster);
    const std::vector<LayoutPlan> plans = planner.search(fixed_mesh(4, 2, 1, 4), 1);
    ASSERT_EQ(plans.size(), 1u);
    const Layout& best = plans[0].layout;
    const MeshLayout mesh(8, 4, 2, 1, best.order);
    EXPECT_EQ(mesh.crosses_nodes(Axis::kDp, 4), !gradients) << best.order;
    EXPECT_EQ(mesh.crosses_nodes(Axis::kPp, 4), gradients) << best.order;
    EXPECT_DOUBLE_EQ(plans[0].step_s,
                     best_of_all(planner, {.dp = 4, .pp = 2, .microbatches = 4}).step_s);
    FixedLayout fixed = fixed_mesh(4, 2, 1, 4);
    fixed.order = "tp,dp,pp";
    EXPECT_EQ(planner.search(fixed, 1)[0].layout.order, "tp,dp,pp");
  }
}

// An encoder of documents, ten times as long as the decoder of the inputs.
PlannedModel reader_of(int64_t batch_size) {
  PlannedModel model;
  model.batch_size = batch_size;
  model.trace = [](int64_t n) {
    Trace trace;
    trace.timed = true;
    trace.inputs = static_cast<double>(n);
    trace.blocks = {small_block("doc", 10.0 * static_cast<double>(n)),
                    small_block("dec", static_cast<double>(n))};
    trace.wires = {small_wire("doc.states", 100 * n, 0, {1})};
    trace.wires[0].sharing = Sharing::kDocument;
    return trace;
  };
  return model;
}

TEST(PlannerAssembly, GroupsInputsThatReadTheSameDocuments) {
  // Eight inputs, each document read by four of them: two documents. Microbatches of two find (as
  // drawn) 2 (1 - (3/4)^4) = 1.37 of them on average, grouped 1.
  for (const double distinct : {0.25, 0.0}) {
    Planner planner(reader_of(8), machines(1, 1), {.distinct_ratio = distinct});
    const std::vector<LayoutPlan> plans = planner.search(fixed_mesh(1, 1, 1, 4), 1);
    ASSERT_EQ(plans.size(), 1u);
    EXPECT_EQ(plans[0].layout.assembly, distinct > 0 ? "grouped" : "arrival");
    EXPECT_DOUBLE_EQ(plans[0].step_s, best_of_all(planner, {.microbatches = 4}).step_s);
    EXPECT_DOUBLE_EQ(plans[0].step_s, distinct > 0 ? 4 * (10 + 2) : 4 * (20 + 2));
    const double arrival = planner.price({.microbatches = 4, .assembly = "arrival"}).documents;
    EXPECT_DOUBLE_EQ(arrival, distinct > 0 ? 1 - std::pow(0.75, 4) : 1.0);
    FixedLayout fixed = fixed_mesh(1, 1, 1, 4);
    fixed.assembly = "arrival";
    EXPECT_EQ(planner.search(fixed, 1)[0].layout.assembly, "arrival");
  }
  // In one microbatch all meet anyway.
  Planner planner(reader_of(8), machines(1, 1), {.distinct_ratio = 0.25});
  EXPECT_EQ(planner.search(fixed_mesh(1, 1, 1, 1), 1)[0].layout.assembly, "arrival");
}

TEST(Planner, OffloadedStatesGoThereAndBack) {
  Cluster cluster = machines(1, 2);
  cluster.host_bytes_per_s = 6;
  cluster.storage_bytes_per_s = 24;
  PlannedModel model = chain_of({.blocks = 1, .parameter_bytes = 200}, 2);
  model.offload = true;
  // 100 parameters: fp32 gradients there, bf16 values back.
  EXPECT_DOUBLE_EQ(Planner(model, cluster).price({.dp = 2}).offload_s, 100 * (4 + 2) / 6.0);
  EXPECT_DOUBLE_EQ(Planner(model, cluster).price({.dp = 2, .zero = 1}).offload_s,
                   50 * (4 + 2) / 6.0);
  // In a file, masters and moments of both replicas besides, read and written.
  model.offload_in_file = true;
  const LayoutPlan plan = Planner(model, cluster).price({.dp = 2});
  EXPECT_DOUBLE_EQ(plan.offload_s, 100 + 2 * 2 * 100 * 12 / 24.0);
  model.offload = false;
  EXPECT_DOUBLE_EQ(plan.step_s - plan.offload_s, Planner(model, cluster).price({.dp = 2}).step_s);
}

TEST(Planner, SettingsNameWhatWasChosen) {
  Planner planner(long_decoder(1, 8, 0.5), machines(1, 8));
  const std::vector<std::string> settings = settings_of(
      planner.price({.pp = 8, .token_slices = 4, .assembly = "grouped", .order = "pp,dp,tp"}));
  for (const char* setting :
       {"parallel.token_slices=4", "parallel.order=pp,dp,tp", "data.assembly=grouped"})
    EXPECT_EQ(std::count(settings.begin(), settings.end(), setting), 1) << setting;
  const Json json = to_json(planner, planner.price({.pp = 8, .token_slices = 4}));
  EXPECT_EQ(json["token_slices"], 4);
  EXPECT_EQ(json["order"], "dp,pp,tp");
  EXPECT_EQ(json["assembly"], "arrival");
}

}  // namespace
}  // namespace contexture::parallel
