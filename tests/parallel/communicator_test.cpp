// Every operation on every kind of communicator, and what is left when a rank fails.
#include "parallel/communicator.h"

#include <gtest/gtest.h>

#include "parallel/board.h"
#include "ranks.h"

namespace contexture::parallel {
namespace {

using testing::Outcome;
using testing::scenarios;

const at::ScalarType kDtypes[] = {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble,
                                  at::kLong,     at::kInt,  at::kByte};

// n elements that differ by rank and place, small enough to be exact in every dtype however they
// are added.
at::Tensor pattern(int rank, int64_t n, at::ScalarType dtype) {
  return (at::arange(n).remainder(5) + rank).to(dtype);
}

void sums(Communicator& world) {
  const int n = world.size();
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor base = at::arange(1000).remainder(5);
    at::Tensor sum = pattern(world.rank(), 1000, dtype), largest = sum.clone(), least = sum.clone();
    world.all_reduce(sum).wait();
    world.all_reduce(largest, ReduceOp::kMax).wait();
    world.all_reduce(least, ReduceOp::kMin).wait();
    RANK_CHECK(at::equal(sum, (base * n + n * (n - 1) / 2).to(dtype)), at::toString(dtype));
    RANK_CHECK(at::equal(largest, (base + n - 1).to(dtype)), at::toString(dtype));
    RANK_CHECK(at::equal(least, base.to(dtype)), at::toString(dtype));
  }
}

void scattered_sums(Communicator& world) {
  const int n = world.size();
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor out = at::zeros({7}, dtype);
    world.reduce_scatter(out, pattern(world.rank(), 7 * n, dtype)).wait();
    const at::Tensor all = at::arange(7 * n).remainder(5) * n + n * (n - 1) / 2;
    RANK_CHECK(at::equal(out, all.slice(0, 7 * world.rank(), 7 * world.rank() + 7).to(dtype)),
               at::toString(dtype));
  }
  // In bf16 256 + 1 is 256: only a wider sum sees the ones.
  const at::Tensor out = at::zeros({1}, at::kBFloat16);
  world.reduce_scatter(out, at::full({n}, world.rank() == 0 ? 256 : 1, at::kBFloat16)).wait();
  RANK_CHECK(out.item<float>() == at::scalar_tensor(256 + n - 1).to(at::kBFloat16).item<float>(),
             out.item<float>());
}

void gathers_and_broadcasts(Communicator& world) {
  const int n = world.size();
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor all = at::zeros({n, 3}, dtype), swapped = at::zeros({2 * n}, dtype);
    world.all_gather(all, pattern(world.rank(), 3, dtype)).wait();
    // To rank i goes [my rank, i].
    const at::Tensor mine = at::stack({at::full({n}, world.rank(), at::kLong), at::arange(n)}, 1)
                                .reshape({-1})
                                .to(dtype);
    world.all_to_all(swapped, mine).wait();
    for (int r = 0; r < n; ++r) {
      RANK_CHECK(at::equal(all[r], pattern(r, 3, dtype)), at::toString(dtype));
      RANK_CHECK(
          swapped[2 * r].item<double>() == r && swapped[2 * r + 1].item<double>() == world.rank(),
          at::toString(dtype));
      const at::Tensor told = pattern(world.rank(), 11, dtype);
      world.broadcast(told, r).wait();
      RANK_CHECK(at::equal(told, pattern(r, 11, dtype)), at::toString(dtype));
    }
  }
}

