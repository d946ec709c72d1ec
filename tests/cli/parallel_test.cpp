// Training over processes: the same numbers, and what happens when one of them dies, stops or is
// told to end.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "core/safetensors.h"
#include "program.h"

namespace contexture::cli {
namespace {
namespace fs = std::filesystem;
using std::chrono::steady_clock;

Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Arguments launched(int ranks, const Arguments& command) {
  return with({"launch", "--nproc", std::to_string(ranks), "--grace", "3", "--"}, command);
}

Arguments set(const std::vector<std::string>& settings) {
  Arguments out;
  for (const std::string& s : settings) out.insert(out.end(), {"--set", s});
  return out;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

// The rank processes of a launcher, by rank: they are started in order.
std::vector<pid_t> ranks_of(const Process& launcher) {
  std::vector<pid_t> out;
  std::ifstream in(concat("/proc/", launcher.pid(), "/task/", launcher.pid(), "/children"));
  for (pid_t pid = 0; in >> pid;) out.push_back(pid);
  std::sort(out.begin(), out.end());
  return out;
}

struct Layout {
  int ranks;
  std::vector<std::string> settings;
};

TEST(Parallel, ProcessesGiveTheResultOfOne) {
  for (const Layout& layout :
       {Layout{2, {"parallel.pp=2"}}, Layout{4, {"parallel.zero=3"}},
        Layout{4, {"parallel.pp=2", "parallel.tp=2", "parallel.schedule=zb_h1"}},
        Layout{4,
               {"parallel.pp=2", "parallel.zero=2", "parallel.schedule=interleaved",
                "parallel.chunks=2", "parallel.order=pp,dp,tp"}},
        Layout{3,
               {"parallel.pp=3", "parallel.schedule=list", "parallel.shared=colocate",
                "parallel.recompute=[\"all\"]"}}}) {
    SCOPED_TRACE(Json(layout.settings).dump());
    const TempDir dir;
    const Arguments command = with(tiny_training(dir.path() / "run", set(layout.settings)),
                                   {"--set", "model.kv_heads=2", "--verify-parity", "--json"});
    const Result result = run_program(launched(layout.ranks, command));
    ASSERT_EQ(result.code, 0) << result.err;
    const Json differences = result.json();
    for (const char* key : {"loss_max_rel", "grad_max_rel", "step_max_rel"})
      EXPECT_LE(differences[key].get<double>(), 1e-10) << key;
    EXPECT_TRUE(differences["worst_parameter"].is_string());
  }
}

// Lines of answers without what sums in another order make differ in its last digits.
std::string without_figures(const std::string& answers) {
  std::string out;
  std::istringstream in(answers);
  for (std::string line; std::getline(in, line);) {
    const Json answer = parse_json(line, "answer");
    out += concat(answer["id"], answer["question"], answer["answer"], "\n");
    for (const Json& document : answer["documents"]) out += concat("  ", document["id"], "\n");
  }
  return out;
}

// Every number of a as in b, but for the last digits that sums in another order leave.
void expect_near(const Json& a, const Json& b) {
  ASSERT_EQ(a.size(), b.size());
  if (a.is_number()) {
    EXPECT_NEAR(a.get<double>(), b.get<double>(), 1e-8 * (1 + std::abs(b.get<double>())));
    return;
  }
  ASSERT_TRUE(a.is_structured()) << a;
  for (const auto& [key, value] : a.items())
    expect_near(value, a.is_array() ? b.at(std::stoul(key)) : b.at(key));
}

// The figures of every evaluation while training.
std::vector<std::string> evaluations(const fs::path& run) {
  std::ifstream file(run / "metrics.jsonl");
  std::vector<std::string> out;
  for (std::string line; std::getline(file, line);) {
    const Json record = parse_json(line, "metrics.jsonl");
    if (record.contains("eval"))
      out.push_back(concat(record["step"].get<int64_t>(), " ", record["eval"].dump()));
  }
  return out;
}

// How many training inputs had been seen by each step.
std::vector<int64_t> samples_seen(const fs::path& run) {
  std::ifstream file(run / "metrics.jsonl");
  std::vector<int64_t> out;
  for (std::string line; std::getline(file, line);) {
    const Json record = parse_json(line, "metrics.jsonl");
    if (record.contains("loss")) out.push_back(record["samples_seen"].get<int64_t>());
  }
  return out;
}

TEST(Parallel, ProcessesEvaluateAndAnswerAsOneDoes) {
  const TempDir dir;
  const std::vector<std::string> settings{"train.steps=20",       "eval.every=10",
                                          "eval.examples=5",      "eval.batch_size=2",
                                          "train.precision=fp64", "model.kv_heads=2"};
  const fs::path one = dir.path() / "one", questions = dir.path() / "questions.jsonl";
  ASSERT_EQ(run_program(tiny_training(one, set(settings))).code, 0);
  write_file_atomic(questions,
                    "{\"id\":\"a\",\"question\":\"What is the "
                    "capital?\"}\n{\"id\":\"bad\",\"question\":\"Where?\",\"image\":\"no.png\"}\n"
                    "{\"id\":\"b\",\"question\":\"Which colours does it have?\"}\n");
  const Arguments evaluate = {"eval", one, "--examples", "5", "--data", "train.jsonl", "--edits"},
                  answer = {"generate", one, questions},
                  ask = {"ask", one, "What is the capital?", "--json"};
  const Result figures = run_program(evaluate), answers = run_program(answer),
               one_answer = run_program(ask);
  ASSERT_EQ(figures.code, 0) << figures.err;
  ASSERT_EQ(answers.code, 0) << answers.err;
  ASSERT_EQ(one_answer.code, 0) << one_answer.err;
  ASSERT_GT(figures.json()["edits"].get<int64_t>(), 0);
  ASSERT_EQ(evaluations(one).size(), 2u);
  ASSERT_EQ(samples_seen(one).size(), 20u);
  EXPECT_EQ(samples_seen(one)[2], 3 * 8);
  ASSERT_EQ(count(answers.out, "\n"), 2);
  for (const Layout& layout : {Layout{4, {"parallel.pp=2", "parallel.zero=3"}},
                               Layout{4, {"parallel.pp=2", "parallel.tp=2"}}, Layout{3, {}}}) {
    SCOPED_TRACE(Json(layout.settings).dump());
    const fs::path run = dir.path() / concat("run-", layout.settings.size(), layout.ranks,
                                             count(Json(layout.settings).dump(), "tp"));
    const Result trained = run_program(
        launched(layout.ranks, with(tiny_training(run, set(settings)), set(layout.settings))));
    ASSERT_EQ(trained.code, 0) << trained.err;
    EXPECT_EQ(evaluations(run), evaluations(one));
    EXPECT_EQ(samples_seen(run), samples_seen(one));
    const Result spread = run_program(launched(layout.ranks, with(evaluate, set(layout.settings))));
    ASSERT_EQ(spread.code, 0) << spread.err;
    Json want = figures.json(), got = spread.json();
    expect_near(got.at("retrieval_utility"), want.at("retrieval_utility"));
    expect_near(got["intervals"]["retrieval_utility"], want["intervals"]["retrieval_utility"]);
    for (Json* all : {&want, &got}) {
      all->erase("retrieval_utility");
      (*all)["intervals"].erase("retrieval_utility");
    }
    EXPECT_EQ(got, want);
    const Result answered = run_program(launched(layout.ranks, with(answer, set(layout.settings))));
    ASSERT_EQ(answered.code, 0) << answered.err;
    EXPECT_EQ(without_figures(answered.out), without_figures(answers.out));
    EXPECT_EQ(count(answered.err, "question"), count(answers.err, "question")) << answered.err;
    const Result asked = run_program(launched(layout.ranks, with(ask, set(layout.settings))));
    ASSERT_EQ(asked.code, 0) << asked.err;
    EXPECT_EQ(without_figures(asked.json().dump()), without_figures(one_answer.json().dump()));
    // And one process takes the run of any layout.
    EXPECT_EQ(run_program({"eval", run, "--examples", "2", "--data", "train.jsonl"}).code, 0);
  }
}

TEST(Parallel, RefusalsAreSaidOnce) {
  const TempDir dir;
  for (const auto& [settings, words] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"parallel.tp=2", "model.kv_heads=1"}, "model.kv_heads=1"},
           {{"parallel.pp=2", "parallel.schedule=sideways"}, "parallel.schedule=sideways"},
           {{"parallel.microbatches=9"}, "a microbatch would be empty"},
           {{"parallel.pp=2", "parallel.shared=colocate"}, "parallel.schedule=list"},
           {{"parallel.pp=2", "parallel.schedule=interleaved", "parallel.chunks=20"}, "blocks"}}) {
    const Result result =
        run_program(launched(2, tiny_training(dir.path() / "run", set(settings))));
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_EQ(count(result.err, words), 1) << result.err;
  }
}

