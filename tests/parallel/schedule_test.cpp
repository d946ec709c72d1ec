// Generators, simulator and text form, against closed forms.
#include "parallel/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "expect_error.h"
#include "schedules.h"

namespace contexture::parallel {
namespace {

constexpr double kRounding = 1e-9;  // sums of at most a few thousand times of order 1

// Simulates only what the checker let through.
ScheduleReport run(const StageGraph& graph, const Schedule& schedule, int num_microbatches,
                   const StageTimes& times) {
  check_schedule(graph, schedule, num_microbatches);
  return simulate(graph, schedule, times);
}

// The same forward, input-gradient and weight-gradient time on every stage.
StageTimes even_times(int num_stages, double forward, double input_grad, double weight_grad) {
  StageTimes times;
  times.forward.assign(num_stages, forward);
  times.input_grad.assign(num_stages, input_grad);
  times.weight_grad.assign(num_stages, weight_grad);
  return times;
}

struct Times {
  double forward, input_grad, weight_grad;
  double all() const { return forward + input_grad + weight_grad; }
};

// What each rank is idle while the pipeline runs.
double idle(const ScheduleReport& report) {
  return report.makespan - *std::max_element(report.busy.begin(), report.busy.end());
}

TEST(Schedule, GpipeAnd1f1bHaveTheClosedFormsIdleTimeAndMemory) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 32; ++m) {
      for (const Times t : {Times{1, 1, 1}, Times{2, 3, 0.5}, Times{1, 0, 4}}) {
        SCOPED_TRACE(concat("p ", p, ", m ", m, ", forward ", t.forward));
        const StageTimes times = even_times(p, t.forward, t.input_grad, t.weight_grad);
        const ScheduleReport gpipe = run(chain(p), make_gpipe(chain(p), m), m, times);
        const ScheduleReport one = run(chain(p), make_1f1b(chain(p), m), m, times);
        for (const ScheduleReport* report : {&gpipe, &one}) {
          EXPECT_NEAR(idle(*report), (p - 1) * t.all(), kRounding);
          EXPECT_NEAR(report->idle_fraction, (p - 1.0) / (m + p - 1), kRounding);
          for (const double busy : report->busy) EXPECT_NEAR(busy, m * t.all(), kRounding);
        }
        for (int stage = 0; stage < p; ++stage) {
          EXPECT_EQ(gpipe.peak_in_flight[stage], m);
          EXPECT_EQ(one.peak_in_flight[stage], std::min(m, p - stage));
          EXPECT_EQ(one.peak_weight_grads[stage], 0);
        }
      }
    }
  }
}

TEST(Schedule, InterleavingDividesTheIdleTimeByTheChunks) {
  for (int p = 1; p <= 8; ++p) {
    for (int chunks = 1; chunks <= 4; ++chunks) {
      for (int m = p; m <= 32; m += p) {
        SCOPED_TRACE(concat("p ", p, ", chunks ", chunks, ", m ", m));
        const StageGraph graph = chain(p, chunks);
        const Schedule schedule = make_interleaved(graph, m);
        // A stage is a chunk of what a rank does in all: 1 / chunks of the rank's time.
        const StageTimes times = even_times(p * chunks, 2.0 / chunks, 3.0 / chunks, 0.5 / chunks);
        const ScheduleReport report = run(graph, schedule, m, times);
        EXPECT_NEAR(idle(report), (p - 1) * 5.5 / chunks, kRounding);
        EXPECT_NEAR(idle(report) / (5.5 * m), (p - 1.0) / (chunks * m), kRounding);
        EXPECT_EQ(messages(graph, schedule).size(), p == 1 ? 0u : 2u * m * (p * chunks - 1));
        if (chunks > 1) {  // in stages: p * chunks of them are what 1F1B holds
          const double factor = 1.0 + (p - 1.0) / (p * chunks);
          EXPECT_EQ(report.peak_in_flight[0],
                    std::min<int>(m * chunks, std::lround(p * chunks * factor)));
        }
      }
    }
  }
}

