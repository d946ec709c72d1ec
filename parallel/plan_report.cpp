#include "parallel/plan_report.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/format.h"
#include "core/json.h"
#include "parallel/chrome_trace.h"
#include "parallel/internal/layout_trace.h"
#include "parallel/mesh.h"

namespace contexture::parallel {
namespace {

Json to_json(const LinkBytes& bytes) {
  return {{"pipeline", bytes.pipeline}, {"tensor", bytes.tensor}, {"data", bytes.data}};
}

Json to_json(const MemoryParts& parts) {
  return {{"weights_gb", parts.weights / 1e9},     {"gradients_gb", parts.gradients / 1e9},
          {"optimizer_gb", parts.optimizer / 1e9}, {"activations_gb", parts.activations / 1e9},
          {"working_gb", parts.working / 1e9},     {"index_gb", parts.index / 1e9},
          {"inputs_gb", parts.inputs / 1e9}};
}

Json to_json(const SpotPlan& spot) {
  return {{"checkpoint_s", spot.checkpoint_s}, {"checkpoint_every_s", spot.checkpoint_every_s},
          {"young_s", spot.young_s},           {"interruptions", spot.interruptions},
          {"overhead", spot.overhead},         {"usd_per_1k_samples", spot.usd_per_1k_samples}};
}

// Wires that a stage receives from other ranks.
Json wires_into(const Trace& trace, const LayoutPlan& plan, int stage,
                const std::vector<int>& node_of_rank) {
  Json out = Json::array();
  const auto rank_of = [&](int s) { return plan.cut.device_of_stage[s]; };
  for (const TraceWire& wire : trace.wires) {
    const int from = plan.cut.stage_of_block[wire.producer];
    const bool reads = std::any_of(wire.readers.begin(), wire.readers.end(),
                                   [&](int b) { return plan.cut.stage_of_block[b] == stage; });
    if (!reads || rank_of(from) == rank_of(stage)) continue;
    out.push_back({{"name", wire.name},
                   {"from", from},
                   {"forward_bytes", wire.forward_bytes()},
                   {"backward_bytes", wire.backward_bytes()},
                   {"across_nodes", node_of_rank[rank_of(from)] != node_of_rank[rank_of(stage)]},
                   {"context", wire.sharing == Sharing::kDocument}});
  }
  return out;
}

Json stages_of(const Planner& planner, const LayoutPlan& plan) {
  const Layout& l = plan.layout;
  const int64_t runs = l.dp * l.microbatches;
  const Trace trace = with_documents(
      planner.model().trace((planner.model().batch_size + runs - 1) / runs), plan.documents);
  const MeshLayout mesh(l.gpus(), l.dp, l.pp, l.tp, l.order);
  std::vector<int> node;
  for (int r = 0; r < l.pp; ++r)
    node.push_back(mesh.rank({0, r, 0}) / planner.cluster().gpus_per_node);
  Json out = Json::array();
  for (size_t s = 0; s < plan.cut.stages.size(); ++s) {
    const StageCost& stage = plan.cut.stages[s];
    Json blocks = Json::array();
    for (const int b : stage.blocks) blocks.push_back(trace.blocks[b].name);
    out.push_back({{"rank", stage.device},
                   {"node", node[stage.device]},
                   {"blocks", blocks},
                   {"forward_s", plan.times.forward[s]},
                   {"input_grad_s", plan.times.input_grad[s]},
                   {"weight_grad_s", plan.times.weight_grad[s]},
                   {"parameters", stage.parameter_bytes / planner.model().weight_bytes},
                   {"memory_gb", plan.memory[stage.device].total() / 1e9},
                   {"memory", to_json(plan.memory[stage.device])},
                   {"wires_in", wires_into(trace, plan, static_cast<int>(s), node)}});
  }
  return out;
}

// Parameters that several ranks keep, by the stages that have them: how many, and their bytes.
Json shared_of(const LayoutPlan& plan, const Trace& trace) {
  std::map<std::vector<int>, std::pair<int, double>> by_stages;
  for (size_t p = 0; p < plan.cut.parameters.size(); ++p) {
    const ParameterPlace& place = plan.cut.parameters[p];
    if (place.replica_stages.empty()) continue;
    std::vector<int> stages = {place.owner_stage};
    stages.insert(stages.end(), place.replica_stages.begin(), place.replica_stages.end());
    auto& [count, bytes] = by_stages[stages];
    ++count;
    bytes += static_cast<double>(trace.parameters[p].bytes);
  }
  Json out = Json::array();
  for (const auto& [stages, sum] : by_stages)
    out.push_back({{"stages", stages}, {"parameters", sum.first}, {"bytes", sum.second}});
  return out;
}

}  // namespace

Json to_json(const Planner& planner, const LayoutPlan& plan) {
  const Layout& l = plan.layout;
  const int64_t runs = l.dp * l.microbatches;
  Json parts = {{"pipeline_s", plan.pipeline_s},
                {"exposed_reduce_s", plan.exposed_reduce_s},
                {"shared_s", plan.shared_s},
                {"publish_s", plan.publish_s},
                {"offload_s", plan.offload_s}};
  for (const auto& [name, seconds] : plan.forward_work_s) parts[name + "_s"] = seconds;
  const size_t fullest = std::max_element(plan.memory.begin(), plan.memory.end(),
                                          [](const MemoryParts& a, const MemoryParts& b) {
                                            return a.total() < b.total();
                                          }) -
                         plan.memory.begin();
  return {{"dp", l.dp},
          {"pp", l.pp},
          {"tp", l.tp},
          {"schedule", l.schedule},
          {"chunks", l.chunks},
          {"microbatches", l.microbatches},
          {"inputs_per_microbatch", (planner.model().batch_size + runs - 1) / runs},
          {"token_slices", l.token_slices},
          {"slice_rows", plan.slice_rows},
          {"assembly", l.assembly},
          {"documents_encoded", plan.documents},
          {"order", l.order},
          {"zero", l.zero},
          {"recompute", l.recompute},
          {"step_s", plan.step_s},
          {"step_parts", parts},
          {"reduce_s", plan.reduce_s},
          {"tensor_s", plan.tensor_s},
          {"memory_gb", plan.memory_bytes / 1e9},
          {"memory", to_json(plan.memory[fullest])},
          {"idle", plan.idle},
          {"samples_per_s", plan.samples_per_s},
          {"mfu", plan.mfu},
          {"mfu_logical", plan.logical_mfu},
          {"flops_executed", plan.executed_flops},
          {"flops_recomputed", plan.recomputed_flops},
          {"bytes_per_step", {{"inside", to_json(plan.inside)}, {"across", to_json(plan.across)}}},
          {"usd_per_1k_samples", plan.usd_per_1k_samples ? Json(*plan.usd_per_1k_samples) : Json()},
          {"spot", plan.spot ? to_json(*plan.spot) : Json()},
          {"stages", stages_of(planner, plan)},
          {"shared", shared_of(plan, planner.model().trace(1))},
          {"remark", plan.remark},
          {"settings", settings_of(plan)}};
}

Json chrome_trace(const LayoutPlan& plan) {
  const SimulatedStep& step = plan.step;
  const ScheduleReport report = simulate(step.graph, step.schedule, step.times);
  Json events = Json::array();
  for (size_t rank = 0; rank < step.schedule.by_rank.size(); ++rank) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 0},
                      {"tid", rank},
                      {"args", {{"name", concat("rank ", rank)}}}});
    for (size_t i = 0; i < step.schedule.by_rank[rank].size(); ++i) {
      const Action& action = step.schedule.by_rank[rank][i];
      const double F = step.times.forward[action.stage], I = step.times.input_grad[action.stage],
                   W = step.times.weight_grad[action.stage];
      const double seconds = action.work == Work::kForward      ? F
                             : action.work == Work::kInputGrad  ? I
                             : action.work == Work::kWeightGrad ? W
                                                                : I + W;
      const int slice = step.slice_of[action.stage];
      const std::string name =
          to_text(Action{step.stage_of[action.stage], action.work, action.microbatch}) +
          (slice < 0 ? "" : concat(".", slice));
      events.push_back(chrome_event(name, std::string(1, static_cast<char>(action.work)), 0,
                                    static_cast<int>(rank), report.start[rank][i], seconds));
    }
  }
  return chrome_trace_file(std::move(events));
}

