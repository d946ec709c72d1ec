#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "core/error.h"
#include "parallel/internal/schedule_links.h"
#include "parallel/schedule.h"

namespace contexture::parallel {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Longest paths through one microbatch, if nothing had to wait: from the start of a stage's forward
// or backward to the end of the last backward it leads to. [num_stages]
struct Paths {
  std::vector<double> forward, backward;
};

// Only backwards on end_rank count as ends (-1: all do); minus infinity where there is no way to
// one.
Paths longest_paths(const StageGraph& graph, const StageLinks& links, const StageTimes& times,
                    bool split_backward, int end_rank) {
  Paths paths{std::vector<double>(graph.num_stages), std::vector<double>(graph.num_stages)};
  for (int stage = 0; stage < graph.num_stages; ++stage) {
    const bool is_end = end_rank < 0 || graph.rank_of[stage] == end_rank;
    double rest = is_end ? 0.0 : -kNever;
    for (const auto& writer : links.writers[stage]) {
      rest = std::max(rest, transfer(graph, times, writer.edge) + paths.backward[writer.stage]);
    }
    paths.backward[stage] =
        times.input_grad[stage] + (split_backward ? 0.0 : times.weight_grad[stage]) + rest;
  }
  for (int stage = graph.num_stages - 1; stage >= 0; --stage) {
    double rest = paths.backward[stage];
    for (const auto& reader : links.readers[stage]) {
      rest = std::max(rest, transfer(graph, times, reader.edge) + paths.forward[reader.stage]);
    }
    paths.forward[stage] = times.forward[stage] + rest;
  }
  return paths;
}

// Work of the busiest rank per microbatch: none can follow another faster.
double pace_of(const StageGraph& graph, const StageTimes& times) {
  std::vector<double> work(graph.num_ranks);
  for (int stage = 0; stage < graph.num_stages; ++stage) {
    work[graph.rank_of[stage]] +=
        times.forward[stage] + times.input_grad[stage] + times.weight_grad[stage];
  }
  return *std::max_element(work.begin(), work.end());
}

// Microbatches that a rank can begin, at that pace, until its first comes back; at most
// max_in_flight. [num_ranks]
std::vector<int> useful_in_flight(const StageGraph& graph, const StageLinks& links,
                                  const StageTimes& times, bool split_backward, int max_in_flight) {
  constexpr double kRounding = 1e-9;  // a chain's quotient is whole but for rounding
  const double pace = pace_of(graph, times);
  std::vector<int> limits(graph.num_ranks, max_in_flight);
  for (int rank = 0; rank < graph.num_ranks && pace > 0.0; ++rank) {
    const Paths paths = longest_paths(graph, links, times, split_backward, rank);
    double way_back = 0.0, weight_grad = 0.0;
    for (int stage = 0; stage < graph.num_stages; ++stage) {
      if (graph.rank_of[stage] != rank) continue;
      way_back = std::max(way_back, paths.forward[stage]);
      if (split_backward) weight_grad = std::max(weight_grad, times.weight_grad[stage]);
    }
    const double useful = std::ceil((way_back + weight_grad) / pace - kRounding);
    if (useful < max_in_flight) limits[rank] = std::max(1, static_cast<int>(useful));
  }
  return limits;
}

// Which of a rank's ready work goes first. Weight gradients, where they are apart, go last.
enum class Rule {
  kMicrobatch,  // backward before forward; the lowest microbatch
  kPath,        // backward before forward; the longest way to go
  kDue,         // what would be due first if microbatches came in at the busiest rank's pace
};

class Greedy {
 public:
  Greedy(const StageGraph& graph, const StageLinks& links, const StageTimes& times,
         const Paths& paths, int num_microbatches, bool split_backward, std::vector<int> limits,
         Rule rule)
      : graph_(graph),
        links_(links),
        times_(times),
        paths_(paths),
        num_microbatches_(num_microbatches),
        backward_(split_backward ? Work::kInputGrad : Work::kBackward),
        limits_(std::move(limits)),
        rule_(rule),
        pace_(pace_of(graph, times)),
        ranks_(graph.num_ranks) {
    schedule_.by_rank.resize(graph.num_ranks);
    for (RankState& rank : ranks_) rank.stages_left.assign(num_microbatches, 0);
    const size_t num_tasks = static_cast<size_t>(graph.num_stages) * num_microbatches;
    forward_needs_.resize(num_tasks);
    backward_needs_.resize(num_tasks);
    for (int stage = 0; stage < graph.num_stages; ++stage) {
      RankState& rank = ranks_[graph.rank_of[stage]];
      for (int m = 0; m < num_microbatches; ++m) {
        ++rank.stages_left[m];
        forward_needs_[task(stage, m)] = {static_cast<int>(links.writers[stage].size()), 0.0};
        backward_needs_[task(stage, m)] = {static_cast<int>(links.readers[stage].size()) + 1, 0.0};
        if (links.writers[stage].empty()) rank.ready.push_back({{stage, Work::kForward, m}, 0.0});
      }
    }
  }

