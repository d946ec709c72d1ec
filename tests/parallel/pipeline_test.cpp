// The pipeline runtime on models that are nothing but wires: any stage graph, and the idle time
// that its schedule promises.
#include "parallel/pipeline.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <tuple>

#include "parallel/engine.h"
#include "sliced_sleepers.h"

namespace contexture::parallel {
namespace {

using testing::on_ranks;
using testing::Sleeper;
using testing::SleepingModel;

// A diamond with a skip: a feeds b, c and e; b and c feed d; d and a feed e.
void diamond(SleepingModel& built) {
  const auto add = [&](const std::string& name, std::vector<std::string> in) {
    built.blocks.push_back(
        std::make_unique<Sleeper>(built.store, name, std::move(in), name + ".out"));
  };
  add("a", {});
  add("b", {"a.out"});
  add("c", {"a.out"});
  add("d", {"b.out", "c.out"});
  add("e", {"d.out", "a.out"});
  built.store.materialise(at::kDouble, at::kCPU, 1);
}

// What building an engine on two ranks says, with a placement for each rank.
std::set<std::string> engines_say(const std::vector<int>& first, const std::vector<int>& second) {
  std::mutex mutex;
  std::set<std::string> said;
  on_ranks(2, [&](const std::shared_ptr<Communicator>& pp, int rank) {
    SleepingModel built;
    diamond(built);
    Groups groups;
    groups.world = groups.replica = groups.pp = pp;
    std::string text = "nothing";
    try {
      ParallelConfig config;
      config.pp = 2;
      const Engine engine(config, groups,
                          place(built.blocks, rank == 0 ? first : second, {0, 1}, 2), built.blocks,
                          built.store);
    } catch (const Bug& error) {
      text = error.what();
    }
    const std::lock_guard lock(mutex);
    said.insert(text);
  });
  return said;
}

TEST(Engine, RefusesRanksThatWereGivenDifferentPlacements) {
  EXPECT_EQ(engines_say({0, 0, 0, 1, 1}, {0, 0, 0, 1, 1}), std::set<std::string>{"nothing"});
  // c on both, or on neither.
  for (const auto& [first, second, times] :
       {std::tuple(std::vector<int>{0, 0, 0, 1, 1}, std::vector<int>{0, 0, 1, 1, 1}, "2"),
        std::tuple(std::vector<int>{0, 0, 1, 1, 1}, std::vector<int>{0, 0, 0, 1, 1}, "0")}) {
    const std::set<std::string> said = engines_say(first, second);
    for (const std::string& text : said)
      EXPECT_NE(text.find(concat("block 'c' runs on ", times, " pipeline ranks")),
                std::string::npos)
          << text;
  }
}

// A placement that was not made by place(): a stage that does not exist.
TEST(Engine, RefusesAPlacementOutsideItsStages) {
  SleepingModel built;
  diamond(built);
  Placement placement = place(built.blocks, {0, 0, 0, 0, 0}, {0}, 1);
  placement.stage_of.back() = 1;
  EXPECT_THROW(Engine(ParallelConfig(), Groups(), placement, built.blocks, built.store), Bug);
  placement.stage_of.pop_back();
  EXPECT_THROW(Engine(ParallelConfig(), Groups(), placement, built.blocks, built.store), Bug);
}

TEST(Pipeline, RunsAnyStageGraphOnAnyRanks) {
  constexpr int kMicrobatches = 3;
  std::map<std::string, double> want;
  struct Case {
    std::vector<int> stage_of, rank_of;
  };
  std::vector<std::pair<Case, bool>> cases;
  for (const bool by_order : {false, true}) {
    for (const Case& c : {Case{{0, 0, 0, 0, 0}, {0}}, Case{{0, 1, 2, 3, 4}, {0, 1, 0, 1, 0}},
                          Case{{0, 1, 2, 3, 4}, {2, 0, 1, 0, 2}}, Case{{0, 1, 1, 2, 2}, {0, 1, 2}},
                          Case{{0, 1, 2, 2, 3}, {1, 0, 1, 0}}}) {
      cases.emplace_back(c, by_order);
    }
  }
  for (const auto& [graph, by_order] : cases) {
    const Case& c = graph;  // clang 14 captures no bindings
    const int ranks = 1 + *std::max_element(c.rank_of.begin(), c.rank_of.end());
    std::vector<std::map<std::string, double>> got(ranks);
    on_ranks(
        ranks,
        [&](const std::shared_ptr<Communicator>& pp, int rank) {
          SleepingModel built;
          diamond(built);
          Pipeline pipeline(built.blocks, place(built.blocks, c.stage_of, c.rank_of, ranks), "list",
                            pp);
          std::vector<Feeds> feeds(kMicrobatches);
          std::vector<Pass> passes;
          std::vector<const Pass*> pointers;
          for (int m = 0; m < kMicrobatches; ++m)
            feeds[m]["x"] = at::full({4}, 1.0 + m, at::kDouble);
          for (const Feeds& f : feeds) passes.emplace_back(f, true);
          for (const Pass& pass : passes) pointers.push_back(&pass);
          pipeline.forward_backward(pointers, [](int, const ForwardPass& forward) {
            return forward.has("e.out") ? WireValues{{"e.out", at::ones({4}, at::kDouble)}}
                                        : WireValues();
          });
          for (const auto& p : built.store.all()) {
            if (p->grad.defined()) got[rank][p->name] = p->grad.item<double>();
          }
          const auto values = pipeline.forward(pointers, {"d.out"});
          for (int m = 0; m < kMicrobatches; ++m) {
            // d = 1.5 (1.5 a + 1.5 a), a = 1.5 x: on every rank, whoever computes it.
            EXPECT_DOUBLE_EQ(values[m].at("d.out")[0].item<double>(), 1.5 * 3.0 * 1.5 * (1.0 + m));
          }
          // With what d and e read of others given, the others do not run; e's rank alone gets what
          // is wanted there.
          const auto wire = [](double value) { return at::full({4}, value, at::kDouble); };
          const auto some = pipeline.forward(
              {pointers[0]}, {"d.out"},
              {{"b.out", wire(1)}, {"c.out", wire(2)}, {"a.out", wire(10)}}, {"e.out"});
          EXPECT_DOUBLE_EQ(some[0].at("d.out")[0].item<double>(), 1.5 * (1 + 2));
          ASSERT_EQ(some[0].count("e.out"), rank == pipeline.rank_of("e.out") ? 1u : 0u);
          if (some[0].count("e.out") != 0) {
            EXPECT_DOUBLE_EQ(some[0].at("e.out")[0].item<double>(), 1.5 * (4.5 + 10));
          }
        },
        by_order);
    std::map<std::string, double> all;
    for (const auto& part : got) {
      for (const auto& [name, gradient] : part)
        EXPECT_TRUE(all.emplace(name, gradient).second) << name << " on two ranks";
    }
    EXPECT_EQ(all.size(), 5u);
    if (want.empty()) want = all;
    EXPECT_EQ(all, want);  // small whole and half numbers: exact
  }
}

TEST(Executor, ForgetsAWireAfterItsLastReader) {
  SleepingModel built;
  diamond(built);
  const Feeds feeds{{"x", at::ones({4}, at::kDouble)}};
  const Pass pass(feeds);
  const Executor executor(built.blocks);
  const ForwardPass some = executor.forward(pass, /*grad=*/false, {"b.out", "d.out"});
  for (const char* name : {"a.out", "c.out"})
    EXPECT_FALSE(some.has(name)) << name;  // e would read a.out, but is not needed
  for (const char* name : {"b.out", "d.out"}) EXPECT_TRUE(some.has(name)) << name;
  EXPECT_TRUE(executor.forward(pass, /*grad=*/false).has("a.out"));  // where all are wanted
}

struct Timed {
  const char* schedule;
  int ranks, microbatches, chunks;
  // formulae: (p - 1) / (m + p - 1) for equal stages; with v chunks (p - 1) / (v m + p - 1); of
  // zb_h1 (p - 1)(F + I - W) / (m (F + I + W) + (p - 1)(F + I - W)), here with F = I = W.
  double idle;
};

// The share of time that ranks of equal sleeping stages are idle.
double measured_idle(const Timed& c, double unit_s) {
  std::vector<double> busy(c.ranks), span(c.ranks);
  on_ranks(c.ranks, [&](const std::shared_ptr<Communicator>& pp, int rank) {
    SleepingModel built;
    const int stages = c.ranks * c.chunks;
    for (int s = 0; s < stages; ++s) {
      built.blocks.push_back(std::make_unique<testing::EvenSleeper>(
          built.store, concat("s", s),
          s == 0 ? std::vector<std::string>{} : std::vector{concat("w", s - 1)}, concat("w", s),
          unit_s / c.chunks));
    }
    built.store.materialise(at::kDouble, at::kCPU, 1);
    Pipeline pipeline(built.blocks,
                      place_in_order(built.blocks, "uniform", c.ranks, c.chunks, false), c.schedule,
                      pp);
    Feeds feeds{{"x", at::ones({4}, at::kDouble)}};
    const Pass pass(feeds, true);
    const std::vector<const Pass*> passes(c.microbatches, &pass);
    const std::string last = concat("w", stages - 1);
    pp->barrier();
    pipeline.forward_backward(passes, [&](int, const ForwardPass& forward) {
      return forward.has(last) ? WireValues{{last, at::ones({4}, at::kDouble)}} : WireValues();
    });
    for (const TimedAction& action : pipeline.timeline())
      busy[rank] += action.end_s - action.start_s - action.wait_s;
    span[rank] = pipeline.timeline().back().end_s;
  });
  const double makespan = *std::max_element(span.begin(), span.end());
  double idle = 0.0;
  for (const double b : busy) idle += (1.0 - b / makespan) / c.ranks;
  return idle;
}

// Blocks that sleep leave the processor to others, so that two cores can show what four ranks would
// do.
TEST(Pipeline, IdlesAsLongAsItsScheduleSays) {
  constexpr double kUnit = 0.03;
  for (const Timed& c :
       {Timed{"gpipe", 2, 4, 1, 1.0 / 5}, Timed{"1f1b", 2, 4, 1, 1.0 / 5},
        Timed{"gpipe", 4, 8, 1, 3.0 / 11}, Timed{"1f1b", 4, 8, 1, 3.0 / 11},
        Timed{"interleaved", 2, 4, 2, 1.0 / 9}, Timed{"interleaved", 4, 8, 2, 3.0 / 19},
        Timed{"zb_h1", 2, 4, 1, 1.0 / 13}, Timed{"zb_h1", 4, 8, 1, 3.0 / 27}}) {
    // A busy machine only adds idle time: the best of some tries counts.
    double least = 1.0;
    for (int attempt = 0; attempt < 8 && least > 1.1 * c.idle; ++attempt)
      least = std::min(least, measured_idle(c, kUnit));
    EXPECT_NEAR(least, c.idle, 0.1 * c.idle)
        << c.schedule << " on " << c.ranks;  // the bound that the closed form must be met within
  }
}

// Token slices shorten a step as the simulator says, where the published work has its gain: one
// long sequence, a pipeline of four ranks. The times have the proportions that
// tests/bench/slices_bench.cpp measured of three decoder layers of width 256, the cuts are planned
// for them.
TEST(Pipeline, GainsByTokenSlicesWhatTheSimulatorSays) {
  constexpr int kRanks = 4;
  constexpr int64_t kTokens = 2048;
  constexpr double kUnit = 0.3;  // seconds of a stage's whole sequence, forward and backward
  testing::StageTime stage{{.a = 5.54e-3, .b = 1.42e-4, .g = 1.44e-7}};
  const double whole_s = stage.both(kTokens, 0.0);
  stage.both = {stage.both.a * kUnit / whole_s, stage.both.b * kUnit / whole_s,
                stage.both.g * kUnit / whole_s};
  const SlicePlan plan =
      plan_token_slices(kTokens, kRanks, stage.both, /*gap=*/0.0, /*multiple_of=*/kTokens / 64);
  const std::vector<int64_t> uncut{0, kTokens}, cut = testing::cuts_of(plan);
  EXPECT_GT(plan.lengths.size(), 4u);
  EXPECT_GT(plan.lengths.front(), plan.lengths.back());  // later ones attend to more
  EXPECT_NEAR(plan.total, testing::simulated_step_s(kRanks, 1, cut, stage), 1e-9);
  double predicted[2], least[2];
  for (const int which : {0, 1}) {
    const std::vector<int64_t>& cuts = which == 0 ? uncut : cut;
    predicted[which] = testing::simulated_step_s(kRanks, 1, cuts, stage);
    // A busy machine only adds time: the best of some tries counts.
    least[which] = testing::slept_step_s(kRanks, 1, cuts, stage);
    for (int attempt = 0; attempt < 8 && least[which] > 1.1 * predicted[which]; ++attempt) {
      least[which] = std::min(least[which], testing::slept_step_s(kRanks, 1, cuts, stage));
    }
    EXPECT_NEAR(least[which], predicted[which], 0.1 * predicted[which]) << which;
  }
  const double gain = predicted[0] / predicted[1];
  EXPECT_GT(gain, 2.8);
  EXPECT_NEAR(least[0] / least[1], gain, 0.1 * gain);
}

}  // namespace
}  // namespace contexture::parallel