std::string bytes_in_words(double bytes) {
  const char* units[] = {"bytes", "kB", "MB", "GB", "TB", "PB"};
  int unit = 0;
  for (; bytes >= 999.5 && unit < 5; ++unit) bytes /= 1000.0;
  return bytes < 10 && unit > 0 ? format("{:.1f} {}", bytes, units[unit])
                                : format("{:.0f} {}", bytes, units[unit]);
}

std::string in_words(const Layout& l) {
  std::string out = format("dp {} x pp {} x tp {}", l.dp, l.pp, l.tp);
  if (l.pp > 1)
    out += l.chunks > 1 ? format(", {} with {} chunks", l.schedule, l.chunks) : ", " + l.schedule;
  out += format(", {} microbatch{} a replica, ZeRO {}", l.microbatches,
                l.microbatches == 1 ? "" : "es", l.zero);
  if (l.token_slices == 0) out += ", token slices as measured";
  if (l.token_slices > 1) out += format(", {} token slices", l.token_slices);
  if (l.assembly == "grouped") out += ", grouped";
  if (!l.order.empty() && l.order != PlannedModel().order) out += ", order " + l.order;
  if (l.recompute.empty()) return out;
  out += ", recompute";
  for (const std::string& name : l.recompute) out += " " + name;
  return out;
}

}  // namespace contexture::parallel