// Everyone sends everyone two messages of uneven sizes, which are received in the other order.
void messages(Communicator& world) {
  for (const at::ScalarType dtype : kDtypes) {
    std::vector<Pending> sent;
    for (int peer = 0; peer < world.size(); ++peer) {
      if (peer == world.rank()) continue;
      sent.push_back(world.send(pattern(world.rank(), 1 + 1000 * peer, dtype), peer, 7));
      sent.push_back(world.send(pattern(world.rank() + 10, 3, dtype), peer, 8));
    }
    for (int peer = world.size() - 1; peer >= 0; --peer) {
      if (peer == world.rank()) continue;
      const at::Tensor second = at::zeros({3}, dtype),
                       first = at::zeros({1 + 1000 * world.rank()}, dtype);
      world.receive(second, peer, 8).wait();
      world.receive(first, peer, 7).wait();
      RANK_CHECK(at::equal(second, pattern(peer + 10, 3, dtype)), at::toString(dtype));
      RANK_CHECK(at::equal(first, pattern(peer, 1 + 1000 * world.rank(), dtype)),
                 at::toString(dtype));
    }
    for (Pending& each : sent) each.wait();
  }
  // Equal tags arrive in order.
  const int next = (world.rank() + 1) % world.size(),
            previous = (world.rank() + world.size() - 1) % world.size();
  std::vector<Pending> pending;
  std::vector<at::Tensor> got;
  for (int i = 0; i < 10; ++i) {
    got.push_back(at::zeros({1}));
    pending.push_back(world.receive(got.back(), previous, 3));
    pending.push_back(world.send(at::full({1}, i + 100 * world.rank(), at::kFloat), next, 3));
  }
  for (Pending& each : pending) each.wait();
  for (int i = 0; i < 10; ++i)
    RANK_CHECK(got[static_cast<size_t>(i)].item<float>() == static_cast<float>(i + 100 * previous),
               i);
}

void overlap(Communicator& world) {
  const int n = world.size(), next = (world.rank() + 1) % n, previous = (world.rank() + n - 1) % n;
  std::vector<at::Tensor> sums;
  std::vector<Pending> pending;
  const at::Tensor got = at::zeros({100000});
  pending.push_back(world.receive(got, previous, 0));
  for (int i = 0; i < 8; ++i) {
    sums.push_back(at::full({50000}, i + world.rank(), at::kFloat));
    pending.push_back(world.all_reduce(sums.back()));
  }
  pending.push_back(world.send(at::full({100000}, world.rank(), at::kFloat), next, 0));
  world.all_reduce(at::ones({3}));  // nobody waits
  world.send(at::ones({3}), next, 1);
  const at::Tensor extra = at::zeros({3});
  world.receive(extra, previous, 1).wait();
  for (size_t i = pending.size(); i-- > 0;) pending[i].wait();
  world.barrier();
  for (int i = 0; i < 8; ++i)
    RANK_CHECK((sums[static_cast<size_t>(i)] == i * n + n * (n - 1) / 2).all().item<bool>(), i);
  RANK_CHECK((got == previous).all().item<bool>());
  RANK_CHECK((extra == 1).all().item<bool>());
}

void subgroups(Communicator& world) {
  std::vector<int> even, odd;
  for (int r = 0; r < world.size(); ++r) (r % 2 == 0 ? even : odd).push_back(r);
  const auto evens = world.subgroup(even, "even"), odds = world.subgroup(odd, "odd");
  const bool is_even = world.rank() % 2 == 0;
  RANK_CHECK((evens != nullptr) == is_even && (odds != nullptr) == !is_even);
  Communicator& mine = is_even ? *evens : *odds;
  RANK_CHECK(mine.name() == (is_even ? "even" : "odd") && mine.rank() == world.rank() / 2);
  at::Tensor sum = at::full({4}, world.rank(), at::kLong), all = at::ones({2});
  Pending outer = world.all_reduce(all);
  mine.all_reduce(sum).wait();
  outer.wait();
  int expected = 0;
  for (const int r : is_even ? even : odd) expected += r;
  RANK_CHECK((sum == expected).all().item<bool>());
  RANK_CHECK((all == world.size()).all().item<bool>());
  const auto alone = mine.subgroup({0}, "alone");  // of a subgroup, and of one rank
  RANK_CHECK((alone != nullptr) == (mine.rank() == 0));
  if (alone) {
    const at::Tensor copy = at::zeros({4}, at::kLong);
    alone->reduce_scatter(copy, sum).wait();
    alone->barrier();
    RANK_CHECK(at::equal(copy, sum));
  }
  if (mine.size() > 1) {
    const int peer = mine.rank() == 0 ? 1 : 0;
    if (mine.rank() == 0) mine.send(at::full({1}, 42, at::kFloat), peer, 0).wait();
    const at::Tensor answer = at::zeros({1});
    if (mine.rank() == 1) mine.receive(answer, peer, 0).wait();
    RANK_CHECK(mine.rank() != 1 || answer.item<float>() == 42);
  }
}

