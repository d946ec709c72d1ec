// Cuts a traced model into pipeline stages (docs/partitioning.md). Stages are numbered so that
// every wire goes from a lower to a higher number or stays; each is one convex set of blocks.
// `exact` gives each device one stage; `tree` may give a device several.
//
// What is minimised (kSpeed), per step of m microbatches:
//   sum_weight * sum of stage times + max_weight * largest device time + byte_weight * forward
//   bytes between devices + replica seconds
// A stage's time is its blocks' forward and backward plus what it waits for its wires: a wire pays
// once per reading device other than its producer's, each distinct document once, value and
// gradient, at the reading device's ingress link. A device's time is the sum of its stages'. A
// parameter used on r devices pays r - 1 times a gradient sent there and back, once a step. Pure
// functions; no state, no threads.
#pragma once
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "parallel/cost_model.h"
#include "parallel/trace.h"

namespace contexture::parallel {

// linear: the best cut of the blocks' own order, same objective. uniform, parameters: that order
// cut by number of blocks, by parameter bytes. pipedream: by the slower of compute and per-edge
// bytes. tree: the published SageMaker algorithm. The next four ignore caps, and so does blind, the
// cut of that order that balances time and knows no bytes.
enum class Partitioner { kExact, kLinear, kTree, kPipedream, kParameters, kUniform, kBlind };
Partitioner parse_partitioner(const std::string& name);  // "exact", ...; UsageError with the list
std::string to_string(Partitioner partitioner);

enum class Optimize {
  kSpeed,
  kMemory
};  // kMemory: the smallest largest device memory whose speed objective keeps time_bound

Optimize parse_optimize(const std::string& name);  // "speed", "memory"; UsageError

// What to do with a parameter that several blocks use. kCheapest: copies pay, so that the search
// decides. kTogether: all its blocks in one stage. kReplicated: copies are taken as decided and
// cost the search nothing (they are still reported).
enum class SharedRule { kCheapest, kTogether, kReplicated };
SharedRule parse_shared_rule(const std::string& name);  // "cheapest", "colocate", "replicate"

struct PartitionOptions {
  Partitioner partitioner = Partitioner::kExact;
  Optimize optimize = Optimize::kSpeed;
  int num_devices = 1;
  int microbatches = 1;
  double sum_weight = 1.0;
  double max_weight = -1.0;  // negative: microbatches - 1
  double byte_weight = 0.0;
  double time_bound = std::numeric_limits<double>::infinity();
  double memory_weight = -1.0;  // tree only: share of memory in a module's cost, the rest is time;
                                // negative: 0.2, kMemory 0.8
  std::vector<double> memory_caps = {};  // bytes, [num_devices], or one for all; empty: no caps
  double state_factor =
      1.0;  // bytes of state (weights, gradients, optimizer) per byte of parameter
  double gradient_factor = 1.0;  // bytes of a gradient, as copies send it, per byte of parameter
  std::vector<double> device_bytes = {};  // [num_devices], or one for all: held there whatever its
                                          // blocks, within its cap (an index, say); empty: none
  std::vector<int> in_flight = {};        // [stage] microbatches whose activations are held; empty:
                                          // min(m, num_stages - stage), as 1F1B
  std::vector<Link> ingress = {};  // [num_devices], or one for all; empty: wires cost no time
  // [from][to]: overrides ingress. `exact` is then exact for the cheapest link into each device,
  // and a local search starts from there.
  std::vector<std::vector<Link>> between = {};
  SharedRule shared = SharedRule::kCheapest;
  std::map<std::string, SharedRule> shared_by_name = {};  // parameter name -> its own rule
  bool explain =
      true;  // false: where nothing fits the error says only that, without searching for what would
  int max_downsets = 10000;  // beyond: runs of blocks are merged and the plan is called a bound
};

struct StageCost {
  int device = 0;
  std::vector<int> blocks = {};  // ascending
  double compute_s = 0.0, transfer_s = 0.0;
  double forward_bytes_in = 0.0,
         backward_bytes_out =
             0.0;  // per microbatch: wires read from, gradients returned to, other devices
  double parameter_bytes = 0.0;
  double memory_bytes = 0.0;  // state + in_flight * (activations + received wires), without what
                              // the device holds anyway
  int in_flight = 0;
  double time_s() const { return compute_s + transfer_s; }
};

struct ParameterPlace {
  int owner_stage = -1;                  // the first stage that has it
  std::vector<int> replica_stages = {};  // the first stage of each other device that has it
};

struct Plan {
  Partitioner partitioner = Partitioner::kExact;
  std::vector<int> stage_of_block = {}, device_of_stage = {};
  std::vector<StageCost> stages = {};
  std::vector<double> device_s = {}, device_memory = {};  // [num_devices], device_bytes included
  std::vector<ParameterPlace> parameters = {};            // [Trace::parameters]
  double sum_s = 0.0, max_s = 0.0, replica_s = 0.0;
  double forward_bytes = 0.0, backward_bytes = 0.0;  // between devices, per microbatch
  double forward_bytes_per_edge =
      0.0;  // what counting every reader instead of every reading device would say
  double forward_bytes_pass_through = 0.0;  // what handing wires on from stage to stage would move
  double objective = 0.0;
  bool fits = true;          // all caps are kept, and parameters that must stay together do
  bool is_exact = false;     // no plan of one stage a device is better
  double lower_bound = 0.0;  // no such plan's objective is smaller; equals objective when is_exact
  int num_downsets = 0;      // searched; 0 for the baselines
  // Against the context-blind plan: the linear cut that balances time and knows no bytes. Filled by
  // exact and linear, kSpeed only.
  double blind_objective = 0.0, blind_forward_bytes = 0.0;
  bool no_gain = false;     // less than 1 % better than the blind plan (which fits)
  std::string remark = {};  // one sentence on the gain or its absence, and on merging
};

// The costs of a given placement. Bug unless every block has a stage, every stage a block and a
// device, and wires go forwards.
Plan evaluate(const Trace& trace, const std::vector<int>& stage_of_block,
              const std::vector<int>& device_of_stage, const PartitionOptions& options);

// UsageError when there are fewer blocks than devices, or options contradict each other; UserError
// when nothing keeps the caps, saying the smallest number of stages or memory that would.
Plan partition(const Trace& trace, const PartitionOptions& options);

// All acyclic assignments, one stage a device. For gaps and tests: at most 12 blocks (UsageError).
// `fits` is false when none keeps the caps.
Plan brute_force(const Trace& trace, const PartitionOptions& options);

// The linear cut that balances compute alone, first of equals.
Plan blind_plan(const Trace& trace, const PartitionOptions& options);

// Bug unless stages cover the blocks once, wires go forwards, every used parameter has one owner,
// and each other device that uses it is declared as a replica.
void check_plan(const Trace& trace, const Plan& plan);

}  // namespace contexture::parallel
