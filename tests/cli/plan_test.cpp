// Planning from the command line: the layouts of a published size on a large cluster, and what is
// refused.
#include <gtest/gtest.h>

#include <set>

#include "chromium.h"
#include "core/error.h"
#include "program.h"

namespace contexture::cli {
namespace {

const std::string kSource = CONTEXTURE_SOURCE_DIR;

Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Arguments plan(const std::string& config, const Arguments& more) {
  return with({"plan", "--config", kSource + "/configs/" + config}, more);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Plan, OneReplicaOf16NodesHasItsPipelineAcrossNodesAndTensorParallelismInside) {
  const Result result = run_program(plan("vlm-3b.json", {"--nodes", "16", "--gpus-per-node", "8",
                                                         "--set", "parallel.dp=1", "--json"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const Json out = result.json();
  double last = 0.0;
  for (const Json& listed : out["plans"]) {
    EXPECT_EQ(listed["dp"], 1);
    EXPECT_EQ(listed["pp"].get<int>() * listed["tp"].get<int>(), 128);
    EXPECT_GE(listed["step_s"].get<double>(), last);  // best first
    last = listed["step_s"].get<double>();
    EXPECT_LE(listed["memory_gb"].get<double>(), 0.9 * 80);
  }
  const Json& best = out["plans"][0];
  EXPECT_GT(best["tp"].get<int>(), 1);
  EXPECT_EQ(8 % best["tp"].get<int>(), 0);  // inside a node
  EXPECT_EQ(best["stages"].size(), best["pp"].get<size_t>() * best["chunks"].get<size_t>());
  std::set<int> nodes;
  size_t blocks = 0;
  for (const Json& stage : best["stages"]) {
    nodes.insert(stage["node"].get<int>());
    blocks += stage["blocks"].size();
  }
  EXPECT_EQ(nodes.size(), 16u);
  EXPECT_GT(best["bytes_per_step"]["across"]["pipeline"].get<double>(), 0.0);
  EXPECT_EQ(best["bytes_per_step"]["across"]["tensor"], 0.0);
  const Json traced =
      run_program({"trace", "--config", kSource + "/configs/vlm-3b.json", "--json"}).json();
  EXPECT_EQ(blocks, traced["blocks"].size());
}

// The decoder's blocks run by rows; attention within them is a part of their work.
TEST(Plan, TracesSayWhatTokenSlicesCut) {
  const TempDir dir;
  const std::string file = (dir.path() / "trace.json").string();
  const Result result =
      run_program({"trace", "--config", kSource + "/configs/vlm-3b.json", "--output", file});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json traced = parse_json(read_file(file), file);
  int sliced = 0;
  for (const Json& block : traced["blocks"]) {
    const bool decoder = block["name"].get<std::string>().rfind("dec.layer.", 0) == 0;
    sliced += block["rows"].get<int>() > 0 ? 1 : 0;
    if (!decoder) continue;
    EXPECT_GT(block["rows"].get<int>(), 576) << block["name"];  // a picture and a question
    EXPECT_GT(block["pair_work"].get<double>(), 0.0) << block["name"];
    EXPECT_LT(block["pair_work"].get<double>(), 0.5) << block["name"];
  }
  EXPECT_EQ(sliced, 22);  // 20 layers, embedding, norm
}

TEST(Plan, KeepsWhatIsSetAndNamesWhatItChose) {
  const Json out =
      run_program(plan("vlm-3b.json",
                       {"--nodes", "2", "--gpus-per-node", "4", "--set", "parallel.pp=8", "--set",
                        "parallel.token_slices=4", "--set", "parallel.order=pp,tp,dp", "--set",
                        "data.assembly=grouped", "--set", "parallel.sequence=true", "--json"}))
          .json();
  for (const Json& listed : out["plans"]) {
    EXPECT_EQ(listed["token_slices"], 4);
    EXPECT_EQ(listed["order"], "pp,tp,dp");
    EXPECT_EQ(listed["assembly"], "grouped");
    const auto command = listed["command"].get<std::string>();
    for (const char* set : {"'parallel.token_slices=4'", "'parallel.order=pp,tp,dp'",
                            "'data.assembly=grouped'", "'parallel.sequence=true'"}) {
      EXPECT_EQ(command.find(set), command.rfind(set)) << set;
      EXPECT_TRUE(contains(command, set)) << command;
    }
  }
  // Documents that are encoded once for all microbatches and slices do not go together.
  const Result refused = run_program(plan(
      "vlm-3b.json", {"--nodes", "2", "--gpus-per-node", "4", "--set", "parallel.pp=8", "--set",
                      "parallel.token_slices=4", "--set", "parallel.encode_once=replica"}));
  EXPECT_EQ(refused.code, 2);
  EXPECT_TRUE(contains(refused.err, "parallel.token_slices=4 cannot be planned")) << refused.err;
}

TEST(Plan, LeftFreeItSaysWhatWinsAndWhatPlainDataParallelismWouldDo) {
  const Result result =
      run_program(plan("vlm-3b.json", {"--nodes", "16", "--gpus-per-node", "8", "--json"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const Json out = result.json();
  EXPECT_TRUE(contains(out["advice"][0].get<std::string>(), " wins: ")) << out["advice"][0];
  EXPECT_TRUE(contains(out["advice"].dump(), "Plain data parallelism")) << out["advice"];
  EXPECT_TRUE(contains(out["advice"].dump(), "log2")) << out["advice"];
  EXPECT_LT(out["layouts_priced"].get<int>(), out["layouts_possible"].get<int>());
}

TEST(Plan, WritesAPageAndATimelineThatNeedNothingElse) {
  const TempDir dir;
  const std::string page = (dir.path() / "plan.html").string(),
                    timeline = (dir.path() / "plan.json").string();
  const Result result =
      run_program(plan("tiny.json", {"--nodes", "1", "--gpus-per-node", "2", "--set",
                                     "parallel.pp=2", "--html", page, "--timeline", timeline}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "parallel.stages=["));
  const std::string html = read_file(page);
  EXPECT_TRUE(contains(html, "default-src 'none'"));
  EXPECT_TRUE(contains(html, "doc.layer.0"));
  EXPECT_FALSE(contains(html, "src=\"http"));
  const Json trace = parse_json(read_file(timeline), timeline);
  std::set<int> ranks;
  for (const Json& event : trace["traceEvents"]) ranks.insert(event["tid"].get<int>());
  EXPECT_EQ(ranks, (std::set<int>{0, 1}));
}

// What a plan prints runs, and the rank processes put the blocks where the plan put them.
TEST(Plan, ItsSettingsTrain) {
  const Json out = run_program(plan("tiny.json", {"--nodes", "1", "--gpus-per-node", "2", "--set",
                                                  "parallel.pp=2", "--json"}))
                       .json();
  const TempDir dir;
  Arguments command{"launch", "--nproc", "2", "--"};
  command = with(command, tiny_training(dir.path() / "run", {"--set", "train.stop_at=2"}));
  for (const Json& setting : out["plans"][0]["settings"])
    command = with(command, {"--set", setting.get<std::string>()});
  const Result result = run_program(command);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(losses(dir.path() / "run").size(), 2u);
}

TEST(Plan, DrawsAStepThatRanBelowTheSimulatedOne) {
  const TempDir dir;
  const std::string run = (dir.path() / "run").string(), page = (dir.path() / "plan.html").string();
  const Arguments layout{"--set", "parallel.pp=2",         "--set", "parallel.microbatches=2",
                         "--set", "parallel.schedule=1f1b"};
  Arguments training{"launch", "--nproc", "2", "--"};
  training = with(with(training, tiny_training(run, {"--set", "train.stop_at=6"})), layout);
  ASSERT_EQ(run_program(training).code, 0);
  const auto planned = [&](const std::string& measured) {
    return run_program(with(plan("tiny.json", {"--nodes", "1", "--gpus-per-node", "2", "--html",
                                               page, "--measured", measured}),
                            layout));
  };
  const Result result = planned(run + "/timeline.json");
  ASSERT_EQ(result.code, 0) << result.err;
  const Result wrong = planned(run + "/run.json");
  EXPECT_EQ(wrong.code, 3);
  EXPECT_TRUE(contains(wrong.err, "no Chrome trace")) << wrong.err;
  const std::string chromium = eval::find_chromium();
  if (chromium.empty()) GTEST_SKIP() << "no chromium on the path: the page is not loaded";
  const eval::Loaded loaded = eval::load(chromium, dir.path(), page);
  EXPECT_EQ(loaded.console, "");
  const auto count = [&](const std::string& what) {
    size_t n = 0;
    for (size_t at = loaded.dom.find(what); at != std::string::npos;
         at = loaded.dom.find(what, at + 1))
      ++n;
    return n;
  };
  EXPECT_EQ(count("class=\"stage\""), 2u);
  EXPECT_GE(count("class=\"wire"), 1u);
  EXPECT_EQ(
      count("class=\"F\""),
      2 * 2 * 2u + 1);  // two stages, two microbatches, simulated and measured; and the legend
  EXPECT_EQ(count("class=\"B\""), 2 * 2 * 2u + 1);
}

struct Refusal {
  Arguments arguments;
  int code;
  std::string says;
};

TEST(Plan, RefusesWhatCannotBePlanned) {
  const TempDir dir;
  const std::string cluster = (dir.path() / "cluster.json").string();
  const auto written = [&](const std::string& text) {
    write_file_atomic(cluster, text);
    return plan("tiny.json", {"--cluster", cluster});
  };
  const std::string good =
      R"("gpu": {"memory_gb": 80, "peak_tflops": {"bf16": 312, "fp32": 19.5}}, "links": {"inside": {"gb_per_s": 300}, "across": {"gb_per_s": 25}})";
  const std::vector<Refusal> refusals = {
      {plan("tiny.json", {}), 2, "--cluster FILE"},
      {plan("tiny.json", {"--nodes", "0", "--gpus-per-node", "8"}), 2, "--nodes 0"},
      {plan("tiny.json", {"--nodes", "2"}), 2, "--gpus-per-node 0"},
      {with(written("{\"nodes\": 1, \"gpus_per_node\": 1, " + good + "}"), {"--nodes", "1"}), 2,
       "give one of the two"},
      {plan("tiny.json", {"--nodes", "1", "--gpus-per-node", "4", "--set", "parallel.dp=3"}), 2,
       "parallel.dp=3 do not divide"},
      {plan("tiny.json", {"--nodes", "1", "--gpus-per-node", "4", "--set", "parallel.dp=2", "--set",
                          "parallel.pp=1", "--set", "parallel.tp=1"}),
       2, "make 2 ranks"},
      {plan("tiny.json", {"--nodes", "1", "--gpus-per-node", "4", "--set", "parallel.tp=4"}), 2,
       "parallel.tp=4"},
      {plan("tiny.json",
            {"--nodes", "1", "--gpus-per-node", "4", "--set", "parallel.partitioner=fast"}),
       2, "parallel.partitioner=fast"},
      {plan("tiny.json", {"--nodes", "1", "--gpus-per-node", "1", "--top", "0"}), 2, "--top 0"},
      {plan("tiny.json", {"--nodes", "1", "--gpus-per-node", "1", "--measured", "t.json"}), 2,
       "give --html"},
  };
  for (const Refusal& refusal : refusals) {
    const Result result = run_program(refusal.arguments);
    EXPECT_EQ(result.code, refusal.code) << result.err;
    EXPECT_TRUE(contains(result.err, refusal.says)) << result.err;
    EXPECT_EQ(result.out, "");
  }
  for (const auto& [text, says] :
       {std::pair{"{\"nodes\": 1, \"gpus_per_node\": 1, \"colour\": 1, " + good + "}",
                  "unknown key 'colour'"},
        {"{\"nodes\": 0, \"gpus_per_node\": 1, " + good + "}", "must be at least 1"}}) {
    const Result result = run_program(written(text));
    EXPECT_EQ(result.code, 3) << result.err;
    EXPECT_TRUE(contains(result.err, says)) << result.err;
  }
}

TEST(Plan, SaysTheLeastThatWouldFit) {
  const TempDir dir;
  const std::string cluster = (dir.path() / "cluster.json").string();
  write_file_atomic(
      cluster,
      std::string_view(
          R"({"nodes": 1, "gpus_per_node": 2, "gpu": {"memory_gb": 24, "peak_tflops": {"bf16": 312}},
    "links": {"inside": {"gb_per_s": 300}, "across": {"gb_per_s": 25}}})"));
  const Result result = run_program(plan("vlm-3b.json", {"--cluster", cluster}));
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(contains(result.err, "nothing fits")) << result.err;
  EXPECT_TRUE(contains(result.err, "nodes something fits")) << result.err;
}

TEST(BenchLinks, MeasuresBetweenRanksAndWritesAClusterThatPlanReads) {
  const TempDir dir;
  const std::string cluster = (dir.path() / "cluster.json").string();
  const Result result =
      run_program({"launch", "--nproc", "2", "--", "bench", "links", "--largest-mb", "1",
                   "--repeats", "5", "--output", cluster, "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json out = result.json();
  EXPECT_GT(out["inside"]["gb_per_s"].get<double>(), 0.0);
  EXPECT_GE(out["inside"]["latency_us"].get<double>(), 0.0);
  EXPECT_GE(out["inside"]["measured"].size(), 2u);
  EXPECT_FALSE(out.contains("across"));
  EXPECT_EQ(run_program(plan("tiny.json", {"--cluster", cluster, "--json"})).json()["cluster"],
            out["cluster"]);
  EXPECT_EQ(run_program({"bench", "links"}).code, 2);  // alone there is no link
}

TEST(BenchStorage, ReadsWhatItWroteAndLeavesNothing) {
  const TempDir dir;
  const Result result = run_program({"bench", "storage", "--dir", dir.path().string(),
                                     "--megabytes", "2", "--files", "10", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_GT(result.json()["storage"]["mb_per_s"].get<double>(), 0.0);
  EXPECT_GT(result.json()["storage"]["files_per_s"].get<double>(), 0.0);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  EXPECT_EQ(run_program({"bench", "storage", "--dir", (dir.path() / "none").string()}).code, 1);
}

TEST(Tune, KeepsTheFastestOfTheCountsThatItTried) {
  const Result result =
      run_program({"tune", "microbatches", "--config", kSource + "/configs/tiny.json", "--set",
                   "data.root=" + kSource + "/tests/fixtures/flags", "--counts", "1", "4",
                   "--steps", "2", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json out = result.json();
  ASSERT_EQ(out["tried"].size(), 2u);
  double least = 1e9;
  int64_t fastest = 0;
  for (const Json& tried : out["tried"]) {
    if (tried["step_s"].get<double>() >= least) continue;
    least = tried["step_s"].get<double>();
    fastest = tried["microbatches"].get<int64_t>();
  }
  EXPECT_EQ(out["microbatches"], fastest);
  EXPECT_EQ(out["setting"], concat("parallel.microbatches=", fastest));
  EXPECT_EQ(run_program({"tune", "microbatches", "--config", kSource + "/configs/tiny.json",
                         "--counts", "99"})
                .code,
            2);
}

}  // namespace
}  // namespace contexture::cli
