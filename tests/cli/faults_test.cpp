// The death of each rank in each phase of a step: the others end, the cause is said once, and the
// next start goes on from the last complete checkpoint with the losses of a run that nobody
// disturbed. CONTEXTURE_KILL_AT (core/fault_point.h) says where.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "core/error.h"
#include "program.h"

namespace contexture::cli {
namespace {
namespace fs = std::filesystem;

using std::chrono::steady_clock;

constexpr double kDeadline = 30.0;  // of every collective, the first ones too

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

// Two replicas of a two-stage pipeline. Step 6 lies between the checkpoints of 4 and 8, and ends
// with a refresh.
Arguments command(const fs::path& run, const std::string& async) {
  Arguments out{"launch", "--nproc", "4", "--grace", "3", "--"};
  const Arguments train = tiny_training(run, {});
  out.insert(out.end(), train.begin(), train.end());
  for (const std::string setting :
       {"train.steps=10", "checkpoint.every=4", "retriever.refresh_every=2", "eval.every=0",
        "parallel.pp=2", "parallel.zero=1", "parallel.microbatches=2", "train.batch_size=8",
        "parallel.timeout_s=30", "parallel.first_timeout_s=30"}) {
    out.insert(out.end(), {"--set", setting});
  }
  out.insert(out.end(), {"--set", "checkpoint.async=" + async});
  return out;
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

struct Fault {
  const char* phase;
  int times;  // that a rank passes the phase's point, the fatal time included
  const char* async;
};

class Death : public testing::TestWithParam<Fault> {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::make_unique<TempDir>();
    const auto start = steady_clock::now();
    ASSERT_EQ(run_program(command(dir_->path() / "whole", "false")).code, 0);
    whole_s_ = seconds_since(start);
  }
  static void TearDownTestSuite() { dir_.reset(); }
  static std::unique_ptr<TempDir> dir_;
  static double whole_s_;  // of an undisturbed run: start-up and all steps
};
std::unique_ptr<TempDir> Death::dir_;
double Death::whole_s_ = 0.0;

TEST_P(Death, OfAnyRankEndsAllAndTheNextStartContinues) {
  const Fault& fault = GetParam();
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(concat("rank ", rank, " in ", fault.phase));
    const fs::path run = dir_->path() / concat(fault.phase, "-", fault.async, "-", rank);
    ::setenv("CONTEXTURE_KILL_AT", concat(rank, " ", fault.phase, " ", fault.times).c_str(), 1);
    const auto start = steady_clock::now();
    Process launcher(command(run, fault.async));
    ::unsetenv("CONTEXTURE_KILL_AT");
    std::vector<pid_t> ranks;
    launcher.wait_until([&] {
      ranks.clear();
      std::ifstream in(concat("/proc/", launcher.pid(), "/task/", launcher.pid(), "/children"));
      for (pid_t pid = 0; in >> pid;) ranks.push_back(pid);
      return ranks.size() == 4;
    });
    ASSERT_EQ(ranks.size(), 4u);
    const Result result = launcher.wait();
    // Start-up and the steps before the fault, on a machine that may be busier by now.
    EXPECT_LT(seconds_since(start), 2 * whole_s_ + kDeadline);
    EXPECT_EQ(result.code, 4) << result.err;
    EXPECT_EQ(count(result.err, "was killed by signal 9"), 1) << result.err;
    EXPECT_EQ(count(result.err, concat("rank ", rank, " of 4 was killed by signal 9")), 1)
        << result.err;
    for (const pid_t pid : ranks) EXPECT_NE(kill(pid, 0), 0) << "a rank outlived the launcher";
    EXPECT_TRUE(fs::exists(run / "checkpoints" / "step-00000004" / "manifest.json"));
    EXPECT_FALSE(fs::exists(run / "checkpoints" / "step-00000008" / "manifest.json"));

    Arguments again = command(run, fault.async);
    again.push_back("--resume");
    const Result resumed = run_program(again);
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(count(resumed.err, "resumed after step 4"), 1) << resumed.err;
    EXPECT_EQ(losses(run), losses(dir_->path() / "whole"));
  }
}

// The first index is embedded before step 1, then after steps 2, 4 and 6; each rank runs two
// forwards a step.
INSTANTIATE_TEST_SUITE_P(EachPhase, Death,
                         testing::Values(Fault{"data", 6, "false"}, Fault{"forward", 11, "false"},
                                         Fault{"all-reduce", 6, "false"},
                                         Fault{"refresh", 4, "false"}, Fault{"save", 2, "false"},
                                         Fault{"save", 2, "true"}),
                         [](const auto& info) {
                           std::string name = info.param.phase;
                           name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
                           return name +
                                  (std::string(info.param.async) == "true" ? "OnAThread" : "");
                         });

// One rank's disk is full: of that rank alone files may not grow.
TEST(Faults, OneRanksFullDiskEndsAllAndLosesNothingThatWasComplete) {
  for (const std::string async : {"false", "true"}) {
    SCOPED_TRACE("async " + async);
    const TempDir dir;
    const fs::path run = dir.path() / "run";
    Arguments long_run = command(run, async);
    long_run.insert(long_run.end(), {"--set", "train.steps=4000"});
    Process launcher(long_run);
    ASSERT_TRUE(launcher.wait_until(
        [&] { return fs::exists(run / "checkpoints" / "step-00000004" / "manifest.json"); }));
    std::vector<pid_t> ranks;
    std::ifstream in(concat("/proc/", launcher.pid(), "/task/", launcher.pid(), "/children"));
    for (pid_t pid = 0; in >> pid;) ranks.push_back(pid);
    ASSERT_EQ(ranks.size(), 4u);
    std::sort(ranks.begin(), ranks.end());  // in the order of their start: by rank
    const rlimit little{10 << 10, 10 << 10};
    ASSERT_EQ(::prlimit(ranks[2], RLIMIT_FSIZE, &little, nullptr), 0);
    const Result result = launcher.wait();
    EXPECT_EQ(result.code, 1) << result.err;
    EXPECT_EQ(count(result.err, "File too large"), 1) << result.err;
    EXPECT_EQ(run_program({"checkpoint", "verify", run}).code, 0);
    // And with room on the disk it goes on from there, as a run that never lacked any.
    const int64_t from = newest_checkpoint(run);
    ASSERT_GE(from, 4);
    const Arguments some_more{"--set", concat("train.stop_at=", from + 2)};
    Arguments again = long_run;
    again.insert(again.end(), some_more.begin(), some_more.end());
    again.push_back("--resume");
    const Result resumed = run_program(again);
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(count(resumed.err, concat("resumed after step ", from)), 1) << resumed.err;
    Arguments undisturbed = command(dir.path() / "whole", async);
    undisturbed.insert(undisturbed.end(), {"--set", "train.steps=4000"});
    undisturbed.insert(undisturbed.end(), some_more.begin(), some_more.end());
    ASSERT_EQ(run_program(undisturbed).code, 0);
    EXPECT_EQ(losses(run), losses(dir.path() / "whole"));
  }
}

}  // namespace
}  // namespace contexture::cli
