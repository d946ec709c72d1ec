// A run that was stopped and resumed gives the same numbers as one that was not, digit for digit.
#include "train/trainer.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/signals.h"
#include "parallel/trace.h"
#include "tiny_world.h"

namespace contexture::train {
namespace {

std::vector<Json> records(const RunConfig& config) {
  std::ifstream file(config.run.dir + "/metrics.jsonl");
  std::vector<Json> out;
  for (std::string line; std::getline(file, line);) out.push_back(Json::parse(line));
  return out;
}

// What must be the same of every training record, as text, in order.
std::vector<std::string> losses(const RunConfig& config) {
  std::vector<std::string> out;
  for (const Json& record : records(config)) {
    if (record.contains("loss"))
      out.push_back(record["loss"].dump() + " " + record["contrastive"].dump() + " " +
                    record["grad_norm"].dump() + " " + record["samples_seen"].dump());
  }
  return out;
}

struct Case {
  const char* name;
  const char* precision;
  int64_t refresh_every, refresh_lag, microbatches;
  double dropout;
  int64_t partial_every = 0;
  const char* factory = "Flat";
  bool distils = false;
};

class Resume : public testing::TestWithParam<Case> {};

TEST_P(Resume, ContinuesWithBitIdenticalLosses) {
  const TinyWorld world;
  RunConfig config = world.config(GetParam().precision);
  config.train.steps = 11;
  config.retriever.refresh_every = GetParam().refresh_every;
  config.retriever.refresh_lag = GetParam().refresh_lag;
  config.parallel.microbatches = GetParam().microbatches;
  config.model.dropout = GetParam().dropout;
  config.retriever.partial_every = GetParam().partial_every;
  config.retriever.partial_documents = GetParam().partial_every > 0 ? 3 : 0;
  config.retriever.factory = GetParam().factory;
  if (GetParam().distils)
    config.retriever.objectives = {{"emdr2", 1.0}, {"pdist", 1.0}, {"contrastive", 0.1}};
  config.eval.every = 4;
  config.eval.examples = 4;
  config.checkpoint.every = 3;
  config.checkpoint.keep_last = 1;
  config.checkpoint.async = GetParam().refresh_every > 0;
  config.train.loss_scale.growth_steps = 2;  // fp16 only
  Trainer(config, false).run();
  const std::vector<std::string> whole = losses(config);
  ASSERT_EQ(whole.size(), 11u);

  RunConfig parts = config;
  parts.run.dir = world.path() + "/parts";
  parts.data.tokenizer = config.run.dir + "/tokenizer.model";
  for (const int64_t stop :
       {4, 8, 11}) {  // 4 lies between the start of a background refresh (3) and its swap (5)
    parts.train.stop_at = stop;
    Trainer(parts, stop > 4).run();
  }
  EXPECT_EQ(losses(parts), whole);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Resume,
                         testing::Values(Case{"fp64", "fp64", 0, 0, 1, 0.0},
                                         Case{"refresh", "fp32", 3, 0, 1, 0.0},
                                         Case{"background", "fp32", 3, 2, 1, 0.1},
                                         Case{"bf16", "bf16", 4, 4, 2, 0.0},
                                         Case{"partial", "fp32", 5, 0, 1, 0.0, 2},
                                         Case{"partial_compressed", "fp32", 5, 0, 1, 0.0, 2, "SQ8"},
                                         Case{"distilled", "fp32", 3, 0, 2, 0.0, 0, "Flat", true},
                                         Case{"fp16", "fp16", 3, 0, 2, 0.1}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Trainer, ASignalSavesAndTheRunContinues) {
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  config.train.steps = 6;
  Trainer first(config, false);
  request_stop(15);
  const TrainResult result = first.run();
  clear_stop();
  EXPECT_TRUE(result.stopped_by_signal);
  EXPECT_EQ(parallel::list_checkpoints(config.run.dir + "/checkpoints"), std::vector<int64_t>{0});
}

TEST(Trainer, RefusesARateThatBlowsUpBeforeTheWeightsAreTouched) {
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  config.optimizer.rate = 1e30;
  config.optimizer.max_grad_norm = 0;
  Trainer trainer(config, false);
  try {
    trainer.run();
    FAIL() << "a rate of 1e30 trained to the end";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("optimizer.rate"), std::string::npos) << error.what();
  }
}

TEST(Trainer, LeavesATraceOfTheModelThatItTrains) {
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  config.train.steps = 1;
  Trainer trainer(config, false);
  trainer.run();
  const parallel::Trace trace = parallel::read_trace(config.run.dir + "/trace.json");
  EXPECT_EQ(trace.blocks.size(), trainer.session().model().blocks().size());
  EXPECT_EQ(trace.inputs, static_cast<double>(config.train.batch_size));
}

TEST(Trainer, KeepsTheNewestCheckpointsAndTheBest) {
  for (const bool keep_best : {true, false}) {
    const TinyWorld world;
    RunConfig config = world.config("fp32");
    // One question, soon known by heart: the best step is neither the first nor among the last.
    write_file_atomic(world.path() + "/one.jsonl", Json{{"id", "one"},
                                                        {"question", "What is the code?"},
                                                        {"answers", {"7"}},
                                                        {"image", "p0.png"},
                                                        {"documents", {"place:0"}}}
                                                       .dump());
    config.data.train = {{"one.jsonl", 0.0, {}}};
    config.data.dev = "one.jsonl";
    config.data.counterfactual.probability = 0.0;
    config.optimizer.rate = 1e-2;
    config.train.steps = 30;
    config.eval.every = 1;
    config.checkpoint.every = 1;
    config.checkpoint.keep_last = 2;
    config.checkpoint.keep_best = keep_best;
    Trainer(config, false).run();
    double best = -1.0;
    int64_t best_step = 0, evaluations = 0;
    for (const Json& record : records(config)) {
      if (!record.contains("eval")) continue;
      ++evaluations;
      const auto score = record["eval"]["em"]["retrieved"].get<double>();
      if (score <= best) continue;
      best = score;
      best_step = record["step"].get<int64_t>();
    }
    ASSERT_EQ(evaluations, 30);
    ASSERT_EQ(best, 100.0);
    ASSERT_GT(best_step, 1);
    ASSERT_LT(best_step, 29) << "the newest two are kept anyway";
    EXPECT_EQ(
        parallel::list_checkpoints(config.run.dir + "/checkpoints"),
        keep_best ? (std::vector<int64_t>{best_step, 29, 30}) : (std::vector<int64_t>{29, 30}));
  }
}

TEST(Trainer, SaysWhatItReadAndWhatItLeftOut) {
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  config.data.bad_records = "skip";
  std::ofstream(world.path() + "/train.jsonl", std::ios::app)
      << "{\"id\": \"torn\n{\"id\": \"x\", \"question\": 7, \"answers\": [\"a\"]}\n";
  const Trainer trainer(config, false);
  const Json health = read_json_file(config.run.dir + "/data_health.json");
  EXPECT_EQ(health["counts"]["documents"], 12);
  EXPECT_EQ(health["counts"]["training examples"], 16);
  EXPECT_EQ(health["counts"]["dev examples"], 16);
  ASSERT_EQ(health["skipped"].size(), 2u) << health;
  for (const Json& kind : health["skipped"]) {
    EXPECT_EQ(kind["count"], 2) << "train.jsonl is the dev set too";
    EXPECT_NE(kind["example"].get<std::string>().find("train.jsonl:1"), std::string::npos) << kind;
  }
  for (const auto& [name, histogram] : health["histograms"].items()) {
    int64_t documents = 0;
    for (const Json& count : histogram["counts"]) documents += count.get<int64_t>();
    EXPECT_EQ(documents, 12);
    EXPECT_EQ(histogram["edges"].size(), histogram["counts"].size() + 1);
  }
}

TEST(AdamW, FrozenGroupsDoNotMoveAndRatesScale) {
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  config.optimizer.groups = {{"embed.", 1.0, 1.0, true}, {"decoder.", 0.0, 0.0, false}};
  config.train.steps = 2;
  Trainer trainer(config, false);
  const auto value = [&](const std::string& name) {
    return trainer.session().model().parameters().at(name).value.detach().clone();
  };
  const at::Tensor embedding = value("embed.token"), decoder = value("decoder.layer.0.mlp.in"),
                   encoder = value("encoder.layer.0.mlp.in");
  trainer.run();
  EXPECT_TRUE(at::equal(value("embed.token"), embedding));
  EXPECT_TRUE(at::equal(value("decoder.layer.0.mlp.in"), decoder));
  EXPECT_FALSE(at::equal(value("encoder.layer.0.mlp.in"), encoder));
}

TEST(AdamW, AGroupThatMatchesNothingIsRefused) {
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  config.optimizer.groups = {{"no.such.name", 1.0, 1.0, true}};
  EXPECT_THROW(Trainer(config, false), UsageError);
}

}  // namespace
}  // namespace contexture::train