const std::vector<std::string> kBusy{
    "train.steps=40", "checkpoint.every=4", "retriever.refresh_every=2", "eval.every=10",
    "parallel.pp=2",  "parallel.zero=1",    "train.batch_size=8"};

// kill -9 of each rank at some moment of a step; what the step was doing then is up to chance and
// to the delay.
TEST(Parallel, AKilledRankEndsAllAndTheNextStartContinues) {
  const TempDir dir;
  const fs::path whole = dir.path() / "whole";
  ASSERT_EQ(run_program(launched(4, tiny_training(whole, set(kBusy)))).code, 0);
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(concat("rank ", rank));
    const fs::path run = dir.path() / concat("killed-", rank);
    const Arguments command = tiny_training(run, set(kBusy));
    Process launcher(launched(4, command));
    ASSERT_TRUE(launcher.wait_until([&] { return last_step(run) >= 6 + rank; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(17 * rank));
    const std::vector<pid_t> ranks = ranks_of(launcher);
    ASSERT_EQ(ranks.size(), 4u);
    const auto start = steady_clock::now();
    ASSERT_EQ(kill(ranks[rank], SIGKILL), 0);
    const Result result = launcher.wait();
    EXPECT_LT(seconds_since(start), 30.0);
    EXPECT_EQ(result.code, 4) << result.err;
    EXPECT_TRUE(contains(result.err, concat("rank ", rank))) << result.err;
    for (const pid_t pid : ranks) EXPECT_NE(kill(pid, 0), 0) << "a rank outlived the launcher";
    const Result resumed = run_program(launched(4, with(command, {"--resume"})));
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(losses(run), losses(whole));
  }
}

TEST(Parallel, AStoppedRankIsNoticedByTheDeadlineAndTheNextStartContinues) {
  const TempDir dir;
  const fs::path run = dir.path() / "run";
  // A rank that is stopped while it saves has the first steps' deadline.
  const std::vector<std::string> settings{"train.steps=4000",     "parallel.pp=3",
                                          "parallel.timeout_s=3", "parallel.first_timeout_s=20",
                                          "eval.every=0",         "checkpoint.every=4"};
  Process launcher(launched(3, tiny_training(run, set(settings))));
  ASSERT_TRUE(launcher.wait_until([&] { return last_step(run) >= 6; }));
  const std::vector<pid_t> ranks = ranks_of(launcher);
  ASSERT_EQ(ranks.size(), 3u);
  const auto start = steady_clock::now();
  ASSERT_EQ(kill(ranks[1], SIGSTOP), 0);
  const Result result = launcher.wait();
  EXPECT_LT(seconds_since(start),
            45.0);  // at most 20 s until the deadline, 3 s of grace, and a busy machine
  EXPECT_EQ(result.code, 4) << result.err;
  EXPECT_TRUE(contains(result.err, "deadline") || contains(result.err, "3 s")) << result.err;
  for (const pid_t pid : ranks) EXPECT_NE(kill(pid, 0), 0) << "a rank outlived the launcher";

  const int64_t from = newest_checkpoint(run);
  ASSERT_GE(from, 4);
  const Arguments some_more{"--set", concat("train.stop_at=", from + 2)};
  const Result resumed = run_program(
      launched(3, with(with(tiny_training(run, set(settings)), some_more), {"--resume"})));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(count(resumed.err, concat("resumed after step ", from)), 1) << resumed.err;
  const fs::path whole = dir.path() / "whole";
  ASSERT_EQ(run_program(launched(3, with(tiny_training(whole, set(settings)), some_more))).code, 0);
  EXPECT_EQ(losses(run), losses(whole));
}

TEST(Parallel, ASignalToOneRankSavesOnAllAndExits75) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    SCOPED_TRACE(concat("signal ", signal));
    const TempDir dir;
    const fs::path run = dir.path() / "run";
    const Arguments command = tiny_training(
        run, set({"train.steps=4000", "parallel.pp=2", "eval.every=0", "checkpoint.every=0"}));
    Process launcher(launched(2, command));
    ASSERT_TRUE(launcher.wait_until([&] { return last_step(run) >= 3; }));
    const std::vector<pid_t> ranks = ranks_of(launcher);
    ASSERT_EQ(ranks.size(), 2u);
    ASSERT_EQ(kill(ranks[1], signal), 0);
    const Result result = launcher.wait();
    EXPECT_EQ(result.code, 75) << result.err;
    const int64_t step = last_step(run);
    EXPECT_EQ(newest_checkpoint(run), step);
    EXPECT_EQ(run_program({"checkpoint", "verify", run}).code, 0);
    // And goes on in one process.
    const Result resumed = run_program(
        with(tiny_training(run, set({"train.steps=4000", "eval.every=0", "checkpoint.every=0"})),
             {"--resume", "--json", "--set", concat("train.stop_at=", step + 2)}));
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(resumed.json()["steps"], step + 2);
  }
}

