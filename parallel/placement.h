// Which stage runs which block, and which pipeline rank runs which stage.
#pragma once
#include <string>
#include <vector>

#include "parallel/block.h"
#include "parallel/schedule.h"

namespace contexture::parallel {

struct Placement {
  std::vector<int> stage_of;  // [blocks]
  StageGraph graph;
  std::vector<int> blocks_of(int stage) const;  // ascending
  // Pipeline ranks that run a block which uses the parameter, ascending; the first one owns it, the
  // others are replicas.
  std::vector<int> owners(const BlockList& blocks, const Parameter& parameter) const;
};

// Checks that every stage has a block and that wires go from lower to higher stages, and derives
// the stage graph. Throws UsageError.
Placement place(const BlockList& blocks, std::vector<int> stage_of, std::vector<int> rank_of,
                int num_ranks);

// Consecutive blocks in num_ranks * chunks stages, stage s on rank s % num_ranks. by: "uniform"
// (equal numbers of blocks) or "parameters" (the largest stage has as few parameters as possible).
// colocate: blocks that share a parameter run on one rank, that of the parameter's first stage, as
// further stages there; else every rank that needs it keeps a replica. Throws UsageError when there
// are fewer blocks than stages.
Placement place_in_order(const BlockList& blocks, const std::string& by, int num_ranks, int chunks,
                         bool colocate);

}  // namespace contexture::parallel