TEST(Schedule, ZbH1FillsTheEndWithWeightGradients) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 32; ++m) {
      for (const Times t : {Times{1, 1, 1}, Times{2, 3, 0.5}, Times{3, 2, 2}, Times{1, 2, 1},
                            Times{1, 1, 2}, Times{1, 2, 3}, Times{3, 1, 2}}) {
        SCOPED_TRACE(concat("p ", p, ", m ", m, ", times ", t.forward, " ", t.input_grad, " ",
                            t.weight_grad));
        const StageTimes times = even_times(p, t.forward, t.input_grad, t.weight_grad);
        const ScheduleReport report = run(chain(p), make_zb_h1(chain(p), m), m, times);
        const bool published = m >= p && t.weight_grad <= std::min(t.forward, t.input_grad);
        if (published) {
          EXPECT_NEAR(idle(report), (p - 1) * (t.forward + t.input_grad - t.weight_grad),
                      kRounding);
        }
        // Fewer microbatches than ranks have only m - 1 weight gradients to wait with for the last
        // gradient; and one that is longer than the other work fills no more than that would.
        const double filled =
            std::min(m - 1, p - 1) * std::min({t.forward, t.input_grad, t.weight_grad});
        EXPECT_NEAR(idle(report), (p - 1) * (t.forward + t.input_grad) - filled, kRounding);
        for (int stage = 0; stage < p; ++stage) {
          EXPECT_EQ(report.peak_in_flight[stage], std::min(m, p - stage));
          EXPECT_EQ(report.peak_weight_grads[stage], std::min(m, stage + 1));
        }
      }
    }
  }
}

TEST(Schedule, IdleFractionsAreTheGoldenOnes) {
  const auto rounded = [](double x) { return std::round(x * 1e4) / 1e4; };
  const auto fraction = [&](const StageGraph& graph, const Schedule& schedule, int m) {
    return rounded(run(graph, schedule, m, unit_times(graph.num_stages)).idle_fraction);
  };
  const auto overhead = [&](const StageGraph& graph, const Schedule& schedule, int m) {
    const ScheduleReport report = run(graph, schedule, m, unit_times(graph.num_stages));
    return rounded(idle(report) / report.busy[0]);
  };
  for (const auto make : {make_gpipe, make_1f1b}) {
    EXPECT_EQ(fraction(chain(4), make(chain(4), 8), 8), .2727);
    EXPECT_EQ(overhead(chain(4), make(chain(4), 8), 8), .375);
    EXPECT_EQ(fraction(chain(8), make(chain(8), 32), 32), .1795);
    EXPECT_EQ(fraction(chain(2), make(chain(2), 4), 4), .2);
  }
  EXPECT_EQ(overhead(chain(4, 2), make_interleaved(chain(4, 2), 8), 8), .1875);
  EXPECT_EQ(fraction(chain(4, 2), make_interleaved(chain(4, 2), 8), 8), .1579);
  EXPECT_EQ(fraction(chain(8, 2), make_interleaved(chain(8, 2), 32), 32), .0986);
  EXPECT_EQ(fraction(chain(4), make_zb_h1(chain(4), 8), 8), .1111);
  EXPECT_EQ(fraction(chain(8), make_zb_h1(chain(8), 32), 32), .068);
  EXPECT_EQ(fraction(chain(2), make_zb_h1(chain(2), 4), 4), .0769);
}

TEST(Schedule, GeneratorsWriteThePublishedOrders) {
  EXPECT_EQ(to_text(make_gpipe(chain(2), 2)), "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n");
  EXPECT_EQ(to_text(make_1f1b(chain(2), 3)),
            "0F0 0F1 0B0 0F2 0B1 0B2\n"
            "1F0 1B0 1F1 1B1 1F2 1B2\n");
  EXPECT_EQ(to_text(make_zb_h1(chain(2), 3)),
            "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2\n"
            "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2\n");
  EXPECT_EQ(to_text(make_interleaved(chain(2, 2), 4)),
            "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3\n"
            "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3\n");
}

TEST(Schedule, OneMicrobatchRunsOnFourStages) {
  for (const auto make : {make_gpipe, make_1f1b, make_zb_h1}) {
    const ScheduleReport report = run(chain(4), make(chain(4), 1), 1, unit_times(4));
    EXPECT_EQ(report.peak_in_flight, (std::vector<int>{1, 1, 1, 1}));
  }
  EXPECT_EQ(to_text(make_1f1b(chain(4), 1)), "0F0 0B0\n1F0 1B0\n2F0 2B0\n3F0 3B0\n");
}

// Five layers over three ranks: every layer is used once, wherever it lives.
TEST(Schedule, FiveStagesRunOnThreeRanks) {
  StageGraph graph = chain(5);
  graph.num_ranks = 3;
  graph.rank_of = {0, 0, 1, 1, 2};
  const int m = 4;
  EXPECT_EQ(to_text(make_1f1b(graph, 1)), "0F0 1F0 1B0 0B0\n2F0 3F0 3B0 2B0\n4F0 4B0\n");
  for (const Schedule& schedule : {make_gpipe(graph, m), make_1f1b(graph, m), make_zb_h1(graph, m),
                                   make_list(graph, m, unit_times(5))}) {
    const ScheduleReport report = run(graph, schedule, m, unit_times(5));
    EXPECT_EQ(report.busy, (std::vector<double>{6.0 * m, 6.0 * m, 3.0 * m}));
  }
  EXPECT_EQ(run(graph, make_1f1b(graph, m), m, unit_times(5)).peak_in_flight,
            (std::vector<int>{6, 4, 1}));

  graph.rank_of = {0, 1, 2, 0, 1};  // dealt out: apart on a rank, and uneven
  for (const Schedule& schedule : {make_gpipe(graph, m), make_list(graph, m, unit_times(5))}) {
    run(graph, schedule, m, unit_times(5));
  }
  EXPECT_EQ(message_of<UsageError>([&] { make_1f1b(graph, m); }),
            "1f1b needs one run of consecutive stages on each rank, but of 5 stages on 3 ranks, "
            "rank 0 has several apart. "
            "Use interleaved or list.");
  EXPECT_EQ(message_of<UsageError>([&] { make_interleaved(graph, 3); }),
            "interleaved needs the same number of stages on each rank, dealt out in turn (stage s "
            "on rank s % 3), which 5 "
            "stages on 3 ranks are not. Use list.");
}

