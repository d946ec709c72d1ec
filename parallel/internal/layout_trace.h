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
  std::vector<double>
      tensor_s;  // [block] all-reduces that a microbatch waits for; part of the trace's times
  std::vector<double> tensor_bytes;   // [block] sent by one rank for a microbatch
  std::vector<double> forward_flops;  // [block] of the whole model
  double path_s = 0.0;                // critical_path_s
};

LayoutTrace layout_trace(const Trace& whole, const TraceLayout& layout);

bool is_chosen(const std::vector<std::string>& prefixes, const std::string& block);

// Blocks behind wires of these names: their producers and all that these read from.
std::vector<bool> blocks_behind(const Trace& trace, const std::vector<std::string>& wires);

// Seconds of the longest way of a microbatch through the blocks and back, in which no stage on it
// can do all of its work at another's time. With weight gradients apart only the way forward
// counts: they may be put off into the way back.
double critical_path_s(const Trace& trace, bool split_backward);

}  // namespace contexture::parallel