// Refreshes with a lag, on a thread or on ranks of their own.
Arguments refreshing(const fs::path& run, int ranks, const std::vector<std::string>& more = {}) {
  return with(
      tiny_training(run, set({"train.steps=16", "checkpoint.every=5", "eval.every=0",
                              "retriever.refresh_every=4", "retriever.refresh_lag=3",
                              "retriever.gold=false", concat("retriever.refresh_ranks=", ranks)})),
      set(more));
}

TEST(Parallel, ARefreshRankChangesNoNumber) {
  const TempDir dir;
  const fs::path thread = dir.path() / "thread", beside = dir.path() / "beside",
                 two = dir.path() / "two", three = dir.path() / "three";
  ASSERT_EQ(run_program(refreshing(thread, 0)).code, 0);
  ASSERT_EQ(run_program(launched(2, refreshing(beside, 1))).code, 0);
  EXPECT_EQ(losses(beside), losses(thread));
  ASSERT_EQ(run_program(launched(2, refreshing(two, 0))).code, 0);
  // Killed in the middle of its third refresh, of step 12, and started again.
  ::setenv("CONTEXTURE_KILL_AT", "2 refresh 3", 1);
  const Result killed = run_program(launched(3, refreshing(three, 1)));
  ::unsetenv("CONTEXTURE_KILL_AT");
  EXPECT_EQ(killed.code, 4) << killed.err;
  EXPECT_EQ(count(killed.err, "rank 2 of 3 was killed by signal 9"), 1) << killed.err;
  const Result resumed = run_program(launched(3, with(refreshing(three, 1), {"--resume"})));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(losses(three), losses(two));
  EXPECT_EQ(run_program({"eval", three, "--examples", "2", "--data", "train.jsonl"}).code, 0);
  for (const auto& [arguments, words] : std::vector<std::pair<Arguments, std::string>>{
           {refreshing(three, 1), "leaves none to train"},
           {launched(2, refreshing(three, 2)), "leaves none to train"},
           {refreshing(three, 1, {"retriever.refresh_lag=0"}), "retriever.refresh_lag"},
           {launched(3, refreshing(three, 1, {"parallel.pp=3"})), "1 more of the 3 do not train"},
           {launched(2, with(refreshing(three, 1), {"--verify-parity"})), "--verify-parity"},
           {{"eval", three, "--set", "retriever.refresh_ranks=1"}, "is for training"}}) {
    const Result refused = run_program(arguments);
    EXPECT_EQ(refused.code, 2) << refused.err;
    EXPECT_EQ(count(refused.err, words), 1) << refused.err;
  }
}