TEST(Schedule, RanksWithoutStagesAreRefusedOrIdle) {
  StageGraph graph = chain(2);
  graph.num_ranks = 3;
  EXPECT_EQ(message_of<UsageError>([&] { make_zb_h1(graph, 4); }),
            "zb_h1 needs one run of consecutive stages on each rank, but of 2 stages on 3 ranks, "
            "rank 2 has none. Use fewer "
            "ranks.");
  const ScheduleReport report = run(graph, make_gpipe(graph, 2), 2, unit_times(2));
  EXPECT_EQ(report.busy[2], 0.0);
  EXPECT_NEAR(report.idle_fraction, 1.0 - 12.0 / (3 * 9), kRounding);
}

TEST(Schedule, InterleavedNamesTheNearestNumbersOfMicrobatches) {
  const auto refusal = [](int m) {
    return message_of<UsageError>([&] { make_interleaved(chain(4, 2), m); });
  };
  EXPECT_EQ(refusal(6),
            "interleaved needs a multiple of the number of ranks as microbatches: 6 on 4 ranks "
            "cannot work. Take 4 or 8.");
  EXPECT_EQ(refusal(3),
            "interleaved needs a multiple of the number of ranks as microbatches: 3 on 4 ranks "
            "cannot work. Take 4.");
  EXPECT_EQ(refusal(0), "interleaved needs at least one microbatch, not 0");
  for (const auto make : {make_gpipe, make_1f1b, make_zb_h1}) {
    EXPECT_NE(message_of<UsageError>([&] { make(chain(2), 0); }), "no error");
  }
}

TEST(Schedule, SkipsAndSideBranchesDoNotDisturbTheGenerators) {
  StageGraph skips = chain(4);
  skips.edges.emplace_back(0, 2);
  skips.edges.emplace_back(0, 3);
  StageGraph towers = chain(4);
  towers.edges = {{0, 2}, {1, 2}, {2, 3}, {0, 3}};  // 0 and 1 read nothing
  for (const StageGraph& graph : {skips, towers}) {
    for (const int m : {1, 3, 8}) {
      for (const auto make : {make_gpipe, make_1f1b, make_zb_h1}) {
        const ScheduleReport report = run(graph, make(graph, m), m, unit_times(4));
        const double chain_makespan = simulate(chain(4), make(chain(4), m), unit_times(4)).makespan;
        EXPECT_LE(report.makespan, chain_makespan);
        if (graph.edges == skips.edges) {
          EXPECT_EQ(report.makespan, chain_makespan);
        }
      }
    }
  }
}

TEST(Schedule, TransfersDelayTheReaderAndNobodyElse) {
  StageGraph graph = chain(3);
  StageTimes times = even_times(3, 1, 1, 1);
  times.transfer = {0.5, 0.25};
  const ScheduleReport report = run(graph, make_1f1b(graph, 1), 1, times);
  EXPECT_EQ(report.start[1][0], 1.5);
  EXPECT_EQ(report.start[2][0], 2.75);
  EXPECT_EQ(report.start[2][1], 3.75);  // its own backward waits for no message
  EXPECT_EQ(report.start[1][1], 6.0);
  EXPECT_EQ(report.makespan, 10.5);
  graph.rank_of = {0, 0, 0};
  graph.num_ranks = 1;
  EXPECT_EQ(run(graph, make_gpipe(graph, 1), 1, times).makespan,
            9.0);  // nothing to send within a rank
}

TEST(Schedule, ScaleMakesMicrobatchesUneven) {
  StageTimes times = even_times(2, 1, 1, 1);
  times.scale = {1, 1, 0.5};  // the last microbatch has half the rows
  const ScheduleReport report = run(chain(2), make_gpipe(chain(2), 3), 3, times);
  EXPECT_EQ(report.busy, (std::vector<double>{7.5, 7.5}));
  // Its work, and the longest forward and backward once more for the other rank.
  EXPECT_EQ(report.makespan, 7.5 + 1 + 2);
}

