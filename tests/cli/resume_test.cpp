// A run that is stopped, kindly or not, goes on as if nothing had happened.
#include <gtest/gtest.h>
#include <signal.h>

#include "program.h"

namespace contexture::cli {
namespace {
namespace fs = std::filesystem;

Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(Stop, SigtermSavesExitsWith75AndResumeGoesOn) {
  const TempDir dir;
  const fs::path run = dir.path() / "run";
  const Arguments train = tiny_training(
      run, {"--set", "train.steps=5000", "--set", "checkpoint.every=0", "--set", "eval.every=0"});
  Process process(train);
  ASSERT_TRUE(process.wait_until([&] { return last_step(run) >= 3; })) << process.wait().err;
  process.send(SIGTERM);
  const Result stopped = process.wait();
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  const int64_t step = last_step(run);
  ASSERT_EQ(run_program({"checkpoint", "verify", run}).code, 0);

  const Result resumed = run_program(
      with(train, {"--resume", "--set", "train.stop_at=" + std::to_string(step + 3), "--json"}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(resumed.json()["steps"], step + 3);
  EXPECT_EQ(losses(run).size(), static_cast<size_t>(step + 3))
      << "every step stands in the log once";
}

// Kills a run with SIGKILL after step 25, resumes it, and compares every loss with a run that
// nobody disturbed.
void expect_equal_after_kill(const Arguments& settings) {
  const TempDir dir;
  const fs::path whole = dir.path() / "whole", killed = dir.path() / "killed";
  const Arguments more =
      with({"--set", "train.steps=60", "--set", "checkpoint.every=10", "--set", "eval.every=30"},
           settings);
  const Result undisturbed = run_program(tiny_training(whole, more));
  ASSERT_EQ(undisturbed.code, 0) << undisturbed.err;
  ASSERT_EQ(losses(whole).size(), 60u);

  Process process(tiny_training(killed, more));
  ASSERT_TRUE(process.wait_until([&] { return last_step(killed) >= 25; })) << process.wait().err;
  process.send(SIGKILL);
  ASSERT_EQ(process.wait().signal, SIGKILL) << "it ended before it could be killed";
  ASSERT_LT(last_step(killed), 60);
  const Result resumed = run_program(with(tiny_training(killed, more), {"--resume"}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(losses(killed), losses(whole));
  const Result compared = run_program({"checkpoint", "diff", whole, killed});
  EXPECT_EQ(compared.code, 0) << compared.out;
}

TEST(Kill, AResumedRunHasTheSameLosses) {
  expect_equal_after_kill({"--set", "retriever.refresh_every=0", "--set", "data.threads=1"});
}

TEST(Kill, AResumedRunHasTheSameLossesWithRefreshesBetweenSteps) {
  expect_equal_after_kill(
      {"--set", "retriever.refresh_every=7", "--set", "data.threads=2", "--set", "run.threads=2"});
}

TEST(Kill, AResumedRunHasTheSameLossesWithAnIndexThatCompresses) {
  expect_equal_after_kill(
      {"--set", "retriever.refresh_every=10", "--set", "retriever.factory=SQ8"});
}

TEST(Kill, AResumedRunHasTheSameLossesWithRefreshesFromASnapshot) {
  expect_equal_after_kill({"--set", "retriever.refresh_every=10", "--set",
                           "retriever.refresh_lag=6", "--set", "data.threads=2"});
}

TEST(Kill, ALateKillThatLeavesAHalfWrittenCheckpointLosesNothingBefore) {
  const TempDir dir;
  const fs::path run = dir.path() / "run";
  ASSERT_EQ(run_program(tiny_training(run)).code, 0);
  const std::vector<std::string> before = losses(run);
  // As a kill leaves it: the manifest, which comes last, is not there.
  fs::remove(run / "checkpoints" / "step-00000020" / "manifest.json");
  const Result resumed = run_program(tiny_training(run, {"--resume"}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(losses(run), before);
  EXPECT_EQ(run_program({"checkpoint", "verify", run, "--step", "20"}).code, 0);
}

}  // namespace
}  // namespace contexture::cli
