// evaluate() and check_plan() of parallel/partition.h: what a placement costs, counted wire by
// wire.
#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "parallel/internal/cut_graph.h"
#include "parallel/partition.h"

namespace contexture::parallel {
namespace {

class Evaluation {
 public:
  Evaluation(const Trace& trace, const std::vector<int>& stage_of_block,
             const std::vector<int>& device_of_stage, const PartitionOptions& options)
      : trace_(trace),
        options_(options),
        costs_(make_cut_costs(options)),
        in_flight_(in_flight_of(options, static_cast<int>(device_of_stage.size()))) {
    plan_.stage_of_block = stage_of_block;
    plan_.device_of_stage = device_of_stage;
    plan_.stages.resize(device_of_stage.size());
    plan_.device_s.resize(options.num_devices);
    plan_.device_memory.resize(options.num_devices);
  }

  Plan run() {
    add_blocks();
    for (const TraceWire& wire : trace_.wires) add_wire(wire);
    add_parameters();
    total();
    return std::move(plan_);
  }

 private:
  int device(int block) const { return plan_.device_of_stage[plan_.stage_of_block[block]]; }

  // A value sent from device `home` to `to`, and its gradient back. Ingress prices cover both
  // directions.
  double there_s(int home, int to, double bytes) const {
    return (options_.between.empty() ? costs_.ingress[to] : options_.between[home][to])
        .seconds(bytes);
  }
  double back_s(int home, int to, double bytes) const {
    return (options_.between.empty() ? costs_.ingress[to] : options_.between[to][home])
        .seconds(bytes);
  }

  void add_blocks() {
    for (size_t s = 0; s < plan_.stages.size(); ++s) {
      plan_.stages[s].device = plan_.device_of_stage[s];
      plan_.stages[s].in_flight = in_flight_[s];
    }
    activations_.resize(plan_.stages.size(), 0.0);
    for (size_t b = 0; b < trace_.blocks.size(); ++b) {
      const int s = plan_.stage_of_block[b];
      plan_.stages[s].blocks.push_back(static_cast<int>(b));
      plan_.stages[s].compute_s += step_s(trace_.blocks[b]);
      plan_.stages[s].memory_bytes += static_cast<double>(trace_.blocks[b].resident_bytes);
      activations_[s] += static_cast<double>(trace_.blocks[b].activation_bytes);
    }
  }

  void add_wire(const TraceWire& wire) {
    const int home = device(wire.producer);
    const double forward = wire.forward_bytes(), backward = wire.backward_bytes();
    std::set<int> served;
    int last_stage = plan_.stage_of_block[wire.producer];
    for (const int reader : wire.readers) {
      const int s = plan_.stage_of_block[reader], to = device(reader);
      last_stage = std::max(last_stage, s);
      if (to != home) plan_.forward_bytes_per_edge += static_cast<double>(wire.bytes);
    }
    plan_.forward_bytes_pass_through +=
        forward * (last_stage - plan_.stage_of_block[wire.producer]);
    // A device's first reading stage receives the wire for all its stages.
    std::vector<int> stages;
    for (const int reader : wire.readers) stages.push_back(plan_.stage_of_block[reader]);
    std::sort(stages.begin(), stages.end());
    for (const int s : stages) {
      const int to = plan_.device_of_stage[s];
      if (to == home || !served.insert(to).second) continue;
      StageCost& stage = plan_.stages[s];
      stage.transfer_s +=
          there_s(home, to, forward) + (wire.gradient ? back_s(home, to, backward) : 0.0);
      stage.forward_bytes_in += forward;
      stage.backward_bytes_out += backward;
      activations_[s] += forward;
    }
  }

  void add_parameters() {
    plan_.parameters.resize(trace_.parameters.size());
    std::vector<std::set<int>> stages(trace_.parameters.size());
    for (size_t b = 0; b < trace_.blocks.size(); ++b) {
      for (const int p : trace_.blocks[b].parameters) stages[p].insert(plan_.stage_of_block[b]);
    }
    for (size_t p = 0; p < stages.size(); ++p) {
      const double bytes = static_cast<double>(trace_.parameters[p].bytes);
      std::set<int> devices;
      for (const int s : stages[p]) {
        if (!devices.insert(plan_.device_of_stage[s]).second) continue;
        plan_.stages[s].parameter_bytes += bytes;
        plan_.stages[s].memory_bytes += options_.state_factor * bytes;
        if (plan_.parameters[p].owner_stage < 0) {
          plan_.parameters[p].owner_stage = s;
          continue;
        }
        plan_.parameters[p].replica_stages.push_back(s);
        const SharedRule rule = rule_of(options_, trace_.parameters[p].name);
        if (rule == SharedRule::kTogether) plan_.fits = false;
        if (rule == SharedRule::kReplicated) continue;
        const int owner = plan_.device_of_stage[plan_.parameters[p].owner_stage],
                  to = plan_.device_of_stage[s];
        const double gradient = options_.gradient_factor * bytes;
        plan_.replica_s += there_s(owner, to, gradient) + back_s(owner, to, gradient);
      }
    }
  }

