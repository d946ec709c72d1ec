// contexture eval retrieval|qa|vqa|caption on a run's checkpoint: the figures are those of its own
// answers and results once they are files, and of `contexture eval RUN`.
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "program.h"

namespace contexture::cli {
namespace {
namespace fs = std::filesystem;

const std::string kFlags = std::string(CONTEXTURE_SOURCE_DIR) + "/tests/fixtures/flags/";
constexpr double kRounding = 1e-9;  // sums of a few quotients

std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> out;
  std::istringstream in(read_file(path));
  for (std::string line; std::getline(in, line);) out.push_back(parse_json(line, path));
  return out;
}

class EvalRun : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TempDir;
    trained_ = new Result(run_program(
        tiny_training(run(), {"--set", "train.precision=fp64", "--set", "model.kv_heads=2", "--set",
                              "data.query=text", "--json"})));  // questions alone find little
    fs::create_symlink(kFlags + "images", dir_->path() / "images");
  }
  static void TearDownTestSuite() {
    delete trained_;
    delete dir_;
  }
  void SetUp() override { ASSERT_EQ(trained_->code, 0) << trained_->err; }

  static std::string at(const std::string& name) { return dir_->path() / name; }
  static std::string run() { return at("run"); }

  static Result eval(const std::string& what, const Arguments& more, int ranks = 1) {
    Arguments all{"eval", what};
    if (ranks > 1) all = {"launch", "--nproc", std::to_string(ranks), "--", "eval", what};
    all.insert(all.end(), more.begin(), more.end());
    all.push_back("--json");
    return run_program(all);
  }
  static Json figures(const std::string& what, const Arguments& more, int ranks = 1) {
    const Result result = eval(what, more, ranks);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.code == 0 ? result.json() : Json();
  }
  static void expect_refused(const std::string& what, const Arguments& more, int code,
                             const std::string& words) {
    const Result result = eval(what, more);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
  }

  // The test examples, each changed by what the run answers it, as a file.
  static std::string changed(
      const std::string& name,
      const std::function<void(Json& example, const std::string& said)>& change) {
    figures("qa", {run(), "--output", at("said.jsonl")});
    std::map<std::string, std::string> said;
    for (const Json& line : lines_of(at("said.jsonl")))
      said[line["id"].get<std::string>()] = line["prediction"].get<std::string>();
    std::string out;
    for (Json example : lines_of(kFlags + "test.jsonl")) {
      change(example, said.at(example["id"].get<std::string>()));
      out += example.dump() + "\n";
    }
    write_file_atomic(at(name), out);
    return at(name);
  }

  static TempDir* dir_;
  static Result* trained_;
};
TempDir* EvalRun::dir_ = nullptr;
Result* EvalRun::trained_ = nullptr;

TEST_F(EvalRun, RetrievalIsThatOfTheTableAndOfItsFiles) {
  const std::string results = at("results"), each = at("each.jsonl");
  const Json own =
      figures("retrieval", {run(), "-k", "1,5,20", "--output", results, "--per-query", each});
  const Json table = run_program({"eval", run()}).json();
  EXPECT_EQ(own["n"], table["n"]);
  EXPECT_NEAR(100 * own["measures"]["success@1"]["mean"].get<double>(),
              table["recall_at"]["1"].get<double>(), kRounding);
  EXPECT_NEAR(100 * own["measures"]["success@5"]["mean"].get<double>(),
              table["recall_at"]["5"].get<double>(), kRounding);
  EXPECT_NEAR(100 * own["measures"]["mrr@20"]["mean"].get<double>(), table["mrr"].get<double>(),
              kRounding);
  EXPECT_EQ(own["measures"]["recall@20"]["mean"], 1.0) << "there are 12 documents";
  const double mrr = own["measures"]["mrr"]["mean"].get<double>();
  EXPECT_GT(mrr, 0.0);
  EXPECT_LT(mrr, 1.0) << "a run that finds everything would show little";
  EXPECT_EQ(lines_of(each).size(), 12u);
  const Json files = figures(
      "retrieval", {"--qrels", results + ".qrels", "--run", results + ".run", "-k", "1,5,20"});
  EXPECT_EQ(files["measures"], own["measures"]);
  const Json same =
      figures("retrieval", {run(), "-k", "1,5,20", "--compare", results + ".run"})["compared"];
  EXPECT_EQ(same["measures"]["mrr"]["same"], 12);
  EXPECT_NE(figures("retrieval", {run(), "-k", "1,5,20", "--step", "10"})["measures"],
            own["measures"])
      << "another checkpoint";
  for (const int ranks : {2, 3})
    EXPECT_EQ(figures("retrieval", {run(), "-k", "1,5,20"}, ranks), own) << ranks;
}