  // Microbatches are begun on a rank in ascending order. So the lowest that is not finished can go
  // on everywhere, whatever the limits: there is always something to run.
  Schedule run() {
    const size_t num_actions = (backward_ == Work::kInputGrad ? 3 : 2) * forward_needs_.size();
    for (size_t done = 0; done < num_actions; ++done) {
      int first = 0;
      for (int rank = 1; rank < graph_.num_ranks; ++rank) {
        if (earliest(rank) < earliest(first)) first = rank;
      }
      CONTEXTURE_INVARIANT(std::isfinite(earliest(first)), "nothing is ready after ", done,
                           " actions");
      start(first, best(first));
    }
    return std::move(schedule_);
  }

 private:
  struct Needs {
    int missing = 0;
    double arrival = 0.0;  // of the latest so far
  };
  struct Ready {
    Action action;
    double arrival;
  };
  struct RankState {
    double free_at = 0.0;
    double earliest = 0.0;  // next possible start; valid unless stale
    bool stale = true;
    int begun = 0, open = 0;       // microbatches
    std::vector<int> stages_left;  // [num_microbatches], on this rank
    std::vector<Ready> ready;      // all inputs known to arrive
  };

  size_t task(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * num_microbatches_ + microbatch;
  }

  bool admitted(int rank, const Action& action) const {
    const RankState& state = ranks_[rank];
    return action.microbatch < state.begun ||
           (action.microbatch == state.begun && state.open < limits_[rank]);
  }

  double earliest(int rank) {
    RankState& state = ranks_[rank];
    if (state.stale) {
      state.earliest = kNever;
      for (const Ready& ready : state.ready) {
        if (admitted(rank, ready.action))
          state.earliest = std::min(state.earliest, std::max(state.free_at, ready.arrival));
      }
      state.stale = false;
    }
    return state.earliest;
  }

  // Less is better.
  std::tuple<double, double, double, int> order_of(const Action& action) const {
    const bool is_forward = action.work == Work::kForward;
    const double way = is_forward ? paths_.forward[action.stage] : paths_.backward[action.stage];
    const double microbatch = action.microbatch, forward = is_forward ? 1.0 : 0.0;
    if (action.work == Work::kWeightGrad) return {kNever, microbatch, 0.0, action.stage};
    switch (rule_) {
      case Rule::kMicrobatch:
        return {forward, microbatch, -way, action.stage};
      case Rule::kPath:
        return {forward, -way, microbatch, action.stage};
      case Rule::kDue:
        return {microbatch * pace_ - way, forward, microbatch, action.stage};
    }
    CONTEXTURE_INVARIANT(false, "rule ", static_cast<int>(rule_));
  }