void counted(Communicator& world) {
  const int n = world.size();
  const auto empty = at::zeros({0});
  world.all_reduce(at::zeros({5})).wait();
  world.all_reduce(empty).wait();
  world.reduce_scatter(at::zeros({2}), at::zeros({2 * n})).wait();
  world.all_gather(at::zeros({2 * n}, at::kHalf), at::zeros({2}, at::kHalf)).wait();
  if (world.rank() == 0) world.send(at::zeros({6}, at::kDouble), 1, 0).wait();
  if (world.rank() == 1) world.receive(at::zeros({6}, at::kDouble), 0, 0).wait();
  world.barrier();
  const auto traffic = world.traffic();
  RANK_CHECK(traffic.at("all_reduce").calls == 2 && traffic.at("all_reduce").bytes == 20 &&
             traffic.at("all_reduce").messages == 0);
  RANK_CHECK(traffic.at("reduce_scatter").bytes == 8 * n);
  RANK_CHECK(traffic.at("all_gather").bytes == 4);
  RANK_CHECK(traffic.at("barrier").calls == 1);
  RANK_CHECK(traffic.contains("send") == (world.rank() == 0) &&
             traffic.contains("receive") == (world.rank() == 1));
  if (world.rank() == 0) {
    RANK_CHECK(traffic.at("send").messages == 1 && traffic.at("send").bytes == 48);
    RANK_CHECK(world.links().size() == 1 && world.links().at(1).bytes == 48);
  }
}

void board(Communicator& world) {
  RANK_CHECK(read(world, "nothing").empty());
  post(world, concat("of ", world.rank()), "first");
  post(world, concat("of ", world.rank()), concat("second of ", world.rank()));
  world.barrier();
  for (int r = 0; r < world.size(); ++r)
    RANK_CHECK(read(world, concat("of ", r)) == concat("second of ", r), r);
  world.barrier();
}

// --- failures
// -----------------------------------------------------------------------------------------------------------

void reduce_for_ever(Communicator& world) {
  world.set_phase("forward");
  while (true) world.all_reduce(at::ones({1000})).wait();
}

// The last rank never comes to the second sum.
void one_stays_away(Communicator& world) {
  world.set_phase("optimizer");
  world.all_reduce(at::ones({10})).wait();
  const bool away = world.rank() == world.size() - 1;
  if (away) std::this_thread::sleep_for(std::chrono::seconds(4));
  world.all_reduce(at::ones({10})).wait();
}

// Each waits for a message from the next; the last stops on an error of its own.
void a_chain_of_waits(Communicator& world) {
  world.set_phase("backward");
  if (world.rank() == world.size() - 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    world.abort("the disk is full");
    world.barrier();
  }
  Pending other =
      world.receive(at::zeros({1}), world.rank() + 1, 5);  // started before: must not disturb
  world.receive(at::zeros({5}), world.rank() + 1, 4).wait();
}

