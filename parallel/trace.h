// What a model costs, as plain data: blocks with their work and memory, wires with their bytes,
// parameters with who shares them. The partitioner and the planner know nothing else of a model.
// Nothing here touches a tensor; docs/formats/trace.md describes the file.
//
// All amounts are for one microbatch on one device. Bytes of a parameter are those of its value in
// the compute dtype; gradients and optimizer state follow from the layout and are the planner's
// business.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/json_fwd.h"

namespace contexture::parallel {

struct TraceParameter {
  std::string name = {};
  int64_t bytes = 0;
  bool split = false;  // tensor-parallel ranks keep a part each
};

struct TraceBlock {
  std::string name = {};             // dotted path: "decoder.3"
  std::vector<int> parameters = {};  // indices into Trace::parameters, ascending
  double forward_s = 0.0, input_grad_s = 0.0, weight_grad_s = 0.0;  // 0 until timed
  double forward_flops = 0.0, input_grad_flops = 0.0, weight_grad_flops = 0.0;
  // What a forward leaves behind until its backward: the outputs and all that is saved between, but
  // not the wires it reads.
  int64_t activation_bytes = 0;
  // Most at any moment of a forward and its backward, beside weights, wires read and the gradient
  // that came: what is left behind, what is computed with, gradients. 0 until timed.
  int64_t peak_bytes = 0;
  int64_t resident_bytes = 0;  // held for good whatever the batch: index shards, stored embeddings
  bool recompute = false;  // runs forward once more before its backward, and keeps only its outputs
  // Under tensor parallelism: the shares of work and of activations that its ranks divide among
  // them (each repeats the rest), and what is summed over them in a forward and in its backward:
  // number of all-reduces, bytes of their tensors.
  double split_work = 0.0, split_activations = 0.0;
  int64_t forward_sums = 0, forward_sum_bytes = 0, backward_sums = 0, backward_sum_bytes = 0;
  // Token slices: how many rows an input has here, where the block may run on consecutive runs of
  // them (0: it may not), and the share of its work that compares rows with earlier ones of their
  // sequence, so that later slices have more of it.
  int64_t rows = 0;
  double pair_work = 0.0;
  bool operator==(const TraceBlock&) const = default;
};

enum class Sharing {
  kInput,
  kDocument
};  // one value per training input | per document slot, equal where documents are

struct TraceWire {
  std::string name = {};
  int64_t bytes = 0;  // forward, counting every slot
  // Of what is sent, each distinct document once. dtype: as safetensors call it ("BF16"); empty:
  // neither is known.
  std::vector<int64_t> shape = {};
  std::string dtype = {};
  int producer = -1;              // index into Trace::blocks
  std::vector<int> readers = {};  // ascending, without the producer
  Sharing sharing = Sharing::kInput;
  double distinct_ratio = 1.0;  // distinct documents / slots, in (0, 1]; 1 for kInput
  bool gradient = true;         // a gradient of the same size comes back
  bool operator==(const TraceWire&) const = default;
  // What one reading stage receives: each distinct document once.
  double forward_bytes() const { return static_cast<double>(bytes) * distinct_ratio; }
  double backward_bytes() const { return gradient ? forward_bytes() : 0.0; }
};

struct Trace {
  std::string model = {};  // free text
  double inputs = 1.0;     // training inputs in a microbatch
  // Different documents of a step over the slots that read them, as the run's data have it, and how
  // that is known; 0: it is not. (A wire's distinct_ratio is that of the microbatch traced.)
  double distinct_ratio = 0.0;
  std::string distinct_source = {};
  bool timed = false;  // the seconds were measured (or derived); otherwise only FLOPs are known
  std::vector<TraceParameter> parameters = {};
  std::vector<TraceBlock> blocks =
      {};  // in an order in which each wire is written before it is read
  std::vector<TraceWire> wires = {};
};

// A module of the block tree, by dotted path: "encoder.0" lies in "encoder" lies in "" (the whole).
// Sums of a module equal those of its children. A parameter counts at the first block that has it.
struct TraceNode {
  std::string path = {};
  std::vector<int> blocks = {};          // all below, ascending
  std::vector<TraceNode> children = {};  // in order of first execution; empty: a block of this path
  int64_t parameter_bytes = 0, activation_bytes = 0, resident_bytes = 0;
  double forward_s = 0.0, input_grad_s = 0.0, weight_grad_s = 0.0, flops = 0.0;
};

// Throws DataError, saying where, unless: names are unique and not empty; indices are in range;
// amounts are finite and not negative; every wire has a producer before all its readers; ratios lie
// in (0, 1].
void check_trace(const Trace& trace, const std::string& where);

// The whole model; its path is "". A module that is also a block (both "encoder" and "encoder.0"
// are) keeps that block as a child of its own path.
TraceNode trace_tree(const Trace& trace);

// Seconds from FLOPs, at a device that reaches flops_per_s. Replaces measured ones.
void set_times(Trace& trace, double flops_per_s);

// What a backward takes, recomputation included.
double backward_s(const TraceBlock& block);
double step_s(const TraceBlock& block);  // forward and backward

// With the tree's sums, for people; from_json checks the trace and that these sums agree with the
// blocks (to 1e-9 relative).
Json to_json(const Trace& trace);
Trace trace_from_json(const Json& json, const std::string& where);

void write_trace(const Trace& trace, const std::string& path);
Trace read_trace(const std::string& path);

}  // namespace contexture::parallel
