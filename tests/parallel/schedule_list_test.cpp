// The list scheduler and the simulator on random graphs, placements and times.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/error.h"
#include "expect_error.h"
#include "parallel/schedule.h"
#include "schedules.h"

namespace contexture::parallel {
namespace {

constexpr double kRounding = 1e-9;  // sums of at most a few hundred times of order 1

double action_time(const StageTimes& times, const Action& action) {
  const double scale = times.scale.empty() ? 1.0 : times.scale[action.microbatch];
  double time = 0.0;
  if (action.work == Work::kForward) time += times.forward[action.stage];
  if (action.work == Work::kBackward || action.work == Work::kInputGrad)
    time += times.input_grad[action.stage];
  if (action.work == Work::kBackward || action.work == Work::kWeightGrad)
    time += times.weight_grad[action.stage];
  return scale * time;
}

// Microbatches begun and not finished on each rank, at the most.
std::vector<int> peak_microbatches(const StageGraph& graph, const Schedule& schedule) {
  std::vector<int> peaks;
  for (int rank = 0; rank < graph.num_ranks; ++rank) {
    const auto stages = std::count(graph.rank_of.begin(), graph.rank_of.end(), rank);
    std::map<int, int> finished;  // stages, by microbatch
    std::set<int> open;
    size_t peak = 0;
    for (const Action& action : schedule.by_rank[rank]) {
      if (action.work == Work::kForward) open.insert(action.microbatch);
      peak = std::max(peak, open.size());
      const bool last = action.work == Work::kBackward || action.work == Work::kWeightGrad;
      if (last && ++finished[action.microbatch] == stages) open.erase(action.microbatch);
    }
    peaks.push_back(static_cast<int>(peak));
  }
  return peaks;
}

TEST(ListSchedule, RandomGraphsOnRandomPlacementsAllRunWithinTheirLimit) {
  for (int seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    const testing::Case c = testing::random_case(seed);
    const int limit = seed % 4;  // 0: the number of ranks
    const bool split = seed / 4 % 2 == 1;
    const Schedule schedule = make_list(c.graph, c.num_microbatches, c.times, limit, split);
    check_schedule(c.graph, schedule, c.num_microbatches);
    const std::string text = to_text(schedule);
    EXPECT_EQ(text.find('B') == std::string::npos, split);
    EXPECT_EQ(text.find('W') != std::string::npos, split);
    for (const int peak : peak_microbatches(c.graph, schedule)) {
      EXPECT_LE(peak, limit == 0 ? c.graph.num_ranks : limit);
    }
  }
}

// Every start is exactly when the last of what the action needs has ended and arrived: no earlier,
// and no later.
TEST(Simulate, EveryActionStartsTheMomentItCan) {
  for (int seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    const testing::Case c = testing::random_case(seed);
    const bool split = seed % 3 == 0;
    const Schedule schedule = seed % 2 ? make_list(c.graph, c.num_microbatches, c.times, 0, split)
                                       : make_gpipe(c.graph, c.num_microbatches);
    check_schedule(c.graph, schedule, c.num_microbatches);
    const ScheduleReport report = simulate(c.graph, schedule, c.times);
    const auto needs = testing::needs_of(c.graph, schedule);
    double last = 0.0, all_busy = 0.0;
    for (int rank = 0; rank < c.graph.num_ranks; ++rank) {
      double busy = 0.0;
      for (size_t i = 0; i < schedule.by_rank[rank].size(); ++i) {
        double ready = 0.0;
        for (const auto& need : needs[rank][i]) {
          const bool sent = need.edge >= 0 && need.rank != rank && !c.times.transfer.empty();
          ready =
              std::max(ready, report.start[need.rank][need.place] +
                                  action_time(c.times, schedule.by_rank[need.rank][need.place]) +
                                  (sent ? c.times.transfer[need.edge] : 0.0));
        }
        EXPECT_NEAR(report.start[rank][i], ready, kRounding);
        busy += action_time(c.times, schedule.by_rank[rank][i]);
        last =
            std::max(last, report.start[rank][i] + action_time(c.times, schedule.by_rank[rank][i]));
      }
      EXPECT_NEAR(report.busy[rank], busy, kRounding);
      all_busy += busy;
    }
    EXPECT_NEAR(report.makespan, last, kRounding);
    EXPECT_NEAR(report.idle_fraction * last * c.graph.num_ranks,
                last * c.graph.num_ranks - all_busy, kRounding);
  }
}

TEST(ListSchedule, FindsWhat1f1bFindsOnAChain) {
  for (int p = 1; p <= 8; ++p) {
    for (const int m : {1, 2, 5, 8, 32}) {
      SCOPED_TRACE(concat("p ", p, ", m ", m));
      const Schedule schedule = make_list(chain(p), m, unit_times(p));
      check_schedule(chain(p), schedule, m);
      const ScheduleReport report = simulate(chain(p), schedule, unit_times(p));
      EXPECT_EQ(report.makespan, 3.0 * (m + p - 1));
      for (int stage = 0; stage < p; ++stage)
        EXPECT_LE(report.peak_in_flight[stage], std::min(m, p - stage));
    }
  }
}

// What no published order here is for: the first rank also has the last stage, as an encoder and
// the decoder's end.
TEST(ListSchedule, WeightGradientsFillTheGapsOfFoldedChains) {
  StageGraph folded = chain(4, 2);
  folded.rank_of = {0, 1, 2, 3, 3, 2, 1, 0};
  const int m = 32;
  const StageTimes times = unit_times(8);
  const auto makespan = [&](const StageGraph& graph, const Schedule& schedule) {
    check_schedule(graph, schedule, m);
    return simulate(graph, schedule, times).makespan;
  };
  const double busy = 6.0 * m;
  EXPECT_GT(makespan(folded, make_list(folded, m, times)), 1.2 * busy);
  EXPECT_LE(makespan(folded, make_list(folded, m, times, 0, true)), busy + 3.0);
  const StageGraph dealt = chain(4, 2);
  EXPECT_LT(makespan(dealt, make_list(dealt, m, times, 0, true)),
            makespan(dealt, make_interleaved(dealt, m)));
}

TEST(ListSchedule, SplitOnAChainComesWithinOneUnitOfZbH1) {
  for (int p = 1; p <= 8; ++p) {
    for (const int m : {8, 32}) {
      // One microbatch more than ranks: they count until their last weight gradient.
      const Schedule schedule = make_list(chain(p), m, unit_times(p), p + 1, true);
      check_schedule(chain(p), schedule, m);
      EXPECT_LE(simulate(chain(p), schedule, unit_times(p)).makespan, 3.0 * m + (p - 1) + 1)
          << "p " << p << ", m " << m;
    }
  }
}

TEST(ListSchedule, OneRankIsNeverIdle) {
  for (int seed = 0; seed < 50; ++seed) {
    testing::Case c = testing::random_case(seed);
    c.graph.num_ranks = 1;
    c.graph.rank_of.assign(c.graph.num_stages, 0);
    const Schedule schedule = make_list(c.graph, c.num_microbatches, c.times);
    check_schedule(c.graph, schedule, c.num_microbatches);
    EXPECT_NEAR(simulate(c.graph, schedule, c.times).idle_fraction, 0.0, kRounding);
    EXPECT_EQ(peak_microbatches(c.graph, schedule), std::vector<int>{1});
  }
}

// An encoder and a question tower side by side, a decoder that reads both: the towers run at once,
// which no chain schedule sees.
TEST(ListSchedule, SideBranchesRunSideBySide) {
  StageGraph graph;
  graph.num_stages = graph.num_ranks = 3;
  graph.rank_of = {0, 1, 2};
  graph.edges = {{0, 2}, {1, 2}};
  const int m = 6;
  const Schedule schedule = make_list(graph, m, unit_times(3));
  check_schedule(graph, schedule, m);
  // Rank 2 works without a pause from the first forward's arrival; the towers' last backward
  // follows it.
  EXPECT_EQ(simulate(graph, schedule, unit_times(3)).makespan, 1.0 + 3.0 * m + 2.0);
}

TEST(ListSchedule, ALimitOfOneMicrobatchIsSerialOnAChain) {
  const Schedule schedule = make_list(chain(3), 4, unit_times(3), 1);
  check_schedule(chain(3), schedule, 4);
  EXPECT_EQ(simulate(chain(3), schedule, unit_times(3)).makespan, 4 * 9.0);
}

TEST(ListSchedule, RefusesWhatCannotBe) {
  EXPECT_EQ(message_of<UsageError>([] { make_list(chain(2), 0, unit_times(2)); }),
            "list needs at least one microbatch, not 0");
  EXPECT_EQ(
      message_of<UsageError>([] { make_list(chain(2), 1, unit_times(2), -1); }),
      "list cannot hold -1 microbatches in flight. Take 1 or more, or 0 for the number of ranks.");
  EXPECT_THROW(make_list(chain(2), 1, unit_times(3)), Bug);
}

}  // namespace
}  // namespace contexture::parallel
