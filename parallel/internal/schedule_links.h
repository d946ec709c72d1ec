// What the schedule sources share: a validated stage graph by neighbours, and how long an action
// takes.
#pragma once
#include <vector>

#include "parallel/schedule.h"

namespace contexture::parallel {

struct StageLinks {
  struct Neighbour {
    int stage;
    int edge;  // index in StageGraph::edges
  };
  std::vector<std::vector<Neighbour>> writers;  // [num_stages]: whom it reads, ascending
  std::vector<std::vector<Neighbour>> readers;  // [num_stages]: who reads it, ascending
};

// Throws UserError when a rank, a stage or an edge of the graph is impossible.
StageLinks links_of(const StageGraph& graph);

// Throws Bug unless the sizes fit the graph and no time is negative.
void require_times(const StageGraph& graph, const StageTimes& times, int num_microbatches);

double duration(const StageTimes& times, const Action& action);

// Time of a message along an edge: none between stages of one rank.
inline double transfer(const StageGraph& graph, const StageTimes& times, int edge) {
  const auto& [writer, reader] = graph.edges[edge];
  if (times.transfer.empty() || graph.rank_of[writer] == graph.rank_of[reader]) return 0.0;
  return times.transfer[edge];
}

inline bool is_backward(Work work) { return work == Work::kBackward || work == Work::kInputGrad; }

// Highest microbatch number + 1. One as high as the number of actions belongs to no whole schedule
// and does not count: what is allocated by this number stays small whatever a text says.
int num_microbatches_of(const Schedule& schedule);

}  // namespace contexture::parallel
