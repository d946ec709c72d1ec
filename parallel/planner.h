// Which layout to train a model with on a cluster, before any money is spent: every dp x pp x tp x
// placement x schedule x microbatches x token slices x assembly x ZeRO x recompute that uses all
// GPUs is priced from the model's trace and the cluster's figures, without tensors
// (docs/planning.md).
//
// The search is exact for these prices (which include how a layout's cut is chosen): layouts are
// looked at in the order of a lower bound of their step time, and left out only when that bound
// says that they cannot be among the answers, or a lower bound of their memory that they do not
// fit. Amounts are seconds, bytes and counts; "rank" is a pipeline rank of one replica, the same in
// all replicas.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/cluster.h"
#include "parallel/partition.h"
#include "parallel/schedule.h"

namespace contexture::parallel {

// Forward passes without gradient beside the schedule: all blocks behind some wires, for every
// microbatch.
struct ForwardWork {
  std::string name;                // "lookup", "contrastive", "refresh"
  std::vector<std::string> wires;  // those that the trace lacks are left out
  double per_step = 1.0;           // passes over a step's inputs and documents, per step
  double bytes_per_step = 0.0;  // not 0: instead, as many passes as make so many bytes of the first
                                // wire in a step, over all replicas
  bool only_when_cut = false;   // not where a step is one microbatch on one pipeline rank
};

// A model as the planner sees it. Everything but `trace` has a default, for small cases.
struct PlannedModel {
  std::function<Trace(int64_t inputs)>
      trace;  // a microbatch of so many inputs; nothing recomputed, one tensor-parallel rank
  std::function<std::string(int dp, int tp)> refuses =
      {};                      // why the model cannot be spread so; empty text: it can
  std::string dtype = "bf16";  // whose peak of the cluster counts
  double weight_bytes = 2.0, wide_bytes = 4.0;  // of a weight | of a gradient, a moment, a master
  int64_t batch_size = 1, steps = 1;
  int64_t whole_inputs = 1;  // multiples of so many inputs cost as many times what these do
  double logical_flops_per_input =
      0.0;  // forward and backward, every document encoded for each input that reads it
  double input_bytes = 0.0;  // tokens and pixels of an input, held for a whole step
  double index_bytes = 0.0;  // on the first rank of each replica, or spread over all ranks
  bool index_sharded = false;
  double search_s = 0.0;  // per step, as measured
  std::vector<ForwardWork> forward_work = {};
  std::string order = "dp,pp,tp";    // mesh axes (parallel/mesh.h), of a layout that names none
  std::string assembly = "arrival";  // of a layout in which nothing is known to depend on it
  bool sequence = false;             // tensor-parallel ranks share rows out, too
  bool offload = false;              // masters and moments are kept elsewhere
  bool offload_in_file = false;      // and there in a file, not in the host's memory
  bool token_slices = true;          // the run takes them (not all objectives do)
  double slice_s = 50e-6;  // what each slice of a microbatch after the first costs a block beyond
                           // its share of the work, forward; twice that backward. An assumption:
                           // launches, and kernels too small to fill a GPU
  double bucket_bytes = 32 << 20;  // of gradients, reduced together
  std::vector<std::vector<std::string>> recompute = {
      {}, {"all"}};  // choices: block names or prefixes, or "all"
};

struct Layout {
  int dp = 1, pp = 1, tp = 1;
  std::string schedule = "1f1b";  // gpipe, 1f1b, interleaved, zb_h1
  int chunks = 1;                 // stages a rank; more than 1 with interleaved only
  int64_t microbatches = 1;       // of a replica
  int zero = 0;
  std::vector<std::string> recompute = {};
  int64_t token_slices = 1;  // of a microbatch; 0: cut where plan_token_slices says. Pipelines with
                             // gpipe or 1f1b only
  std::string assembly = {};  // data.assembly: arrival or grouped; empty: the model's
  std::string order = {};     // of the mesh's axes; empty: the model's
  int gpus() const { return dp * pp * tp; }
  int stages() const { return pp * chunks; }
};

// What the search may not change. 0, -1, empty: free.
struct FixedLayout {
  int dp = 0, pp = 0, tp = 0, chunks = 0, zero = -1;
  int64_t microbatches = 0, token_slices = -1;
  std::string schedule = {}, assembly = {}, order = {};
  std::optional<std::vector<std::string>> recompute = {};
};

struct MemoryParts {
  double weights = 0.0, gradients = 0.0, optimizer = 0.0;
  // At the fullest moment of a step: what is in flight under the schedule, received wires included,
  // less the gradients that are not there yet; and what the block at work needs: gradients of what
  // it keeps, fresh ones of its weights, what it recomputes, gathers or reduces.
  double activations = 0.0, working = 0.0;
  double index = 0.0, inputs = 0.0;
  double states() const { return weights + gradients + optimizer; }
  double total() const { return states() + activations + working + index + inputs; }
};

// Weights, gradients and optimizer state that a rank keeps of so many parameters, by ZeRO stage
// over so many replicas; offload: the optimizer's are kept elsewhere.
MemoryParts states_of(double parameters, double weight_bytes, double wide_bytes, int zero, int dp,
                      bool offload);

struct LinkBytes {  // per step, sent by all GPUs together
  double pipeline = 0.0, tensor = 0.0, data = 0.0;
  double total() const { return pipeline + tensor + data; }
};

struct SpotPlan {
  double checkpoint_s = 0.0;  // one save
  double checkpoint_every_s =
      0.0;  // Daly's optimum (FGCS 22, 2006), a refinement of Young's sqrt(2 C M)
  double young_s = 0.0;
  double interruptions = 0.0;       // expected in the whole run
  double overhead = 0.0;            // share of time lost to saving and to work done again
  double usd_per_1k_samples = 0.0;  // at the spot price, with that overhead
};

// What the clock is run against: the stages, or with token slices their parts. A stage then becomes
// up to 2 + n: its blocks before the slices, each of the n slices, its blocks after them.
struct SimulatedStep {
  StageGraph graph;
  StageTimes times;
  Schedule schedule;
  std::vector<int> stage_of, slice_of;  // [part]; slice -1: not of a slice
};

struct LayoutPlan {
  Layout layout;
  Plan cut;          // stages; device r is rank r
  StageTimes times;  // per microbatch, collectives of tensor parallelism and ZeRO included
  SimulatedStep step;
  std::vector<double> slice_rows = {};  // share of a microbatch's rows in each token slice
  double documents = 1.0;  // distinct documents that a microbatch encodes, of those that the groups
                           // in it would alone (data.group_size)
  std::vector<MemoryParts> memory;                // [rank]
  double memory_bytes = 0.0;                      // of the fullest rank
  double pipeline_s = 0.0, idle = 0.0;            // the schedule alone
  double reduce_s = 0.0, exposed_reduce_s = 0.0;  // gradients over replicas after the last backward
                                                  // began; what outlasts the schedule
  double shared_s = 0.0, publish_s = 0.0;  // gradients of parameters on several ranks | new values
                                           // to all replicas (ZeRO 1, 2)
  double offload_s = 0.0;  // gradients to where the optimizer's state is and values back; the state
                           // itself too, where it lies in a file
  std::map<std::string, double> forward_work_s;  // by ForwardWork::name, and "search"
  double tensor_s =
      0.0;  // of pipeline_s: all-reduces over tensor-parallel ranks that the busiest rank waits for
  double step_s = 0.0;
  LinkBytes inside, across;
  double executed_flops = 0.0,
         recomputed_flops = 0.0;  // per step; the second: recomputation and forward work, on top
  double mfu = 0.0,
         logical_mfu =
             0.0;  // executed | with every document encoded for each input, of the GPUs' peak
  double samples_per_s = 0.0;
  std::optional<double> usd_per_1k_samples = {};
  std::optional<SpotPlan> spot = {};
  std::string remark = {};  // of the partitioner
};

struct SearchOptions {
  Partitioner partitioner = Partitioner::kExact;
  Optimize optimize = Optimize::kSpeed;  // as memory_weight, of the cuts (parallel/partition.h)
  double memory_weight = -1.0;
  double usable_memory =
      0.9;  // share of a GPU's memory; the rest is for the allocator's gaps and the libraries
  bool prune = true;  // false: price every layout (tests)
  // Distinct documents of a step's inputs over the slots they fill, as a run of one replica counted
  // them; 0: unknown, and no group of inputs (PlannedModel::whole_inputs) then shares documents
  // with another.
  double distinct_ratio = 0.0;
};

class Planner {
 public:
  Planner(PlannedModel model, Cluster cluster, SearchOptions options = {});
  ~Planner();