// All but the last, which stops on an error of its own, look at the board and wait for nobody.
void lookers(Communicator& world) {
  world.set_phase("looking");
  if (world.rank() == world.size() - 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    world.abort("the disk is full");
    world.barrier();
  }
  for (;;) {
    RANK_CHECK(read(world, "nothing").empty());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

const bool kRegistered = [] {
  scenarios() = {{"sums", sums},
                 {"scattered_sums", scattered_sums},
                 {"gathers_and_broadcasts", gathers_and_broadcasts},
                 {"messages", messages},
                 {"overlap", overlap},
                 {"subgroups", subgroups},
                 {"counted", counted},
                 {"board", board},
                 {"reduce_for_ever", reduce_for_ever},
                 {"one_stays_away", one_stays_away},
                 {"chain", a_chain_of_waits},
                 {"lookers", lookers}};
  return true;
}();

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Exactly one rank failed first; every other names that cause, or with the store lost at least its
// `stem`.
void expect_one_first(const std::vector<Outcome>& outcomes, int dead = -1,
                      const std::string& stem = {}) {
  int firsts = 0;
  std::string cause;
  for (const Outcome& outcome : outcomes) {
    if (outcome.kind != "first") continue;
    ++firsts;
    cause = outcome.text;
  }
  EXPECT_EQ(firsts, 1);
  for (size_t r = 0; r < outcomes.size(); ++r) {
    if (static_cast<int>(r) == dead) continue;
    EXPECT_TRUE(outcomes[r].kind == "first" || outcomes[r].kind == "peer")
        << r << ": " << outcomes[r].kind << " " << outcomes[r].text;
    EXPECT_TRUE(has(outcomes[r].text, stem.empty() ? cause : stem))
        << outcomes[r].text << "\n against " << cause;
  }
}

struct Kind {
  const char* name;
  int size;
};
class EveryCommunicator : public ::testing::TestWithParam<Kind> {
 protected:
  std::vector<Outcome> run(const std::string& scenario, double deadline_s) {
    return std::string(GetParam().name) == "threads"
               ? testing::run_threads(scenario, GetParam().size, deadline_s)
               : testing::run_processes(scenario, GetParam().size, deadline_s);
  }
  void expect_ok(const std::string& scenario) {
    for (const Outcome& outcome : run(scenario, 30)) EXPECT_EQ(outcome.kind, "ok") << outcome.text;
  }
};
INSTANTIATE_TEST_SUITE_P(, EveryCommunicator,
                         ::testing::Values(Kind{"threads", 2}, Kind{"threads", 3},
                                           Kind{"threads", 4}, Kind{"gloo", 2}, Kind{"gloo", 4}),
                         [](const auto& info) { return concat(info.param.name, info.param.size); });

TEST_P(EveryCommunicator, AllReducesEveryDtype) { expect_ok("sums"); }
TEST_P(EveryCommunicator, ReduceScattersEveryDtypeAndAddsHalvesWide) {
  expect_ok("scattered_sums");
}
TEST_P(EveryCommunicator, GathersSwapsAndBroadcastsEveryDtype) {
  expect_ok("gathers_and_broadcasts");
}
TEST_P(EveryCommunicator, DeliversMessagesByTagAndThenInOrder) { expect_ok("messages"); }
TEST_P(EveryCommunicator, OverlapsOperationsWaitedForInAnyOrder) { expect_ok("overlap"); }
TEST_P(EveryCommunicator, WorksInSubgroups) { expect_ok("subgroups"); }
TEST_P(EveryCommunicator, CountsCallsMessagesAndBytes) { expect_ok("counted"); }

TEST_P(EveryCommunicator, ShowsAllWhatIsOnTheBoard) { expect_ok("board"); }

TEST_P(EveryCommunicator, ADeadlineThatPassesNamesOperationAndPhase) {
  const double start = now_s();
  const std::vector<Outcome> outcomes = run("one_stays_away", 1);
  EXPECT_LT(now_s() - start, 15);
  expect_one_first(outcomes);
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(has(outcome.text, "all_reduce #2 of group world in phase optimizer"))
        << outcome.text;
    EXPECT_TRUE(has(outcome.text, "deadline of 1 s passed")) << outcome.text;
    EXPECT_TRUE(has(outcome.text, concat("no word from rank ", GetParam().size - 1)))
        << outcome.text;
  }
}

TEST_P(EveryCommunicator, AnAbortReachesThoseWhoWaitForOthersAndNamesItsCause) {
  const double start = now_s();
  const std::vector<Outcome> outcomes = run("chain", 60);
  EXPECT_LT(now_s() - start, 20);  // far from the deadline
  const int last = GetParam().size - 1;
  for (int r = 0; r <= last; ++r) {
    const Outcome& outcome = outcomes[static_cast<size_t>(r)];
    EXPECT_EQ(outcome.kind, r == last ? "first" : "peer") << r << ": " << outcome.text;
    EXPECT_TRUE(has(outcome.text, concat("rank ", last, ": the disk is full"))) << outcome.text;
    if (r == last) continue;
    EXPECT_TRUE(has(outcome.text, concat("rank ", r, ", peer ", r + 1,
                                         ", receive #2 of group world in phase backward")))
        << outcome.text;
  }
}

TEST_P(EveryCommunicator, AnAbortReachesThoseWhoOnlyLookAtTheBoard) {
  const double start = now_s();
  const std::vector<Outcome> outcomes = run("lookers", 60);
  EXPECT_LT(now_s() - start, 20);
  const int last = GetParam().size - 1;
  for (int r = 0; r <= last; ++r) {
    const Outcome& outcome = outcomes[static_cast<size_t>(r)];
    EXPECT_EQ(outcome.kind, r == last ? "first" : "peer") << r << ": " << outcome.text;
    EXPECT_TRUE(has(outcome.text, concat("rank ", last, ": the disk is full"))) << outcome.text;
  }
}

TEST(ThreadCommunicator, RefusesOperationsThatDoNotMatch) {
  const auto ranks = make_thread_communicators(2, 10);
  Pending first = ranks[0]->all_reduce(at::zeros({4}));
  const Outcome second = testing::outcome_of([&] { ranks[1]->all_reduce(at::zeros({5})); });
  EXPECT_EQ(second.kind, "first");
  EXPECT_TRUE(has(second.text, "all_reduce of 5 Float")) << second.text;
  EXPECT_EQ(testing::outcome_of([&] { first.wait(); }).kind, "peer");
}

TEST(RecordingCommunicator, MovesNothingAndCounts) {
  const auto world = make_recording_communicator(1, 4);
  const at::Tensor meta = at::empty({8, 4}, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  world->all_reduce(meta).wait();
  world->receive(meta, 0, 1).wait();
  const auto pair = world->subgroup({1, 3}, "pair");
  ASSERT_NE(pair, nullptr);
  EXPECT_EQ(world->subgroup({0, 2}, "other"), nullptr);
  const at::Tensor kept = at::full({2}, 5, at::kFloat);
  pair->reduce_scatter(kept, at::zeros({4})).wait();
  EXPECT_TRUE((kept == 5).all().item<bool>());
  EXPECT_EQ(world->traffic().at("all_reduce").bytes, 64);
  EXPECT_EQ(world->traffic().at("receive").messages, 1);
  EXPECT_EQ(pair->traffic().at("reduce_scatter").bytes, 16);
  world->abort("enough");
  EXPECT_THROW(pair->barrier(), DistributedError);
}

// --- processes that die
// ---------------------------------------------------------------------------------------------------

struct Death {
  const char* name;
  int rank;
  bool rank_0_serves;
  // What every survivor of four says.
  std::string words() const {
    return rank == 0 && rank_0_serves ? std::string("rank 0, which serves the rendezvous")
                                      : concat("no word from rank ", rank);
  }
};
class Survivors : public ::testing::TestWithParam<Death> {
 protected:
  void expect_words(const std::vector<Outcome>& outcomes, const std::string& reason) {
    const Death death = GetParam();
    expect_one_first(outcomes, death.rank,
                     death.rank == 0 && death.rank_0_serves ? death.words() : std::string());
    bool gave_reason = false;
    for (int r = 0; r < 4; ++r) {
      const std::string& text = outcomes[static_cast<size_t>(r)].text;
      if (r == death.rank) continue;
      EXPECT_TRUE(has(text, "of group world in phase forward")) << text;
      EXPECT_TRUE(has(text, death.words())) << text;
      // Or, on a busy machine, another survivor has ended a moment before.
      EXPECT_TRUE(has(text, reason) || has(text, "closed by peer")) << text;
      gave_reason = gave_reason || has(text, reason);
    }
    EXPECT_TRUE(gave_reason) << reason;
  }
};
INSTANTIATE_TEST_SUITE_P(, Survivors,
                         ::testing::Values(Death{"OfRank0", 0, false},
                                           Death{"OfRank0WithTheStore", 0, true},
                                           Death{"OfRank2", 2, true}),
                         [](const auto& info) { return info.param.name; });

TEST_P(Survivors, EndAtOnceWhenOneIsKilledAndNameIt) {
  const auto dead = static_cast<size_t>(GetParam().rank);
  double killed = 0;
  const auto outcomes = testing::run_processes(
      "reduce_for_ever", 4, 60,
      [&](const std::vector<pid_t>& ids) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        killed = now_s();
        ::kill(ids[dead], SIGKILL);
      },
      GetParam().rank_0_serves);
  EXPECT_LT(now_s() - killed, 10);  // the deadline is 60
  EXPECT_EQ(outcomes[dead].kind, "killed");
  expect_words(outcomes, "");
}

TEST_P(Survivors, EndAtTheDeadlineWhenOneIsStoppedAndNameIt) {
  const auto dead = static_cast<size_t>(GetParam().rank);
  const auto outcomes = testing::run_processes(
      "reduce_for_ever", 4, 2,
      [&](const std::vector<pid_t>& ids) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        ::kill(ids[dead], SIGSTOP);
        std::this_thread::sleep_for(std::chrono::seconds(6));
        ::kill(ids[dead], SIGKILL);
      },
      GetParam().rank_0_serves);
  expect_words(outcomes, "the deadline of 2 s passed");
}

