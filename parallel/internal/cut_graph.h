// The partition problem in numbers: what the search needs of a trace and its options. Indices are
// those of the trace until blocks are merged; then each block of the graph stands for several.
#pragma once
#include <vector>

#include "parallel/partition.h"

namespace contexture::parallel {

struct CutBlock {
  std::vector<int> members = {};  // blocks of the trace, ascending
  double time_s = 0.0, activation_bytes = 0.0, fixed_bytes = 0.0;
  std::vector<int> before = {}, after = {};  // neighbours along wires, ascending
  std::vector<int> reads = {};               // wires
  std::vector<int> shared = {};              // parameters that other blocks use, too
};

struct CutWire {
  int producer = 0;
  std::vector<int> readers = {};  // ascending
  double forward_bytes = 0.0, backward_bytes = 0.0;
  int messages = 1;  // value, and gradient
};

struct CutShared {
  std::vector<int> blocks = {};
  double fixed_bytes = 0.0, gradient_bytes = 0.0;
  SharedRule rule = SharedRule::kCheapest;
};

struct CutGraph {
  std::vector<CutBlock> blocks = {};  // wires go from lower to higher indices
  std::vector<CutWire> wires = {};
  std::vector<CutShared> shared = {};
};

// Options with every default filled in, for a number of stages that equals the number of devices.
struct CutCosts {
  int num_stages = 1;
  double sum_weight = 1.0, max_weight = 0.0, byte_weight = 0.0;
  std::vector<Link> ingress = {};   // [stage]
  std::vector<double> caps = {};    // [stage] of the blocks alone
  std::vector<double> held = {};    // [stage] beside them
  std::vector<int> in_flight = {};  // [stage]
};

CutGraph make_cut_graph(const Trace& trace, const PartitionOptions& options);
// `between` becomes the cheapest link into each device. UsageError when options contradict each
// other.
CutCosts make_cut_costs(const PartitionOptions& options);
SharedRule rule_of(const PartitionOptions& options, const std::string& parameter);
std::vector<int> in_flight_of(const PartitionOptions& options, int num_stages);

// Blocks of equal group number become one. Group numbers are 0..max, in an order in which wires go
// from lower to higher.
CutGraph contract(const CutGraph& graph, const std::vector<int>& group_of);

// Merges neighbours, equal ones first, until the graph has at most max_downsets downsets or
// min_blocks blocks are left.
CutGraph coarsen(CutGraph graph, int min_blocks, int max_downsets);

std::vector<int> stages_in_trace(const CutGraph& graph, const std::vector<int>& stage_of_block,
                                 size_t num_trace_blocks);

}  // namespace contexture::parallel
