#include <algorithm>
#include <map>

#include "core/error.h"
#include "parallel/internal/schedule_clock.h"
#include "parallel/schedule.h"

namespace contexture::parallel {
namespace {

constexpr int kNowhere = -1;

class Checker {
 public:
  Checker(const StageGraph& graph, const Schedule& schedule, int num_microbatches)
      : graph_(graph),
        schedule_(schedule),
        num_microbatches_(num_microbatches),
        links_(links_of(graph)),
        work_(graph.num_stages, num_microbatches, 0) {}

  void require_each_once() {
    const int num_rows = static_cast<int>(schedule_.by_rank.size());
    require(num_rows == graph_.num_ranks, kNowhere, "it has ", num_rows, " lines for ",
            graph_.num_ranks, " ranks");
    for (int rank = 0; rank < num_rows; ++rank) {
      const auto& actions = schedule_.by_rank[rank];
      for (size_t i = 0; i < actions.size(); ++i) require_belongs(rank, i, actions[i]);
    }
    for (int stage = 0; stage < graph_.num_stages; ++stage) {
      for (int m = 0; m < num_microbatches_; ++m) {
        const int rank = graph_.rank_of[stage];
        const char backward = work_.at(stage, Table::kBackward, m);
        const char weights = work_.at(stage, Table::kWeightGrad, m);
        require(work_.at(stage, Table::kForward, m) != 0, rank, "rank ", rank, " lacks ", stage,
                "F", m);
        require(backward != 0, rank, "rank ", rank, " lacks ", stage, "B", m, " (or I and W)");
        require(backward != 'I' || weights != 0, rank, "rank ", rank, " lacks ", stage, "W", m,
                " after its I");
        require(backward != 'B' || weights == 0, rank, "rank ", rank, " has ", stage, "W", m,
                ", which its B includes");
      }
    }
  }

  void require_no_deadlock() const {
    const ClockRun run = run_clock(graph_, links_, schedule_, unit_times(graph_.num_stages));
    if (run.finished) return;
    // Every stuck rank waits for another action, on a rank that is stuck too: following them ends
    // in a circle.
    int rank = 0;
    while (!stuck(run, rank)) ++rank;
    for (int i = 0; i < graph_.num_ranks; ++i) rank = graph_.rank_of[missing(run, rank).stage];
    const int first = rank;
    std::string story;
    do {
      const Action needed = missing(run, rank);
      story += concat(story.empty() ? "" : "; ", "rank ", rank, " stands at ",
                      to_text(head(run, rank)), " and waits for ", to_text(needed));
      rank = graph_.rank_of[needed.stage];
    } while (rank != first);
    require(false, first, "it deadlocks: ", story);
  }

 private:
  using Table = WorkTable<char>;

  template <typename... Parts>
  void require(bool condition, int rank, const Parts&... parts) const {
    CONTEXTURE_REQUIRE(condition, "this schedule of ", graph_.num_stages, " stages on ",
                       graph_.num_ranks, " ranks with ", num_microbatches_,
                       " microbatches cannot run: ", concat(parts...), ".\n",
                       grid(graph_, schedule_, unit_times(graph_.num_stages), rank));
  }

  void require_belongs(int rank, size_t place, const Action& action) {
    const std::string where =
        concat("rank ", rank, ", action ", place + 1, " (", to_text(action), "): ");
    require(action.stage >= 0 && action.stage < graph_.num_stages, rank, where, "stages are 0 to ",
            graph_.num_stages - 1);
    require(action.microbatch >= 0 && action.microbatch < num_microbatches_, rank, where,
            "microbatches are 0 to ", num_microbatches_ - 1);
    require(graph_.rank_of[action.stage] == rank, rank, where, "this stage is on rank ",
            graph_.rank_of[action.stage]);
    char& known = work_.at(action);
    require(known == 0, rank, where, "the second such work of this stage and microbatch, after ",
            action.stage, known, action.microbatch);
    known = static_cast<char>(action.work);
  }

  bool stuck(const ClockRun& run, int rank) const {
    return run.end[rank].size() < schedule_.by_rank[rank].size();
  }
  const Action& head(const ClockRun& run, int rank) const {
    return schedule_.by_rank[rank][run.end[rank].size()];
  }

