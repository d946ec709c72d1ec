// Whole runs with the model on a device: what they train, retrieve, save and answer is what a run
// on the CPU does.
#include <fstream>

#include "device/devices.h"
#include "train/parity.h"
#include "train/tiny_world.h"
#include "train/trainer.h"

namespace contexture::train {
namespace {

// fp64 sums in another order.
constexpr double kTolerance = 1e-10;

RunConfig on(RunConfig config, const std::string& device) {
  config.run.device = device;
  return config;
}

struct Case {
  const char* name;
  void (*change)(RunConfig&);
};

const Case kCases[] = {
    {"memory", [](RunConfig& c) { c.model.dropout = 0.1; }},
    {"fid", [](RunConfig& c) { c.model.fusion = "fid"; }},
    {"prefix", [](RunConfig& c) { c.model.fusion = "prefix"; }},
    {"recompute",
     [](RunConfig& c) {
       c.parallel.recompute = {"all"};
       c.parallel.microbatches = 2;
       c.model.dropout = 0.1;
     }},
    {"encode_once",
     [](RunConfig& c) {
       c.parallel.encode_once = "replica";
       c.parallel.microbatches = 2;
     }},
    {"pairs",
     [](RunConfig& c) {
       c.data.pairs = "pairs.jsonl";
       c.data.pairs_per_step = 3;
       c.data.inverse_cloze_per_step = 1;
       c.parallel.microbatches = 2;
       c.retriever.overretrieve = 6;
       c.retriever.hard_negatives = 1;
     }},
    {"distilled",
     [](RunConfig& c) {
       c.retriever.objectives = {{"attentive", 0.5}, {"contrastive", 0.1}, {"emdr2", 1.0},
                                 {"pdist", 0.5},     {"loop", 0.5},        {"adist", 0.5}};
       c.retriever.documents = 3;
     }},
    {"marginal",
     [](RunConfig& c) {
       c.retriever.objectives = {
           {"rag_sequence", 0.5}, {"rag_token", 1.0}, {"realm", 0.5}, {"contrastive", 0.1}};
       c.model.towers = "separate";
     }},
    {"published",
     [](RunConfig& c) {
       c = with_tiny_bert(c);
       c.model.dropout = 0.1;
     }},
};

class Training : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(Training, TenStepsGiveWhatTheyGiveOnTheCpu) {
  const auto& [device, number] = GetParam();
  SKIP_WITHOUT(device);
  const TinyWorld world;
  RunConfig config = world.config();
  kCases[number].change(config);
  const Outcome want = outcome_of(on(config, "cpu"), {}, 10);
  const int64_t before = shadow::operations();
  const Difference d = compare(want, outcome_of(on(config, device), {}, 10));
  EXPECT_TRUE(device != "shadow" || shadow::operations() - before > 1000);
  EXPECT_LE(std::max({d.loss, d.gradient, d.step}), kTolerance) << d.worst_parameter;
}

INSTANTIATE_TEST_SUITE_P(Kinds, Training,
                         testing::Combine(testing::ValuesIn(kDevices),
                                          testing::Range(0, static_cast<int>(std::size(kCases)))),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  kCases[std::get<1>(info.param)].name;
                         });

class Run : public testing::TestWithParam<std::string> {
 protected:
  // Loss, contrastive loss and gradient norm of every step.
  static std::vector<std::array<double, 3>> steps(const RunConfig& config) {
    std::ifstream file(config.run.dir + "/metrics.jsonl");
    std::vector<std::array<double, 3>> out;
    for (std::string line; std::getline(file, line);) {
      const Json record = Json::parse(line);
      if (record.contains("loss"))
        out.push_back({record["loss"].get<double>(), record["contrastive"].get<double>(),
                       record["grad_norm"].get<double>()});
    }
    return out;
  }
  static void expect_same(const std::vector<std::array<double, 3>>& got,
                          const std::vector<std::array<double, 3>>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t s = 0; s < got.size(); ++s) {
      for (size_t i = 0; i < 3; ++i)
        EXPECT_NEAR(got[s][i], want[s][i], kTolerance * std::max(1.0, want[s][i]))
            << "step " << s + 1;
    }
  }
};