TEST_F(EvalRun, AnswersAreScoredAsTheirFileIs) {
  const std::string said = at("answers.jsonl");
  const Json own = figures("qa", {run(), "--output", said}), measures = own["measures"];
  const Json table = run_program({"eval", run()}).json();
  EXPECT_NEAR(measures["em"]["mean"].get<double>(), table["em"]["retrieved"].get<double>(),
              kRounding);
  EXPECT_NEAR(measures["f1"]["mean"].get<double>(), table["f1"]["retrieved"].get<double>(),
              kRounding);
  EXPECT_NEAR(measures["gold@1"]["mean"].get<double>(), table["recall_at"]["1"].get<double>(),
              kRounding);
  EXPECT_TRUE(measures.contains("has_answer@1"));
  EXPECT_FALSE(measures.contains("has_answer@5")) << "an answer reads two documents";
  const Json files =
      figures("qa", {"--predictions", said, "--references", kFlags + "test.jsonl", "-k", "1"});
  EXPECT_EQ(files["measures"], measures);
  EXPECT_EQ(figures("qa", {run()}, 2), own);
  // The model's own words as the right ones: everything is right.
  const std::string right = changed("right.jsonl", [](Json& example, const std::string& answer) {
    ASSERT_FALSE(answer.empty());
    example["answers"] = {answer};
  });
  EXPECT_NEAR(figures("qa", {run(), "--data", right})["measures"]["acc"]["mean"].get<double>(), 100,
              kRounding);
  EXPECT_EQ(figures("qa", {run(), "--data", right, "--examples", "5"})["n"], 5);
}

TEST_F(EvalRun, AnswersAboutPicturesAreHeldAgainstSeveralAnnotators) {
  int n = 0;
  const std::string data = changed("vqa.jsonl", [&n](Json& example, const std::string& said) {
    // Leaving out one of two, one match of three is left, else two. The last has no annotators.
    if (++n < 12) example["annotator_answers"] = {said, said, "qqq", "qqq"};
  });
  const std::string said = at("vqa-said.jsonl");
  const Json own = figures("vqa", {run(), "--data", data, "--output", said});
  EXPECT_EQ(own["n"], 11);
  EXPECT_EQ(own["examples_not_asked"], 1);
  EXPECT_NEAR(own["measures"]["accuracy"]["mean"].get<double>(), 50.0, kRounding);
  Json annotations = Json::array();
  for (const Json& example : lines_of(data)) {
    if (!example.contains("annotator_answers")) continue;
    annotations.push_back({{"question_id", example["id"]},
                           {"answer_type", example["type"]},
                           {"answers", Json::array()}});
    for (const Json& answer : example["annotator_answers"])
      annotations.back()["answers"].push_back({{"answer", answer}});
  }
  write_file_atomic(at("annotations.json"), Json{{"annotations", annotations}}.dump());
  const Json files =
      figures("vqa", {"--predictions", said, "--references", at("annotations.json")});
  EXPECT_EQ(files["measures"], own["measures"]);
  EXPECT_EQ(files["totals"], own["totals"]);
  EXPECT_EQ(figures("vqa", {run(), "--data", data}, 2), own);
  expect_refused("vqa", {run()}, 3, "'annotator_answers'");

  const std::string seek = changed("infoseek.jsonl", [](Json& example, const std::string& answer) {
    example["answer_eval"] = {answer};
    example["data_split"] = "val_unseen_question";
  });
  EXPECT_NEAR(figures("vqa", {run(), "--from", "infoseek", "--data", seek})["totals"]["score"]
                  .get<double>(),
              100.0, kRounding);
  const std::string pages = changed("evqa.jsonl", [](Json& example, const std::string& answer) {
    example["answer"] = "qqq|" + answer;
    example["type"] = "templated";
  });
  EXPECT_NEAR(figures("vqa", {run(), "--from", "evqa", "--data", pages})["measures"]["em"]["mean"]
                  .get<double>(),
              100.0, kRounding);
  expect_refused("vqa", {run(), "--from", "evqa"}, 3, "answer");
}

TEST_F(EvalRun, CaptionsAreScoredAsTheirFileIs) {
  const std::string data = changed("captions.jsonl", [](Json& example, const std::string& answer) {
    example["answers"] = {"a drawing of a flag", answer};
  });
  const std::string said = at("captions-said.jsonl");
  const Json own = figures("caption", {run(), "--data", data, "--output", said});
  EXPECT_NEAR(own["measures"]["rougel"]["mean"].get<double>(), 1.0, kRounding);
  EXPECT_TRUE(own["totals"].contains("bleu-4"));
  const Json files =
      figures("caption", {"--from", "contexture", "--predictions", said, "--references", data});
  EXPECT_EQ(files["measures"], own["measures"]);
  EXPECT_EQ(files["totals"], own["totals"]);
  EXPECT_EQ(figures("caption", {run(), "--data", data}, 2), own);
}

TEST_F(EvalRun, WhatAScorerLacksIsSaid) {
  const std::string bare = changed("bare.jsonl", [](Json& example, const std::string&) {
    example.erase("documents");
    example.erase("answers");
  });
  expect_refused("retrieval", {run(), "--data", bare}, 3, "names a gold document");
  expect_refused("qa", {run(), "--data", bare}, 3, "has no answer to score against");
  expect_refused("caption", {run(), "--data", bare}, 3, "has no caption");
  expect_refused("qa", {at("nowhere")}, 3, "is no run");
  expect_refused("qa", {}, 2, "needs a run folder");
  expect_refused("retrieval", {}, 2, "needs a run folder");
  expect_refused("qa", {run(), "--from", "dpr"}, 2, "--from");
  expect_refused("retrieval", {run(), "--qrels", at("q")}, 2, "--qrels");
  expect_refused("qa", {"--predictions", at("p"), "--references", at("r"), "--output", at("o")}, 2,
                 "--output");
  const Result spread = eval("retrieval", {run(), "--data", bare}, 2);
  EXPECT_EQ(spread.code, 3) << spread.err;
  EXPECT_NE(spread.err.find("names a gold document"), std::string::npos) << spread.err;
}

}  // namespace
}  // namespace contexture::cli