  // What the first action that a stuck rank could not run waits for.
  Action missing(const ClockRun& run, int rank) const {
    const Action& action = head(run, rank);
    Action found = action;
    bool any = false;
    for_each_need(links_, action, [&](int stage, auto slot, int) {
      if (any) return;
      const int on = graph_.rank_of[stage];
      const auto& actions = schedule_.by_rank[on];
      for (size_t i = run.end[on].size(); i < actions.size() && !any; ++i) {
        if (actions[i].stage != stage || actions[i].microbatch != action.microbatch) continue;
        if (static_cast<int>(Table::slot(actions[i].work)) != static_cast<int>(slot)) continue;
        found = actions[i];
        any = true;
      }
    });
    CONTEXTURE_INVARIANT(any, to_text(action), " of rank ", rank, " waits for nothing");
    return found;
  }

  const StageGraph& graph_;
  const Schedule& schedule_;
  int num_microbatches_;
  StageLinks links_;
  Table work_;  // the letter of the work that is there, or 0
};

}  // namespace

std::vector<Message> messages(const StageGraph& graph, const Schedule& schedule) {
  const StageLinks links = links_of(graph);
  WorkTable<int> place(graph.num_stages, num_microbatches_of(schedule), kNowhere);
  for (const auto& actions : schedule.by_rank) {
    for (size_t i = 0; i < actions.size(); ++i) place.at(actions[i]) = static_cast<int>(i);
  }
  std::vector<Message> all;
  for (int from = 0; from < graph.num_ranks; ++from) {
    std::map<int, std::vector<Message>> by_receiver;
    for (size_t i = 0; i < schedule.by_rank[from].size(); ++i) {
      const Action& action = schedule.by_rank[from][i];
      if (action.work == Work::kWeightGrad) continue;
      const bool forward = action.work == Work::kForward;
      std::map<int, int> first_need;  // receiver -> place
      for (const auto& other :
           forward ? links.readers[action.stage] : links.writers[action.stage]) {
        const int to = graph.rank_of[other.stage];
        if (to == from) continue;
        const int need =
            place.at({other.stage, forward ? Work::kForward : Work::kBackward, action.microbatch});
        CONTEXTURE_INVARIANT(need != kNowhere, "nobody takes what ", to_text(action),
                             " sends to rank ", to);
        const auto [known, is_new] = first_need.emplace(to, need);
        if (!is_new) known->second = std::min(known->second, need);
      }
      for (const auto& [to, need] : first_need) {
        by_receiver[to].push_back({from, to, action, static_cast<int>(i), need, need});
      }
    }
    for (auto& [to, sent] : by_receiver) {
      for (size_t i = sent.size() - 1; i > 0; --i) {
        sent[i - 1].received_by = std::min(sent[i - 1].received_by, sent[i].received_by);
      }
      all.insert(all.end(), sent.begin(), sent.end());
    }
  }
  return all;
}

ScheduleCheck check_schedule(const StageGraph& graph, const Schedule& schedule,
                             int num_microbatches) {
  CONTEXTURE_USAGE_REQUIRE(num_microbatches >= 1, "a schedule needs at least one microbatch, not ",
                           num_microbatches);
  Checker checker(graph, schedule, num_microbatches);
  checker.require_each_once();
  checker.require_no_deadlock();

  ScheduleCheck check;
  const std::vector<Message> all = messages(graph, schedule);
  for (size_t i = 1; i < all.size() && check.tagless_safe; ++i) {
    const Message &before = all[i - 1], &after = all[i];
    if (before.from_rank != after.from_rank || before.to_rank != after.to_rank) continue;
    if (before.needed_by <= after.needed_by) continue;
    check.tagless_safe = false;
    check.tagless_conflict =
        concat("rank ", before.from_rank, " sends rank ", before.to_rank, " what comes of ",
               to_text(before.sent_by), " before what comes of ", to_text(after.sent_by),
               ", which is needed first");
  }
  return check;
}

}  // namespace contexture::parallel