TEST(Parallel, AnIdleRefreshRankEndsWithTheOthers) {
  const TempDir dir;
  struct Case {
    int rank, signal, code;
    const char* words;
  };
  for (const Case& c :
       {Case{2, SIGSTOP, 4, "rank 2, which refreshes the index, has shown no life"},
        Case{0, SIGKILL, 4, "rank 0"}, Case{1, SIGKILL, 4, "rank 1"}, Case{2, SIGTERM, 75, ""}}) {
    SCOPED_TRACE(concat("signal ", c.signal, " to rank ", c.rank));
    const fs::path run = dir.path() / concat("run-", c.rank, "-", c.signal);
    Process launcher(
        launched(3, refreshing(run, 1,
                               {"train.steps=100000", "checkpoint.every=0", "parallel.timeout_s=5",
                                "retriever.refresh_every=90000"})));
    ASSERT_TRUE(launcher.wait_until([&] { return last_step(run) >= 3; }));
    const std::vector<pid_t> ranks = ranks_of(launcher);
    ASSERT_EQ(ranks.size(), 3u);
    const auto start = steady_clock::now();
    ASSERT_EQ(kill(ranks[c.rank], c.signal), 0);
    const Result result = launcher.wait();
    EXPECT_LT(seconds_since(start), 30.0);
    EXPECT_EQ(result.code, c.code) << result.err;
    EXPECT_TRUE(contains(result.err, c.words)) << result.err;
    for (const pid_t pid : ranks) EXPECT_NE(kill(pid, 0), 0) << "a rank outlived the launcher";
  }
}