TEST(Schedule, SlicesRunForwardInOrderAndBackwardInReverse) {
  EXPECT_EQ(to_text(split_into_slices(make_1f1b(chain(2), 2), 2)),
            "0F0 0F1 0F2 0F3 0B1 0B0 0B3 0B2\n"
            "1F0 1F1 1B1 1B0 1F2 1F3 1B3 1B2\n");
  const Schedule sliced = split_into_slices(make_gpipe(chain(3), 2), 4);
  // 8 slices of a quarter: (slices + p - 1) forwards at a quarter each, and the same back.
  const StageTimes times = even_times(3, 0.25, 0.25, 0.25);
  const ScheduleReport report = run(chain(3), sliced, 8, times);
  EXPECT_LE(report.makespan, (8 + 3 - 1) * 0.75 + 4 * 0.5);
  EXPECT_LT(report.makespan, simulate(chain(3), make_gpipe(chain(3), 2), unit_times(3)).makespan);
  for (int seed = 0; seed < 50; ++seed) {  // slicing keeps any schedule runnable
    const testing::Case c = testing::random_case(seed);
    const Schedule list = make_list(c.graph, c.num_microbatches, c.times);
    check_schedule(c.graph, split_into_slices(list, 3), 3 * c.num_microbatches);
  }
}

TEST(Schedule, TextComesBackAsItWas) {
  for (const Schedule& schedule :
       {make_gpipe(chain(3), 12), make_1f1b(chain(4), 2), make_zb_h1(chain(4), 11),
        make_interleaved(chain(2, 3), 4), Schedule{{{}, {{0, Work::kForward, 0}}, {}}}}) {
    EXPECT_EQ(parse_schedule(to_text(schedule)), schedule);
  }
  EXPECT_EQ(to_text(parse_schedule("  0F0\t0B0 \r\n\n1I12   1W12")), "0F0 0B0\n\n1I12 1W12\n");
}

TEST(Schedule, BadTextIsRefusedByLineAndWord) {
  EXPECT_EQ(message_of<UserError>([] { parse_schedule("0F0 0B0\n1F0 1X0\n"); }),
            "schedule line 2, word 2: '1X0' is no action. Write stage, one of F B I W, microbatch: "
            "for example 0F1.");
  for (const char* word : {"F0", "0F", "0", "0F0B0", "-1F0", "0F-1", "+0F0", "0F+1", "0f0", "0 F0",
                           "0F0,", "0FF0", "99999999999F0", "0F99999999999", "0F0x", "\xc3\xa9"}) {
    EXPECT_NE(message_of<UserError>([&] { parse_schedule(word); }).find("line 1, word 1: '"),
              std::string::npos)
        << word;
  }
  EXPECT_EQ(message_of<UserError>([] { parse_schedule(""); }),
            "the schedule is empty. Write one line of actions a rank, as in '0F0 0B0'.");
}

TEST(Schedule, GridDrawsRanksAgainstTime) {
  EXPECT_EQ(grid(chain(2), make_1f1b(chain(2), 2), unit_times(2)),
            "(one column is 1)\n"
            "  rank 0: 0F0 0F1 .   .   0B0 =   .   0B1 =\n"
            "  rank 1: .   1F0 1B0 =   1F1 1B1 =\n");
  StageTimes times = even_times(2, 0.002, 0.001, 0.001);
  EXPECT_EQ(grid(chain(2), make_zb_h1(chain(2), 1), times, 1),
            "(one column is 0.001)\n"
            "  rank 0: 0F0 =   .   .   .   0I0 0W0\n"
            "> rank 1: .   .   1F0 =   1I0 1W0\n");
  times.forward[0] = 1e-9;  // columns stay few however short some work is
  times.forward[1] = 1e3;
  EXPECT_LT(grid(chain(2), make_1f1b(chain(2), 2), times).size(), 2000u);
}

TEST(Schedule, PublishedSchedulesNeedNoTags) {
  for (int p = 1; p <= 6; ++p) {
    for (const int m : {1, 3, 12}) {
      EXPECT_TRUE(check_schedule(chain(p), make_gpipe(chain(p), m), m).tagless_safe);
      EXPECT_TRUE(check_schedule(chain(p), make_1f1b(chain(p), m), m).tagless_safe);
      EXPECT_TRUE(check_schedule(chain(p), make_zb_h1(chain(p), m), m).tagless_safe);
    }
    for (int chunks = 2; chunks <= 4; ++chunks) {
      const StageGraph graph = chain(p, chunks);
      for (const int m : {p, 2 * p, 5 * p}) {
        EXPECT_EQ(check_schedule(graph, make_interleaved(graph, m), m).tagless_conflict, "")
            << p << " " << chunks;
      }
    }
  }
}

}  // namespace
}  // namespace contexture::parallel