  void total() {
    for (size_t s = 0; s < plan_.stages.size(); ++s) {
      StageCost& stage = plan_.stages[s];
      stage.memory_bytes += stage.in_flight * activations_[s];
      plan_.sum_s += stage.time_s();
      plan_.forward_bytes += stage.forward_bytes_in;
      plan_.backward_bytes += stage.backward_bytes_out;
      plan_.device_s[stage.device] += stage.time_s();
      plan_.device_memory[stage.device] += stage.memory_bytes;
    }
    plan_.max_s = *std::max_element(plan_.device_s.begin(), plan_.device_s.end());
    for (int d = 0; d < options_.num_devices; ++d) {
      plan_.fits = plan_.fits && plan_.device_memory[d] <= costs_.caps[d];
      plan_.device_memory[d] += costs_.held[d];
    }
    plan_.objective = costs_.sum_weight * plan_.sum_s + costs_.max_weight * plan_.max_s +
                      costs_.byte_weight * plan_.forward_bytes + plan_.replica_s;
  }

  const Trace& trace_;
  const PartitionOptions& options_;
  const CutCosts costs_;
  const std::vector<int> in_flight_;
  std::vector<double> activations_;  // [stage] bytes of one microbatch, received wires included
  Plan plan_;
};

}  // namespace

Plan evaluate(const Trace& trace, const std::vector<int>& stage_of_block,
              const std::vector<int>& device_of_stage, const PartitionOptions& options) {
  CONTEXTURE_INVARIANT(stage_of_block.size() == trace.blocks.size(), "every block has a stage");
  for (const int s : stage_of_block) {
    CONTEXTURE_INVARIANT(s >= 0 && s < static_cast<int>(device_of_stage.size()), "stage ", s,
                         " does not exist");
  }
  for (const int d : device_of_stage)
    CONTEXTURE_INVARIANT(d >= 0 && d < options.num_devices, "device ", d, " does not exist");
  Plan plan = Evaluation(trace, stage_of_block, device_of_stage, options).run();
  check_plan(trace, plan);
  return plan;
}

void check_plan(const Trace& trace, const Plan& plan) {
  CONTEXTURE_INVARIANT(plan.stages.size() == plan.device_of_stage.size() &&
                           plan.stage_of_block.size() == trace.blocks.size(),
                       "a plan covers its stages and blocks");
  std::vector<int> times(trace.blocks.size(), 0);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    CONTEXTURE_INVARIANT(!plan.stages[s].blocks.empty(), "stage ", s, " has no block");
    for (const int b : plan.stages[s].blocks) {
      ++times[b];
      CONTEXTURE_INVARIANT(plan.stage_of_block[b] == static_cast<int>(s), "block ",
                           trace.blocks[b].name, " is in two stages");
    }
  }
  for (size_t b = 0; b < times.size(); ++b)
    CONTEXTURE_INVARIANT(times[b] == 1, "block ", trace.blocks[b].name, " runs ", times[b],
                         " times");
  for (const TraceWire& wire : trace.wires) {
    for (const int reader : wire.readers) {
      CONTEXTURE_INVARIANT(plan.stage_of_block[wire.producer] <= plan.stage_of_block[reader],
                           "wire ", wire.name, " goes backwards");
    }
  }
  std::vector<std::set<int>> devices(trace.parameters.size());  // that use a parameter
  for (size_t b = 0; b < trace.blocks.size(); ++b) {
    for (const int p : trace.blocks[b].parameters)
      devices[p].insert(plan.device_of_stage[plan.stage_of_block[b]]);
  }
  for (size_t p = 0; p < devices.size(); ++p) {
    if (devices[p].empty()) continue;
    const ParameterPlace& place = plan.parameters.at(p);
    CONTEXTURE_INVARIANT(place.owner_stage >= 0, "parameter ", trace.parameters[p].name,
                         " has no owner");
    std::set<int> declared = {plan.device_of_stage[place.owner_stage]};
    for (const int s : place.replica_stages) declared.insert(plan.device_of_stage[s]);
    CONTEXTURE_INVARIANT(
        declared == devices[p] && declared.size() == place.replica_stages.size() + 1, "parameter ",
        trace.parameters[p].name, " is used where no replica is declared");
  }
}

}  // namespace contexture::parallel