// Files may not grow beyond a size, as on a full disk or quota.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(Parallel, AFullDiskLosesNothingThatWasComplete) {
  const TempDir dir;
  const fs::path run = dir.path() / "run";
  const Arguments command = tiny_training(
      run, set({"train.steps=8", "checkpoint.every=4", "parallel.pp=2", "eval.every=0"}));
  ASSERT_EQ(run_program(launched(2, with(command, {"--set", "train.stop_at=4"}))).code, 0);
  {
    const FileLimit limit(60 << 10);  // less than a rank's moments
    const Result result = run_program(launched(2, with(command, {"--resume"})));
    EXPECT_NE(result.code, 0);
    EXPECT_TRUE(contains(result.err, "step-00000008")) << result.err;
    EXPECT_TRUE(contains(result.err, "File too large")) << result.err;
  }
  EXPECT_EQ(run_program({"checkpoint", "verify", run}).code, 0);  // the newest complete one: step 4
  const Result resumed = run_program(launched(2, with(command, {"--resume", "--json"})));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(resumed.json()["steps"], 8);
  EXPECT_EQ(losses(run).size(), 8u);
}

TEST(Parallel, APipelineLeavesATimeline) {
  const TempDir dir;
  const fs::path run = dir.path() / "run";
  ASSERT_EQ(
      run_program(launched(4, tiny_training(run, set({"parallel.pp=2", "parallel.microbatches=3",
                                                      "train.steps=2", "eval.every=0"}))))
          .code,
      0);
  const Json timeline = parse_json(read_file(run / "timeline.json"), "timeline.json");
  std::map<std::pair<int, int>, std::vector<std::string>> rows;  // by replica and pipeline rank
  std::map<std::pair<int, int>, double> until;
  for (const Json& event : timeline["traceEvents"]) {
    const std::pair<int, int> row{event["pid"], event["tid"]};
    rows[row].push_back(event["name"]);
    EXPECT_GE(event["ts"].get<double>(), until[row]);  // one thing at a time
    until[row] =
        event["ts"].get<double>() + event["dur"].get<double>() - 1e-3;  // rounding of microseconds
  }
  ASSERT_EQ(rows.size(), 4u);
  for (int replica = 0; replica < 2; ++replica) {  // 1F1B
    EXPECT_EQ((rows[{replica, 0}]),
              (std::vector<std::string>{"0F0", "0F1", "0B0", "0F2", "0B1", "0B2"}));
    EXPECT_EQ((rows[{replica, 1}]),
              (std::vector<std::string>{"1F0", "1B0", "1F1", "1B1", "1F2", "1B2"}));
  }
}