// --- meeting
// --------------------------------------------------------------------------------------------------------------

Outcome connect_alone(const Rendezvous& at, double deadline_s) {
  return testing::outcome_of([&] { connect(at, "gloo", deadline_s); });
}

TEST(Connect, OneRankNeedsNoPort) {
  const auto world = connect({}, "gloo", 1);
  const at::Tensor out = at::zeros({3});
  world->all_gather(out, at::ones({3})).wait();
  world->barrier();
  EXPECT_TRUE((out == 1).all().item<bool>());
  world->abort("enough");
  EXPECT_THROW(world->barrier(), DistributedError);
}

TEST(Connect, RefusesATakenPortByNumber) {
  const auto taken = testing::listen_somewhere();
  Rendezvous at;
  at.size = 2;
  at.port = taken.port;
  const Outcome outcome = connect_alone(at, 3);
  ::close(taken.fd);
  EXPECT_EQ(outcome.kind, "wrong");  // a UserError of no special kind
  EXPECT_TRUE(has(outcome.text, concat("port ", taken.port, " is taken"))) << outcome.text;
}

TEST(Connect, NamesWhoNeverCame) {
  Rendezvous at;
  at.size = 3;
  at.port = testing::free_port();
  const Outcome outcome = connect_alone(at, 1);
  EXPECT_EQ(outcome.kind, "first");
  EXPECT_TRUE(has(outcome.text, "never saw rank 1 and 2 of 3")) << outcome.text;
}