// Refreshes from a snapshot on a thread, evaluations, checkpoints written while training goes on.
RunConfig busy(const TinyWorld& world) {
  RunConfig config = world.config();
  config.train.steps = 9;
  config.retriever.refresh_every = 3;
  config.retriever.refresh_lag = 2;
  config.eval.every = 4;
  config.eval.examples = 4;
  config.checkpoint.every = 3;
  config.checkpoint.async = true;
  return config;
}

TEST_P(Run, TrainsEvaluatesSavesAndResumes) {
  SKIP_WITHOUT(GetParam());
  const TinyWorld world;
  const RunConfig cpu = on(busy(world), "cpu");
  Trainer(cpu, false).run();
  RunConfig there = on(cpu, GetParam());
  there.data.tokenizer = cpu.run.dir + "/tokenizer.model";
  there.run.dir = world.path() + "/there";
  for (const int64_t stop : {4, 9}) {
    there.train.stop_at = stop;
    Trainer(there, stop > 4).run();
  }
  expect_same(steps(there), steps(cpu));
}

TEST_P(Run, GoesOnWhereTheOtherDeviceStopped) {
  SKIP_WITHOUT(GetParam());
  const TinyWorld world;
  const RunConfig cpu = on(busy(world), "cpu");
  Trainer(cpu, false).run();
  for (const auto& [first, then] :
       {std::pair<std::string, std::string>{"cpu", GetParam()}, {GetParam(), "cpu"}}) {
    SCOPED_TRACE(first + " to " + then);
    RunConfig mixed = on(cpu, first);
    mixed.data.tokenizer = cpu.run.dir + "/tokenizer.model";
    mixed.run.dir = world.path() + "/from-" + first;
    mixed.train.stop_at = 5;
    Trainer(mixed, false).run();
    mixed.train.stop_at = 9;
    Trainer(on(mixed, then), true).run();
    expect_same(steps(mixed), steps(cpu));
  }
}

TEST_P(Run, AnswersWhatTheCpuAnswers) {
  SKIP_WITHOUT(GetParam());
  const TinyWorld world;
  RunConfig config = on(world.config(), "cpu");
  config.train.steps = 6;
  Trainer(config, false).run();
  const auto answers = [&](const std::string& device, const std::string& fusion_independent) {
    data::BadRecords bad(data::BadRecords::Policy::kFail);
    const auto session =
        open_run(settings_of(config.run.dir,
                             {"run.device=" + device, fusion_independent, "eval.max_new_tokens=6"}),
                 bad);
    const PictureSet dev(session->config(), "train.jsonl", {}, session->documents(), bad);
    const Evaluator evaluator(*session);
    return evaluator.answer(dev, Evaluator::choose(dev, 5), Reading::kRetrieved);
  };
  for (const char* setting : {"eval.decoder=joint", "eval.beams=3", "eval.decoder=rag_token",
                              "eval.decoder=rag_sequence"}) {
    SCOPED_TRACE(setting);
    const std::vector<Answered> want = answers("cpu", setting), got = answers(GetParam(), setting);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].documents, want[i].documents);
      EXPECT_EQ(got[i].generated.tokens, want[i].generated.tokens);
      EXPECT_NEAR(got[i].generated.log_prob, want[i].generated.log_prob, kTolerance);
      for (size_t k = 0; k < want[i].documents.size(); ++k) {
        EXPECT_NEAR(got[i].generated.document_prob[k], want[i].generated.document_prob[k],
                    kTolerance);
        EXPECT_NEAR(got[i].generated.document_share[k], want[i].generated.document_share[k],
                    kTolerance);
      }
    }
  }
}

TEST_P(Run, TrainsInBf16AndInFp16) {
  SKIP_WITHOUT(GetParam());
  const TinyWorld world;
  for (const char* precision : {"bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    RunConfig config = on(world.config(precision), GetParam());
    config.train.steps = 20;
    config.run.dir = world.path() + "/" + precision;
    Trainer(config, false).run();
    const auto run = steps(config);
    ASSERT_EQ(run.size(), 20u);
    EXPECT_LT(run.back()[0], run.front()[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Run, testing::ValuesIn(kDevices),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace contexture::train