  // The best `top` layouts, best first, at most one for each (dp, pp, tp, schedule); empty when
  // nothing fits. UsageError when what is fixed contradicts itself, the model or the number of
  // GPUs.
  std::vector<LayoutPlan> search(const FixedLayout& fixed, int top);
  // One layout, whether it fits or not. UsageError when the model or the schedule cannot be laid
  // out so.
  LayoutPlan price(const Layout& layout);
  // For a search that found nothing: the layout of least memory, and the smallest of 2, 4, .. 1024
  // times as many nodes on which something fits (0: none does).
  LayoutPlan leanest(const FixedLayout& fixed);
  int nodes_that_fit(const FixedLayout& fixed);

  const PlannedModel& model() const { return model_; }
  const Cluster& cluster() const { return cluster_; }
  double usable_bytes() const { return options_.usable_memory * cluster_.memory_bytes; }
  int layouts_possible() const { return possible_; }  // in the last search
  int layouts_priced() const { return priced_; }

 private:
  PlannedModel model_;
  Cluster cluster_;
  SearchOptions options_;
  std::unique_ptr<class LayoutCosts> costs_;
  int possible_ = 0, priced_ = 0;
};

// The order of work of a layout's whole stages.
Schedule schedule_of(const StageGraph& graph, const Layout& layout);

// The settings that make `contexture train` run a plan.
std::vector<std::string> settings_of(const LayoutPlan& plan);

}  // namespace contexture::parallel
