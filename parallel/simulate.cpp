#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "parallel/internal/schedule_clock.h"
#include "parallel/schedule.h"

namespace contexture::parallel {

ClockRun run_clock(const StageGraph& graph, const StageLinks& links, const Schedule& schedule,
                   const StageTimes& times) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const size_t num_ranks = schedule.by_rank.size();
  const int num_microbatches = num_microbatches_of(schedule);
  WorkTable<double> end(graph.num_stages, num_microbatches, kNever);
  // When all that the action reads has arrived.
  const auto arrival = [&](const Action& action) {
    if (action.stage < 0 || action.stage >= graph.num_stages) return kNever;
    if (action.microbatch < 0 || action.microbatch >= num_microbatches) return kNever;
    double latest = 0.0;
    for_each_need(links, action, [&](int stage, auto slot, int edge) {
      const double message = edge < 0 ? 0.0 : transfer(graph, times, edge);
      latest = std::max(
          latest,
          end.at(stage, static_cast<WorkTable<double>::Slot>(slot), action.microbatch) + message);
    });
    return latest;
  };

  ClockRun run;
  run.start.resize(num_ranks);
  run.end.resize(num_ranks);
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      const auto& actions = schedule.by_rank[rank];
      auto& ends = run.end[rank];
      while (ends.size() < actions.size()) {
        const Action& action = actions[ends.size()];
        const double ready = arrival(action);
        if (ready == kNever) break;
        run.start[rank].push_back(std::max(ready, ends.empty() ? 0.0 : ends.back()));
        ends.push_back(run.start[rank].back() + duration(times, action));
        end.at(action) = ends.back();
        run.makespan = std::max(run.makespan, ends.back());
        moved = true;
      }
    }
  }
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    if (run.end[rank].size() < schedule.by_rank[rank].size()) run.finished = false;
  }
  return run;
}

ScheduleReport simulate(const StageGraph& graph, const Schedule& schedule,
                        const StageTimes& times) {
  require_times(graph, times, num_microbatches_of(schedule));
  ClockRun run = run_clock(graph, links_of(graph), schedule, times);
  CONTEXTURE_INVARIANT(run.finished, "this schedule was never checked:\n", to_text(schedule));
  ScheduleReport report;
  report.makespan = run.makespan;
  double all_busy = 0.0;
  for (const auto& actions : schedule.by_rank) {
    double busy = 0.0;
    int in_flight = 0, peak_in_flight = 0, weight_grads = 0, peak_weight_grads = 0;
    for (const Action& action : actions) {
      busy += duration(times, action);
      if (action.work == Work::kForward) ++in_flight;
      if (action.work == Work::kInputGrad) ++weight_grads;
      peak_in_flight = std::max(peak_in_flight, in_flight);
      peak_weight_grads = std::max(peak_weight_grads, weight_grads);
      if (is_backward(action.work)) --in_flight;
      if (action.work == Work::kWeightGrad) --weight_grads;
    }
    all_busy += busy;
    report.busy.push_back(busy);
    report.peak_in_flight.push_back(peak_in_flight);
    report.peak_weight_grads.push_back(peak_weight_grads);
  }
  const double rank_time = report.makespan * static_cast<double>(schedule.by_rank.size());
  report.idle_fraction = rank_time > 0.0 ? 1.0 - all_busy / rank_time : 0.0;
  report.start = std::move(run.start);
  return report;
}

std::string grid(const StageGraph& graph, const Schedule& schedule, const StageTimes& times,
                 int marked) {
  constexpr double kMaxColumns = 200.0;
  const ClockRun run = run_clock(graph, links_of(graph), schedule, times);
  double unit = std::numeric_limits<double>::infinity();
  size_t width = 0;
  for (size_t rank = 0; rank < schedule.by_rank.size(); ++rank) {
    for (const Action& action : schedule.by_rank[rank])
      width = std::max(width, to_text(action).size() + 1);
    for (size_t i = 0; i < run.end[rank].size(); ++i) {
      const double time = run.end[rank][i] - run.start[rank][i];
      if (time > 0.0) unit = std::min(unit, time);
    }
  }
  unit = std::isfinite(unit) ? std::max(unit, run.makespan / kMaxColumns) : 1.0;

  std::string text = concat("(one column is ", unit, ")\n");
  for (size_t rank = 0; rank < schedule.by_rank.size(); ++rank) {
    const auto& actions = schedule.by_rank[rank];
    const size_t num_run = run.end[rank].size();
    std::vector<std::string> cells;
    const auto fill_to = [&](double time, const char* with) {
      const size_t column = static_cast<size_t>(std::llround(time / unit));
      if (cells.size() < column) cells.resize(column, with);
    };
    for (size_t i = 0; i < num_run; ++i) {
      fill_to(run.start[rank][i], ".");
      cells.push_back(to_text(actions[i]));
      fill_to(run.end[rank][i], "=");
    }
    if (num_run < actions.size()) cells.push_back("|");
    for (size_t i = num_run; i < actions.size(); ++i) cells.push_back(to_text(actions[i]));

    std::string row = concat(static_cast<int>(rank) == marked ? "> rank " : "  rank ", rank, ":");
    for (const std::string& cell : cells) {
      row += ' ';
      row += cell;
      row.append(std::max(width, cell.size() + 1) - cell.size() - 1, ' ');
    }
    text += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace contexture::parallel