TEST(Parallel, ReshardWritesOneFileEach) {
  const TempDir dir;
  const fs::path run = dir.path() / "run", to = dir.path() / "one";
  ASSERT_EQ(
      run_program(launched(2, tiny_training(run, set({"parallel.pp=2", "train.steps=3"})))).code,
      0);
  const Result joined = run_program({"checkpoint", "reshard", run, to, "--json"});
  ASSERT_EQ(joined.code, 0) << joined.err;
  EXPECT_EQ(joined.json(), (Json{{"checkpoint", (to / "step-00000003").string()}, {"step", 3}}));
  EXPECT_TRUE(fs::exists(to / "step-00000003" / "model.safetensors"));
  EXPECT_EQ(SafetensorsReader(to / "step-00000003" / "retriever.safetensors").names(),
            std::vector<std::string>{"vectors"})
      << "of its pieces";
  const Result compared = run_program({"checkpoint", "diff", run, to / "step-00000003"});
  EXPECT_EQ(compared.code, 0) << compared.out << compared.err;
  EXPECT_EQ(run_program({"checkpoint", "reshard", run, to}).code, 2)
      << "it must not write over another";
  const std::string index = dir.path() / "run.faiss";
  const Result built = run_program({"index", "build", run, "--output", index});
  EXPECT_EQ(built.code, 0) << built.err << "of a model in several files";
  const Result found =
      run_program({"index", "search", index, "--run", run, "--question", "What is the capital?"});
  EXPECT_EQ(found.code, 0) << found.err;
}

// An exported model starts a run in another layout, where its weights are what they were.
TEST(Parallel, AnExportedModelStartsAnotherRun) {
  const TempDir dir;
  const fs::path run = dir.path() / "run", model = dir.path() / "model";
  ASSERT_EQ(run_program(launched(2, tiny_training(run, set({"parallel.pp=2", "train.steps=3",
                                                            "model.kv_heads=2"}))))
                .code,
            0);
  const Result exported = run_program({"checkpoint", "export", run, model});
  ASSERT_EQ(exported.code, 0) << exported.err;
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.model"})
    EXPECT_TRUE(fs::exists(model / name)) << name;
  EXPECT_EQ(
      run_program({"checkpoint", "diff", run, model / "model.safetensors", "--file", "model"}).code,
      0);
  EXPECT_EQ(run_program({"checkpoint", "export", run, model}).code, 2) << "it writes over nothing";
  // A step at no rate to speak of: fp32 weights stay as they are.
  for (const fs::path& from : {model, run}) {
    const fs::path next = dir.path() / concat("from-", from.filename().string());
    const Result started = run_program(launched(
        2,
        tiny_training(next, set({concat("train.start_from=", from.string()), "train.steps=1",
                                 "optimizer.rate=1e-30", "parallel.tp=2", "model.kv_heads=2"}))));
    ASSERT_EQ(started.code, 0) << started.err;
    const Result same = run_program({"checkpoint", "diff", run, next, "--file", "model"});
    EXPECT_EQ(same.code, 0) << same.out;
  }
  const Result refused = run_program(
      launched(2, tiny_training(dir.path() / "wide",
                                set({concat("train.start_from=", model.string()), "parallel.pp=2",
                                     "model.kv_heads=2", "model.ffn_width=40"}))));
  EXPECT_EQ(refused.code, 3) << refused.err;
  EXPECT_EQ(count(refused.err, "encoder.layer.0.mlp.in has shape"), 1) << refused.err;
  EXPECT_FALSE(fs::exists(dir.path() / "wide" / "checkpoints"));
}

}  // namespace
}  // namespace contexture::cli
