// Executes the order of a schedule against the clock, as far as it goes.
#pragma once
#include <vector>

#include "parallel/internal/schedule_links.h"

namespace contexture::parallel {

// A value for each (stage, microbatch) and forward, backward (B or I) and weight gradient.
template <typename T>
class WorkTable {
 public:
  enum Slot { kForward = 0, kBackward = 1, kWeightGrad = 2 };
  WorkTable(int num_stages, int num_microbatches, T initial)
      : num_microbatches_(num_microbatches),
        values_(size_t{3} * num_stages * num_microbatches, initial) {}

  static Slot slot(Work work) {
    if (work == Work::kForward) return kForward;
    return work == Work::kWeightGrad ? kWeightGrad : kBackward;
  }
  auto& at(int stage, Slot slot, int microbatch) {
    return values_[(static_cast<size_t>(stage) * num_microbatches_ + microbatch) * 3 + slot];
  }
  auto& at(const Action& action) { return at(action.stage, slot(action.work), action.microbatch); }

 private:
  int num_microbatches_;
  std::vector<T> values_;
};

// Calls visit(stage, slot, edge) for all that an action waits for within its microbatch; edge is -1
// for its own stage.
template <typename Visit>
void for_each_need(const StageLinks& links, const Action& action, Visit&& visit) {
  using Table = WorkTable<int>;
  if (action.work == Work::kForward) {
    for (const auto& writer : links.writers[action.stage])
      visit(writer.stage, Table::kForward, writer.edge);
  } else if (action.work == Work::kWeightGrad) {
    visit(action.stage, Table::kBackward, -1);
  } else {
    visit(action.stage, Table::kForward, -1);
    for (const auto& reader : links.readers[action.stage])
      visit(reader.stage, Table::kBackward, reader.edge);
  }
}

struct ClockRun {
  std::vector<std::vector<double>> start,
      end;  // [num_ranks][actions that ran]: shorter than the schedule where it got stuck
  double makespan = 0.0;
  bool finished = true;
};
// Also takes schedules that are wrong: an action of a stage that does not exist never runs.
ClockRun run_clock(const StageGraph& graph, const StageLinks& links, const Schedule& schedule,
                   const StageTimes& times);

}  // namespace contexture::parallel
