// A model's trace as one tensor-parallel rank of a layout sees it: its share of the work, the
// collectives it waits for, what is kept when blocks are recomputed.
#pragma once
#include <string>
#include <vector>

#include "parallel/cost_model.h"
#include "parallel/trace.h"

namespace contexture::parallel {

struct TraceLayout {
  RankGroup tensor = {};  // its ranks
  bool sequence = false;  // rows between a layer's branches are shared out, too
  bool split_backward =
      false;  // weight gradients run apart: the backward's all-reduces are not hidden behind them
  std::vector<std::string> recompute = {};
  double flops_per_s = 0.0;  // of a device, where the trace has no measured times
};

struct LayoutTrace {
  Trace trace;                           // with times
  std::vector<double> full_activations;  // [block] bytes, as if nothing were recomputed
  std::vector<double> tensor_bytes;      // [block] sent by one rank for a microbatch
  std::vector<double> forward_flops;     // [block] of the whole model
  double path_s = 0.0;                   // critical_path_s
  TraceLayout layout;
  // [block] of the trace's times: all-reduces that a microbatch waits for
  std::vector<double> forward_sums_s, backward_sums_s;
};

LayoutTrace layout_trace(const Trace& whole, const TraceLayout& layout);

// The same with so many times the documents: blocks that are about documents alone, and their
// wires.
Trace with_documents(const Trace& trace, double factor);

// What a block takes for a part of its rows that has these shares of all rows and of all pairs of
// rows that are compared. Whole blocks have 1 and 1.
struct BlockTimes {
  double forward_s = 0.0, input_grad_s = 0.0,
         weight_grad_s = 0.0;  // recomputation is in the second
  double sums_s = 0.0;         // of them: all-reduces over tensor-parallel ranks
};
BlockTimes block_times(const LayoutTrace& traced, size_t block, double rows, double pairs);

bool is_chosen(const std::vector<std::string>& prefixes, const std::string& block);

// Blocks behind wires of these names: their producers and all that these read from.
std::vector<bool> blocks_behind(const Trace& trace, const std::vector<std::string>& wires);

// Seconds of the longest way of a microbatch through the blocks and back, in which no stage on it
// can do all of its work at another's time. With weight gradients apart only the way forward
// counts: they may be put off into the way back.
// share: [block] what of a block's time counts; empty: all.
double critical_path_s(const Trace& trace, bool split_backward,
                       const std::vector<double>& share = {});

}  // namespace contexture::parallel