  size_t best(int rank) {
    const double now = earliest(rank);
    const auto& ready = ranks_[rank].ready;
    size_t best = ready.size();
    for (size_t i = 0; i < ready.size(); ++i) {
      if (ready[i].arrival > now || !admitted(rank, ready[i].action)) continue;
      if (best == ready.size() || order_of(ready[i].action) < order_of(ready[best].action))
        best = i;
    }
    return best;
  }

  void start(int rank, size_t index) {
    RankState& state = ranks_[rank];
    const Action action = state.ready[index].action;
    const double end = earliest(rank) + duration(times_, action);
    state.ready[index] = state.ready.back();
    state.ready.pop_back();
    state.free_at = end;
    state.stale = true;
    schedule_.by_rank[rank].push_back(action);
    const int m = action.microbatch;
    if (action.work == Work::kForward) {
      if (m == state.begun) {
        ++state.begun;
        ++state.open;
      }
      arrive({action.stage, backward_, m}, end);
      for (const auto& reader : links_.readers[action.stage]) {
        arrive({reader.stage, Work::kForward, m}, end + transfer(graph_, times_, reader.edge));
      }
    }
    if (is_backward(action.work)) {
      for (const auto& writer : links_.writers[action.stage]) {
        arrive({writer.stage, backward_, m}, end + transfer(graph_, times_, writer.edge));
      }
      if (action.work == Work::kInputGrad) {
        state.ready.push_back({{action.stage, Work::kWeightGrad, m}, end});
      }
    }
    if (action.work == Work::kBackward || action.work == Work::kWeightGrad) {
      if (--state.stages_left[m] == 0) --state.open;
    }
  }

  void arrive(const Action& action, double time) {
    const size_t index = task(action.stage, action.microbatch);
    Needs& needs = action.work == Work::kForward ? forward_needs_[index] : backward_needs_[index];
    needs.arrival = std::max(needs.arrival, time);
    if (--needs.missing > 0) return;
    RankState& state = ranks_[graph_.rank_of[action.stage]];
    state.ready.push_back({action, needs.arrival});
    state.stale = true;
  }

  const StageGraph& graph_;
  const StageLinks& links_;
  const StageTimes& times_;
  const Paths& paths_;
  int num_microbatches_;
  Work backward_;            // B or I
  std::vector<int> limits_;  // [num_ranks]
  Rule rule_;
  double pace_;
  std::vector<RankState> ranks_;
  std::vector<Needs> forward_needs_, backward_needs_;  // [stage * num_microbatches + microbatch]
  Schedule schedule_;
};

}  // namespace

Schedule make_list(const StageGraph& graph, int num_microbatches, const StageTimes& times,
                   int max_in_flight, bool split_backward) {
  CONTEXTURE_USAGE_REQUIRE(num_microbatches >= 1, "list needs at least one microbatch, not ",
                           num_microbatches);
  CONTEXTURE_USAGE_REQUIRE(
      max_in_flight >= 0, "list cannot hold ", max_in_flight,
      " microbatches in flight. Take 1 or more, or 0 for the number of ranks.");
  const StageLinks links = links_of(graph);
  require_times(graph, times, num_microbatches);
  const Paths paths = longest_paths(graph, links, times, split_backward, -1);
  const int limit = max_in_flight == 0 ? graph.num_ranks : max_in_flight;

  Schedule best;
  std::pair<double, int> best_cost;
  for (const std::vector<int>& limits :
       {useful_in_flight(graph, links, times, split_backward, limit),
        std::vector<int>(graph.num_ranks, limit)}) {
    for (const Rule rule : {Rule::kMicrobatch, Rule::kPath, Rule::kDue}) {
      Schedule schedule =
          Greedy(graph, links, times, paths, num_microbatches, split_backward, limits, rule).run();
      const ScheduleReport report = simulate(graph, schedule, times);
      const auto& held = report.peak_in_flight;
      const std::pair cost(report.makespan, std::accumulate(held.begin(), held.end(), 0));
      if (best.by_rank.empty() || cost < best_cost) {
        best = std::move(schedule);
        best_cost = cost;
      }
    }
  }
  return best;
}

}  // namespace contexture::parallel
