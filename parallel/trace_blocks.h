// Makes the trace of any block list: costs from shapes alone, or with each kind of block run and
// timed.
#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>

#include "parallel/block.h"
#include "parallel/trace.h"

namespace contexture::parallel {

using WireShapes = std::map<std::string, WireShape>;

struct TraceOptions {
  std::string model = {};  // free text
  double inputs = 1.0;     // training inputs that the pass stands for
  at::ScalarType dtype = at::kFloat;
  std::set<std::string> recompute = {};  // names of blocks
  // Also runs each kind of block (its type, parameters' and wires' shapes) on random inputs, its
  // weights drawn and freed again, a few times on this thread's pool: the fastest forward, input
  // gradient and weight gradient, and, as the allocator saw them, the bytes that a forward leaves
  // behind and the most at any moment. Without it seconds are 0 and those bytes are estimated.
  bool timed = false;
  // Fills in what an untimed trace says of a block beside its FLOPs: the bytes it keeps for its
  // backward (at least its outputs are counted) and, of TraceBlock, how tensor-parallel ranks share
  // it. Null: an estimate from its matrices, for one tensor-parallel rank.
  std::function<void(const Block&, const WireShapes&, TraceBlock&)> estimate = nullptr;
  // For a wire of documents that inputs share: distinct documents / slots, in (0, 1]; 0 for all
  // other wires. Null: no such wires.
  std::function<double(const std::string& wire)> distinct_ratio = nullptr;
};

// pass: a typical microbatch. Leaves the store's parameters without memory, in options.dtype; no
// other weights are allocated, so an untimed trace of a model of any size takes milliseconds.
Trace trace_blocks(const BlockList& blocks, ParameterStore& store, const Pass& pass,
                   const TraceOptions& options = {});

}  // namespace contexture::parallel
