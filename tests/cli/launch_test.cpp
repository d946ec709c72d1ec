// contexture launch with real processes: who prints where, which signals and failures reach whom,
// and the exit code.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <regex>
#include <thread>

#include "core/error.h"
#include "program.h"

namespace contexture::cli {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Some minutes of work that ends at no signal but SIGKILL.
const Arguments kLong{"bench", "train", "--threads", "1", "--steps", "100000", "--warmup", "0"};

Arguments launch(const Arguments& options, const Arguments& command) {
  Arguments out{"launch"};
  out.insert(out.end(), options.begin(), options.end());
  out.push_back("--");
  out.insert(out.end(), command.begin(), command.end());
  return out;
}

// The processes that a process has started, once there are n.
std::vector<pid_t> children(const Process& process, size_t n) {
  std::vector<pid_t> out;
  process.wait_until([&] {
    out.clear();
    std::ifstream in(concat("/proc/", process.pid(), "/task/", process.pid(), "/children"));
    for (pid_t pid = 0; in >> pid;) out.push_back(pid);
    return out.size() == n;
  });
  return out;
}

TEST(Launch, PassesRank0sStdoutThroughAndPrefixesTheRest) {
  const Result result = run_program(launch({"--nproc", "3"}, {"env", "--json"}));
  EXPECT_EQ(result.code, 0) << result.err;
  const Json first = result.json()["launch"];
  EXPECT_EQ(first["launcher"], "contexture");
  EXPECT_EQ(first["rank"], "0 (CONTEXTURE_RANK)");
  EXPECT_EQ(first["size"], "3 (CONTEXTURE_WORLD_SIZE)");
  EXPECT_EQ(first["local_size"], "3 (CONTEXTURE_LOCAL_SIZE)");
  for (const char* rank : {"1", "2"}) {
    EXPECT_TRUE(
        std::regex_search(result.err, std::regex(concat("\\[rank ", rank, "\\] +\"rank\": \"", rank,
                                                        " \\(CONTEXTURE_RANK\\)\""))))
        << result.err;
  }
  EXPECT_FALSE(contains(result.err, "[rank 0]"));
}

TEST(Launch, ItsRanksMeet) {
  const Result result = run_program(launch({"--nproc", "3"}, {"env", "--connect", "--json"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.json()["met"]["ranks"], 3);
}

TEST(Launch, ARankThatNeverComesIsNamedOnce) {
  // Of two nodes only the first is there.
  const Result result = run_program(launch(
      {"--nproc", "2", "--nnodes", "2", "--node-rank", "0", "--rendezvous", "127.0.0.1:29473"},
      {"env", "--connect", "--deadline", "2"}));
  EXPECT_EQ(result.code, 4);
  EXPECT_EQ(count(result.err, "never saw rank 2 and 3 of 4"), 1) << result.err;
}

TEST(Launch, DryRunShowsWhereEachRankStands) {
  const Result result =
      run_program(launch({"--nproc", "4", "--dry-run", "--json"},
                         {"train", "--set", "parallel.dp=2", "--set=parallel.tp=2"}));
  EXPECT_EQ(result.code, 0) << result.err;
  const Json ranks = result.json()["ranks"];
  ASSERT_EQ(ranks.size(), 4u);
  EXPECT_EQ(ranks[3],
            (Json{{"rank", 3}, {"node", 0}, {"local_rank", 3}, {"dp", 1}, {"pp", 0}, {"tp", 1}}));
  const Result text = run_program(launch(
      {"--nproc", "2", "--nnodes", "2", "--node-rank", "1", "--rendezvous", "h:1", "--dry-run"},
      {"train"}));
  EXPECT_TRUE(contains(text.out, "nnodes = 2 (--nnodes)")) << text.out;
}

TEST(Launch, RefusesAMeshThatDoesNotFitOnceAndStartsNothing) {
  const Result result = run_program(launch({"--nproc", "4"}, {"train", "--set", "parallel.pp=3"}));
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(count(result.err, "3 ranks, but 4 were started"), 1) << result.err;
  EXPECT_FALSE(contains(result.err, "[rank"));
}

TEST(Launch, RefusesATakenPortByNumber) {
  const Process first(launch({"--nproc", "1", "--rendezvous", "127.0.0.1:29471"}, kLong));
  children(first, 1);
  const Result second =
      run_program(launch({"--nproc", "1", "--rendezvous", "127.0.0.1:29471"}, {"env"}));
  EXPECT_EQ(second.code, 1);
  EXPECT_TRUE(contains(second.err, "port 29471 is taken")) << second.err;
}

TEST(Launch, EndsWithTheExitCodeOfTheFailure) {
  const Result usage = run_program(launch({"--nproc", "2"}, {"trian"}));
  EXPECT_EQ(usage.code, 2);
  EXPECT_EQ(count(usage.err, "the others have"), 1) << usage.err;
  const Result data = run_program(launch({"--nproc", "2"}, {"report", "/nonexistent/run"}));
  EXPECT_EQ(data.code, run_program({"report", "/nonexistent/run"}).code);
  EXPECT_NE(data.code, 0);
}

TEST(Launch, AKilledRankEndsTheOthersAfterTheirGrace) {
  Process process(launch({"--nproc", "3", "--grace", "1"}, kLong));
  const std::vector<pid_t> ranks = children(process, 3);
  ASSERT_EQ(ranks.size(), 3u);
  const auto start = std::chrono::steady_clock::now();
  ::kill(ranks[1], SIGKILL);
  const Result result = process.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(result.code, 4);
  EXPECT_EQ(count(result.err, "was killed by signal 9"), 1) << result.err;
  EXPECT_TRUE(contains(result.err, "rank 1 of 3 was killed by signal 9")) << result.err;
  for (const pid_t rank : ranks) EXPECT_NE(::kill(rank, 0), 0);
}

TEST(Launch, NoRankOutlivesTheLauncher) {
  Process process(launch({"--nproc", "2"}, kLong));
  const std::vector<pid_t> ranks = children(process, 2);
  ASSERT_EQ(ranks.size(), 2u);
  process.send(SIGKILL);
  EXPECT_EQ(process.wait().signal, SIGKILL);
  for (const pid_t rank : ranks) {  // orphans, so init reaps them; "Z" until then
    bool gone = false;
    for (int i = 0; i < 1000 && !gone; ++i) {
      std::string pid, name, state;
      std::ifstream(concat("/proc/", rank, "/stat")) >> pid >> name >> state;
      gone = state.empty() || state == "Z" || state == "X";
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_TRUE(gone) << rank;
  }
}

TEST(Launch, PassesSignalsOnAndWantsToBeRequeuedWhenSaved) {
  const TempDir dir;
  const auto run = dir.path() / "run";
  Process process(launch({"--nproc", "1"}, tiny_training(run, {"--set", "train.steps=100000"})));
  ASSERT_TRUE(process.wait_until([&] { return last_step(run) >= 2; }));
  process.send(SIGTERM);
  const Result result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_TRUE(contains(result.err, "[rank 0] ")) << result.err;
}

}  // namespace
}  // namespace contexture::cli
