// The checker: what it refuses and in which words, and that it agrees with the plainest definition.
#include <gtest/gtest.h>

#include <map>

#include "core/error.h"
#include "expect_error.h"
#include "parallel/schedule.h"
#include "schedules.h"

namespace contexture::parallel {
namespace {

std::string refusal(const StageGraph& graph, const std::string& text, int num_microbatches) {
  return message_of<UserError>(
      [&] { check_schedule(graph, parse_schedule(text), num_microbatches); });
}

TEST(ScheduleCheck, ADeadlockIsToldAsACircleWithTheGrid) {
  EXPECT_EQ(refusal(chain(2), "0F0 0B0 0F1 0B1\n1F1 1F0 1B1 1B0\n", 2),
            "this schedule of 2 stages on 2 ranks with 2 microbatches cannot run: it deadlocks: "
            "rank 0 stands at 0B0 and waits "
            "for 1B0; rank 1 stands at 1F1 and waits for 0F1.\n"
            "(one column is 1)\n"
            "> rank 0: 0F0 |   0B0 0F1 0B1\n"
            "  rank 1: |   1F1 1F0 1B1 1B0\n");
}

TEST(ScheduleCheck, ARankThatWaitsForItselfIsADeadlock) {
  EXPECT_EQ(refusal(chain(2), "0F0 0B0\n1B0 1F0\n", 1),
            "this schedule of 2 stages on 2 ranks with 1 microbatches cannot run: it deadlocks: "
            "rank 1 stands at 1B0 and waits "
            "for 1F0.\n"
            "(one column is 1)\n"
            "  rank 0: 0F0 |   0B0\n"
            "> rank 1: |   1B0 1F0\n");
  EXPECT_NE(refusal(chain(1), "0F0 0W0 0I0\n", 1).find("rank 0 stands at 0W0 and waits for 0I0."),
            std::string::npos);
}

TEST(ScheduleCheck, WhatIsMissingOrMisplacedIsNamedWithTheGrid) {
  const auto expect = [](const std::string& text, const std::string& what, int marked) {
    const std::string message = refusal(chain(2), text, 1);
    EXPECT_NE(message.find("cannot run: " + what + ".\n"), std::string::npos) << message;
    EXPECT_NE(message.find("\n  rank " + std::to_string(1 - marked) + ": "), std::string::npos)
        << message;
    EXPECT_NE(message.find("\n> rank " + std::to_string(marked) + ": "), std::string::npos)
        << message;
  };
  expect("0F0 0B0\n1B0\n", "rank 1 lacks 1F0", 1);
  expect("0F0\n1F0 1B0\n", "rank 0 lacks 0B0 (or I and W)", 0);
  expect("0F0 0I0\n1F0 1B0\n", "rank 0 lacks 0W0 after its I", 0);
  expect("0F0 0B0 0W0\n1F0 1B0\n", "rank 0 has 0W0, which its B includes", 0);
  expect("0F0 0I0 0W0 0B0\n1F0 1B0\n",
         "rank 0, action 4 (0B0): the second such work of this stage and microbatch, after 0I0", 0);
  expect("0F0 0F0 0B0\n1F0 1B0\n",
         "rank 0, action 2 (0F0): the second such work of this stage and microbatch, after 0F0", 0);
  expect("0F0 1B0\n1F0 0B0\n", "rank 0, action 2 (1B0): this stage is on rank 1", 0);
  expect("0F0 0B0\n1F0 1B0 2F0\n", "rank 1, action 3 (2F0): stages are 0 to 1", 1);
  expect("0F0 0B0\n1F0 1B0 1F1\n", "rank 1, action 3 (1F1): microbatches are 0 to 0", 1);
  expect("0F0 0B0\n1F0 1F2147483647\n", "rank 1, action 2 (1F2147483647): microbatches are 0 to 0",
         1);
  EXPECT_NE(refusal(chain(2), "0F0 0B0\n", 1).find("it has 1 lines for 2 ranks.\n"),
            std::string::npos);
  EXPECT_NE(refusal(chain(2), "0F0 0B0\n1F0 1B0\n2F0\n", 1).find("it has 3 lines for 2 ranks.\n"),
            std::string::npos);
}

// 30 layers over 4 stages must not silently train 28: a schedule that leaves any stage or
// microbatch out is refused.
TEST(ScheduleCheck, EveryActionOfEveryGeneratorIsNeeded) {
  for (const Schedule& whole :
       {make_gpipe(chain(3), 3), make_1f1b(chain(3), 3), make_zb_h1(chain(3), 3)}) {
    EXPECT_TRUE(check_schedule(chain(3), whole, 3).tagless_safe);
    for (size_t rank = 0; rank < 3; ++rank) {
      for (size_t i = 0; i < whole.by_rank[rank].size(); ++i) {
        Schedule part = whole;
        part.by_rank[rank].erase(part.by_rank[rank].begin() + static_cast<int>(i));
        EXPECT_NE(message_of<UserError>([&] { check_schedule(chain(3), part, 3); }).find("lacks"),
                  std::string::npos);
      }
    }
    EXPECT_NE(message_of<UserError>([&] { check_schedule(chain(3), whole, 4); }).find("lacks 0F3"),
              std::string::npos);
    EXPECT_NE(message_of<UserError>([&] {
                check_schedule(chain(3), whole, 2);
              }).find("microbatches are 0 to 1"),
              std::string::npos);
  }
}

TEST(ScheduleCheck, ImpossibleGraphsAreRefused) {
  StageGraph graph = chain(3);
  graph.rank_of[1] = 3;
  EXPECT_EQ(message_of<UserError>([&] { make_gpipe(graph, 1); }),
            "stage 1 is placed on rank 3, but the ranks are 0 to 2");
  graph = chain(3);
  graph.edges.emplace_back(2, 1);
  EXPECT_EQ(message_of<UserError>([&] { make_list(graph, 1, unit_times(3)); }),
            "stage edge 2 -> 1 is impossible with 3 stages: a wire goes from a lower to a higher "
            "stage. Number the stages in "
            "topological order.");
  graph.edges.back() = {2, 3};
  EXPECT_NE(message_of<UserError>([&] { check_schedule(graph, make_1f1b(chain(3), 1), 1); }),
            "no error");
  graph.edges.back() = {1, 2};  // twice
  EXPECT_THROW(check_schedule(graph, make_1f1b(chain(3), 1), 1), Bug);
}

TEST(ScheduleCheck, AgreesWithTheDefinitionOnRandomOrders) {
  int good = 0, bad = 0;
  for (int seed = 0; seed < 400; ++seed) {
    const testing::Case c = testing::random_case(seed);
    Schedule schedule = make_list(c.graph, c.num_microbatches, c.times);
    Stream random(seed, "disorder");
    const int num_swaps = 1 + static_cast<int>(random.below(3));
    for (int i = 0; i < num_swaps; ++i) {  // neighbours, so that many stay runnable
      auto& actions = schedule.by_rank[random.below(schedule.by_rank.size())];
      if (actions.size() < 2) continue;
      const size_t at = random.below(actions.size() - 1);
      std::swap(actions[at], actions[at + 1]);
    }
    const bool expected = testing::can_finish(testing::needs_of(c.graph, schedule));
    const std::string message =
        message_of<UserError>([&] { check_schedule(c.graph, schedule, c.num_microbatches); });
    EXPECT_EQ(message == "no error", expected) << "seed " << seed << ": " << message;
    EXPECT_EQ(message.find("it deadlocks: ") != std::string::npos, !expected) << message;
    ++(expected ? good : bad);
  }
  EXPECT_GT(good, 50);
  EXPECT_GT(bad, 50);
}

// Texts with a few characters changed: never a crash, a Bug or a schedule that does not run.
TEST(ScheduleCheck, ADamagedTextRunsOrIsRefused) {
  const std::string whole = to_text(make_zb_h1(chain(3), 3)), letters = "0123456789FBIW \n\t-x";
  int refused = 0, ran = 0;
  for (int seed = 0; seed < 1000; ++seed) {
    Stream random(seed, "damage");
    std::string text = whole;
    const int num_changes = 1 + static_cast<int>(random.below(3));
    for (int i = 0; i < num_changes; ++i) {
      text[random.below(text.size())] = letters[random.below(letters.size())];
    }
    try {
      const Schedule schedule = parse_schedule(text);
      check_schedule(chain(3), schedule, 3);
      EXPECT_GE(simulate(chain(3), schedule, unit_times(3)).makespan, 9.0 + 2.0) << text;
      ++ran;
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(ran, 10);  // a blank for a blank, or a harmless exchange
}

TEST(ScheduleCheck, MessagesOutOfOrderAreReportedNotRefused) {
  // Both of rank 0's outputs go to rank 1, which wants the second first.
  const Schedule schedule = parse_schedule("0F0 0F1 0B0 0B1\n1F1 1F0 1B1 1B0\n");
  const ScheduleCheck check = check_schedule(chain(2), schedule, 2);
  EXPECT_FALSE(check.tagless_safe);
  EXPECT_EQ(
      check.tagless_conflict,
      "rank 0 sends rank 1 what comes of 0F0 before what comes of 0F1, which is needed first");
  const std::vector<Message> all = messages(chain(2), schedule);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(to_text(all[0].sent_by), "0F0");
  EXPECT_EQ(all[0].sent_after, 0);
  EXPECT_EQ(all[0].needed_by, 1);
  EXPECT_EQ(all[0].received_by, 0);  // before 0F1, which the first action needs
  EXPECT_EQ(to_text(all[1].sent_by), "0F1");
  EXPECT_EQ(all[1].received_by, 0);
  EXPECT_EQ(to_text(all[2].sent_by), "1B1");
  EXPECT_EQ(all[2].needed_by, 3);
  EXPECT_EQ(all[2].received_by, 2);
}

TEST(ScheduleCheck, AWireGoesOnceToARankHoweverManyOfItsStagesRead) {
  StageGraph graph;
  graph.num_stages = 4;
  graph.num_ranks = 2;
  graph.rank_of = {0, 1, 1, 0};
  graph.edges = {{0, 1}, {0, 2}, {1, 3}, {2, 3}, {0, 3}};
  const Schedule schedule = make_gpipe(graph, 1);
  EXPECT_EQ(to_text(schedule), "0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0\n");
  std::vector<std::string> sent;
  for (const Message& m : messages(graph, schedule)) {
    sent.push_back(concat(to_text(m.sent_by), " to ", m.to_rank, " by ", m.needed_by));
  }
  // 3B0 sends the gradients of 1 and 2 together; 1 and 2 each send back theirs of 0.
  EXPECT_EQ(sent, (std::vector<std::string>{"0F0 to 1 by 0", "3B0 to 1 by 2", "1F0 to 0 by 1",
                                            "2F0 to 0 by 1", "2B0 to 0 by 3", "1B0 to 0 by 3"}));
  EXPECT_TRUE(check_schedule(graph, schedule, 1).tagless_safe);
}

// Ranks that take each pair's messages strictly in the order they are sent, as NCCL does, finish
// every checked schedule.
TEST(ScheduleCheck, ReceivingInTheOrderOfSendingNeverDeadlocks) {
  int unsafe = 0;
  for (int seed = 0; seed < 300; ++seed) {
    const testing::Case c = testing::random_case(seed);
    const Schedule schedule = make_list(c.graph, c.num_microbatches, c.times);
    if (!check_schedule(c.graph, schedule, c.num_microbatches).tagless_safe) ++unsafe;
    const std::vector<Message> all = messages(c.graph, schedule);
    // Each rank's program: before an action, the receives due by then, in each pair's order of
    // sending.
    std::vector<size_t> place(c.graph.num_ranks), taken(all.size());
    std::map<std::pair<int, int>, int> last_sent;
    for (const Message& m : all) {
      EXPECT_LE(m.received_by, m.needed_by);
      const auto [at, first] = last_sent.emplace(std::pair(m.from_rank, m.to_rank), m.sent_after);
      EXPECT_TRUE(first || at->second < m.sent_after);
      at->second = m.sent_after;
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < c.graph.num_ranks; ++rank) {
        while (place[rank] < schedule.by_rank[rank].size()) {
          bool waits = false;
          for (const Message& m : all) {
            const bool due = m.to_rank == rank && m.received_by <= static_cast<int>(place[rank]);
            if (due && static_cast<int>(place[m.from_rank]) <= m.sent_after) waits = true;
          }
          if (waits) break;
          ++place[rank];
          moved = true;
        }
      }
    }
    for (int rank = 0; rank < c.graph.num_ranks; ++rank) {
      EXPECT_EQ(place[rank], schedule.by_rank[rank].size()) << "seed " << seed << ", rank " << rank;
    }
  }
  EXPECT_GT(unsafe, 10);  // the cases do contain what the test is about
}

}  // namespace
}  // namespace contexture::parallel