TEST(Connect, SaysThatNobodyServes) {
  Rendezvous at;
  at.rank = 1;
  at.size = 2;
  at.port = testing::free_port();
  const Outcome outcome = connect_alone(at, 1);
  EXPECT_EQ(outcome.kind, "first");
  EXPECT_TRUE(has(outcome.text, concat("rendezvous at 127.0.0.1:", at.port))) << outcome.text;
}

// What each of these ranks says when they meet at one store.
std::vector<Outcome> meet(std::vector<Rendezvous> ranks) {
  const RendezvousServer server;
  std::vector<Outcome> out(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].port = server.port();
    ranks[i].store_is_served = true;
    threads.emplace_back([&, i] { out[i] = connect_alone(ranks[i], 10); });
  }
  for (std::thread& thread : threads) thread.join();
  return out;
}

TEST(Connect, RefusesOnAllRanksWhenTheyCountDifferently) {
  Rendezvous first, second;
  first.size = 2;
  second.rank = 1;
  second.size = 4;
  for (const Outcome& outcome : meet({first, second})) {
    EXPECT_EQ(outcome.kind, "usage");
    EXPECT_TRUE(has(outcome.text, "rank 0 counts 2 ranks, but rank 1 counts 4")) << outcome.text;
  }
}

TEST(Connect, RefusesTwoProcessesOfOneRank) {
  Rendezvous zero, one;
  zero.size = one.size = 3;
  one.rank = 1;
  for (const Outcome& outcome : meet({zero, one, one})) {
    EXPECT_EQ(outcome.kind, "usage");
    EXPECT_TRUE(has(outcome.text, "two processes claim to be rank 1")) << outcome.text;
  }
}

TEST(Connect, AServedStoreServesASecondStart) {
  const RendezvousServer server;
  for (const char* session : {"start 0", "start 1"}) {
    std::vector<std::thread> threads;
    std::vector<Outcome> out(2);
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        Rendezvous at;
        at.rank = r;
        at.size = 2;
        at.port = server.port();
        at.store_is_served = true;
        at.session = session;
        out[static_cast<size_t>(r)] = connect_alone(at, 10);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Outcome& outcome : out)
      EXPECT_EQ(outcome.kind, "ok") << session << ": " << outcome.text;
  }
}

TEST(RendezvousServer, RefusesATakenPortByNumber) {
  const RendezvousServer first;
  const Outcome outcome = testing::outcome_of([&] { RendezvousServer second(first.port()); });
  EXPECT_EQ(outcome.kind, "wrong");  // a UserError of no special kind
  EXPECT_TRUE(has(outcome.text, concat("port ", first.port(), " is taken"))) << outcome.text;
}

TEST(Connect, RefusesABackendThatThisBuildLacks) {
  EXPECT_EQ(testing::outcome_of([] { connect({}, "mpi", 1); }).kind, "usage");
#ifndef CONTEXTURE_CUDA
  EXPECT_EQ(testing::outcome_of([] { connect({}, "nccl", 1); }).kind, "usage");
#endif
}

}  // namespace
}  // namespace contexture::parallel

int main(int argc, char** argv) {
  if (contexture::parallel::testing::run_as_rank(argc, argv)) return 0;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
