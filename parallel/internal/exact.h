// Dynamic programming over downsets: the best chain of them, one stage between two neighbours.
#pragma once
#include <vector>

#include "parallel/internal/cut_graph.h"
#include "parallel/internal/downsets.h"

namespace contexture::parallel {

struct SearchResult {
  bool found = false;
  double objective = 0.0;
  std::vector<int> stage_of_block;  // [CutGraph::blocks]
};

// The plan of least objective among those with objective < below (all when infinite) that keep the
// caps. Equal costs are decided the same way every time. any: stop at no objective, return some
// plan that keeps the caps.
SearchResult search(const CutGraph& graph, const CutCosts& costs, const Downsets& downsets,
                    double below, bool any = false);

// For each number of stages 0..max_stages, whether that many can keep one cap, with
// min(microbatches, stages - s) microbatches in flight.
std::vector<bool> feasible_stages(const CutGraph& graph, const Downsets& downsets, double cap,
                                  int microbatches, int max_stages);

}  // namespace contexture::parallel
