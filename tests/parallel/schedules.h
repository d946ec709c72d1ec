// What the schedule tests share: random cases, and the definition of "can run" told a second time,
// in the plainest way.
#pragma once
#include <map>
#include <tuple>
#include <vector>

#include "core/rng.h"
#include "parallel/schedule.h"

namespace contexture::parallel::testing {

struct Case {
  StageGraph graph;
  StageTimes times;
  int num_microbatches = 1;
};

// Any acyclic graph on any placement: chains, side branches, skips, loose stages, idle ranks; one
// time in five is zero.
inline Case random_case(uint64_t seed) {
  Stream random(seed, "schedule_case");
  Case made;
  made.num_microbatches = 1 + static_cast<int>(random.below(9));
  StageGraph& graph = made.graph;
  graph.num_stages = 1 + static_cast<int>(random.below(12));
  graph.num_ranks = 1 + static_cast<int>(random.below(5));
  const double density = random.uniform();
  for (int stage = 0; stage < graph.num_stages; ++stage) {
    graph.rank_of.push_back(static_cast<int>(random.below(graph.num_ranks)));
    for (int writer = 0; writer < stage; ++writer) {
      if (random.uniform() < density) graph.edges.emplace_back(writer, stage);
    }
  }
  random.shuffle(graph.edges);
  const auto times = [&](size_t count) {
    std::vector<double> list(count);
    for (double& time : list) time = random.below(5) == 0 ? 0.0 : random.uniform();
    return list;
  };
  made.times.forward = times(graph.num_stages);
  made.times.input_grad = times(graph.num_stages);
  made.times.weight_grad = times(graph.num_stages);
  if (random.below(2) == 0) made.times.transfer = times(graph.edges.size());
  if (random.below(2) == 0) made.times.scale = times(made.num_microbatches);
  return made;
}

// One that must end before an action starts; edge is -1 within a rank or stage.
struct Need {
  int rank, place, edge;
};
using Needs = std::vector<std::vector<std::vector<Need>>>;  // [rank][place]

inline Needs needs_of(const StageGraph& graph, const Schedule& schedule) {
  std::map<std::tuple<int, char, int>, std::pair<int, int>> where;
  for (int rank = 0; rank < graph.num_ranks; ++rank) {
    for (size_t i = 0; i < schedule.by_rank[rank].size(); ++i) {
      const Action& action = schedule.by_rank[rank][i];
      const char kind = action.work == Work::kInputGrad ? 'B' : static_cast<char>(action.work);
      where[{action.stage, kind, action.microbatch}] = {rank, static_cast<int>(i)};
    }
  }
  Needs needs(graph.num_ranks);
  for (int rank = 0; rank < graph.num_ranks; ++rank) {
    for (size_t i = 0; i < schedule.by_rank[rank].size(); ++i) {
      const Action& action = schedule.by_rank[rank][i];
      const int stage = action.stage, m = action.microbatch;
      const Work work = action.work;
      auto& list = needs[rank].emplace_back();
      const auto add = [&](int other, char kind, int edge) {
        const auto [on, place] = where.at({other, kind, m});
        list.push_back({on, place, edge});
      };
      if (i > 0) list.push_back({rank, static_cast<int>(i) - 1, -1});
      if (work == Work::kWeightGrad) add(stage, 'B', -1);
      if (work == Work::kBackward || work == Work::kInputGrad) add(stage, 'F', -1);
      for (size_t edge = 0; edge < graph.edges.size(); ++edge) {
        const auto [writer, reader] = graph.edges[edge];
        if (work == Work::kForward && reader == stage) add(writer, 'F', static_cast<int>(edge));
        if ((work == Work::kBackward || work == Work::kInputGrad) && writer == stage) {
          add(reader, 'B', static_cast<int>(edge));
        }
      }
    }
  }
  return needs;
}

// Whether there is an order: takes away whatever needs nothing more, until nothing moves.
inline bool can_finish(const Needs& needs) {
  std::vector<std::vector<bool>> done;
  size_t left = 0;
  for (const auto& rank : needs) {
    done.emplace_back(rank.size());
    left += rank.size();
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < needs.size(); ++rank) {
      for (size_t i = 0; i < needs[rank].size(); ++i) {
        if (done[rank][i]) continue;
        bool free = true;
        for (const Need& need : needs[rank][i]) free = free && done[need.rank][need.place];
        if (!free) continue;
        done[rank][i] = moved = true;
        --left;
      }
    }
  }
  return left == 0;
}

}  // namespace contexture::parallel::testing
