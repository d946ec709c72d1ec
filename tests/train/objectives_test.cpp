// Objectives in training: what the packed readings compute is what reading each document by itself
// computes, and the step's gradients are those of the stated sum.
#include "model/objectives.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "prepared.h"
#include "tiny_world.h"

namespace contexture::train {
namespace {

using Objectives = std::map<std::string, double>;

RunConfig config_with(const TinyWorld& world, const Objectives& objectives,
                      const std::string& fusion = "memory") {
  RunConfig config = world.config("fp64");
  config.model.fusion = fusion;
  config.retriever.objectives = objectives;
  config.retriever.documents = 3;
  return config;
}

at::Tensor target_log_prob(const model::Model& model, const model::Microbatch& batch) {
  const parallel::Feeds feeds = model::make_feeds(model.config(), batch, at::kDouble, at::kCPU);
  const parallel::Pass pass(feeds);
  return parallel::Executor(model.blocks())
      .forward(pass, /*grad=*/false, {"target.log_prob"})
      .wire("target.log_prob");
}

class Readings : public testing::TestWithParam<const char*> {};

TEST_P(Readings, EqualInputsThatReadOnlyThoseDocuments) {
  const TinyWorld world;
  RunConfig config = config_with(world, {{"reader", 1.0}}, GetParam());
  Prepared made(config, 2);
  model::Microbatch batch = made.assembled().batches[0];
  batch.inputs[0].documents.pop_back();  // inputs may differ in how many they have
  const model::Microbatch plain = batch;
  batch.readings = {.joint = true, .single = true, .none = true, .left_out = true};
  model::Microbatch apart = plain;
  for (const bool left_out : {false, true}) {
    for (const model::Input& input : plain.inputs) {
      for (size_t k = 0; k < input.documents.size(); ++k) {
        model::Input some = input;
        some.documents = {input.documents[k]};
        if (left_out) {
          some.documents = input.documents;
          some.documents.erase(some.documents.begin() + static_cast<int64_t>(k));
        }
        apart.inputs.push_back(some);
      }
      if (left_out) continue;
      apart.inputs.push_back(input);
      apart.inputs.back().documents.clear();
    }
  }
  const at::Tensor packed = target_log_prob(made.session.model(), batch),
                   each = target_log_prob(made.session.model(), apart);
  ASSERT_EQ(packed.numel(), each.numel());
  EXPECT_LT((packed - each).abs().max().item<double>(), 1e-10);  // fp64 sums in another order
  // No document is encoded twice for it, no query embedded again.
  const parallel::Feeds feeds = model::make_feeds(config.model, batch, at::kDouble, at::kCPU);
  const parallel::Feeds before = model::make_feeds(config.model, plain, at::kDouble, at::kCPU);
  for (const char* name : {"doc.token", "query.token"})
    EXPECT_TRUE(at::equal(feeds.at(name), before.at(name)));
  if (config.model.fusion == "fid") {
    EXPECT_TRUE(at::equal(feeds.at("reader.token"), before.at("reader.token")));
  }
  const auto rows_of = [](const parallel::Feeds& all) {
    int64_t rows = 0;
    for (const auto& [name, feed] : all)
      rows += name != "target.token" && name.ends_with(".token") ? feed.numel() : 0;
    return rows;
  };
  EXPECT_EQ(batch.rows(config.model), rows_of(feeds));
  EXPECT_EQ(plain.rows(config.model), rows_of(before));
}

INSTANTIATE_TEST_SUITE_P(Modes, Readings, testing::Values("memory", "fid", "prefix"));

// The objectives from whole passes over inputs that read one document each, and scores made by
// hand.
TEST(ObjectiveLoss, IsTheFormulaOnLikelihoodsOfSingleDocuments) {
  const TinyWorld world;
  const Objectives weights{{"rag_sequence", 0.5}, {"rag_token", 1.0}, {"emdr2", 2.0},
                           {"pdist", 0.25},       {"loop", 0.75},     {"reader", 1.0}};
  RunConfig config = config_with(world, weights);
  Prepared made(config, 2);
  const StepStats stats = made.forward_backward();
  const model::Model& model = made.session.model();
  const model::Microbatch whole = made.assembled().batches[0];
  std::map<std::string, double> expected;
  int64_t tokens = whole.target_tokens();
  const auto queries = [&] {
    std::vector<const model::Sequence*> out;
    for (const model::Input& input : whole.inputs) out.push_back(&input.query);
    return model.embed("query", out);
  }();
  std::vector<const model::Sequence*> documents;
  for (const model::Sequence& d : whole.documents) documents.push_back(&d);
  const at::Tensor embedded = model.embed("doc", documents);
  for (size_t i = 0; i < whole.inputs.size(); ++i) {
    const model::Input& input = whole.inputs[i];
    std::vector<at::Tensor> scores, single, without;
    for (size_t k = 0; k < input.documents.size(); ++k) {
      scores.push_back((queries[static_cast<int64_t>(i)] * embedded[input.documents[k]]).sum() /
                       config.model.score_temperature);
      model::Microbatch one = whole;
      one.readings = {};
      one.inputs = {input};
      one.inputs[0].documents = {input.documents[k]};
      single.push_back(target_log_prob(model, one));
      one.inputs[0].documents = input.documents;
      one.inputs[0].documents.erase(one.inputs[0].documents.begin() + static_cast<int64_t>(k));
      without.push_back(target_log_prob(model, one));
    }
    namespace o = model::objectives;
    const at::Tensor prior = o::log_prior(at::stack(scores).unsqueeze(0)),
                     lik = at::stack(single).unsqueeze(0);
    const at::Tensor left = at::stack(without).unsqueeze(0),
                     n = at::full({1}, static_cast<double>(lik.size(2)), at::kDouble);
    const auto add = [&](const char* name, const at::Tensor& value, double divisor) {
      expected[name] += value.item<double>() / divisor;
    };
    const auto inputs = static_cast<double>(whole.inputs.size()), all = static_cast<double>(tokens);
    add("rag_sequence", o::rag_sequence(prior, lik), all);
    add("rag_token", o::rag_token(prior, lik), all);
    add("emdr2", o::emdr2(prior, lik, false), all);
    add("pdist", o::kl_to_prior(o::pdist_target(prior, lik, n, {}), prior, false), inputs);
    add("loop", o::kl_to_prior(o::loop_target(prior, left, n, {}), prior, false), inputs);
  }
  ASSERT_EQ(stats.objectives.size(), expected.size());
  for (const auto& [name, value] : expected)
    EXPECT_NEAR(stats.objectives.at(name), value, 1e-10 * std::abs(value)) << name;
}

TEST(ObjectiveLoss, AttentionDistillationAimsAtWhereTheReaderLooks) {
  const TinyWorld world;
  RunConfig config = config_with(world, {{"adist", 1.0}, {"attentive", 1.0}});
  config.retriever.target_temperature = 0.05;
  Prepared made(config, 2);
  const model::Microbatch batch = made.assembled().batches[0];
  const parallel::Feeds feeds = model::make_feeds(config.model, batch, at::kDouble, at::kCPU);
  const parallel::Pass pass(feeds);
  const auto run = parallel::Executor(made.session.model().blocks()).forward(pass, /*grad=*/false);
  const auto B = static_cast<int64_t>(batch.inputs.size());
  const at::Tensor mass = (run.wire("dec.mass.0") + run.wire("dec.mass.1")).view({B, 3}) / 2;
  namespace o = model::objectives;
  const at::Tensor prior = run.wire("candidate.log_prob").view({B, 3});
  const double expected =
      o::kl_to_prior((mass / 0.05).softmax(1), prior, false).mean().item<double>();
  EXPECT_NEAR(run.wire("objective.values").item<double>(), expected, 1e-12);
  // Attention adds up to what values weigh: the mass of a document whose values are all zero is
  // none, and every mass is positive here.
  EXPECT_GT(mass.min().item<double>(), 0.0);
}

class Each : public testing::TestWithParam<Objectives> {};

// What trains reader and retriever alike is its own finite difference; targets are detached, so
// distillation is not.
TEST(ObjectiveLoss, GradientsOfTheMarginalsEqualFiniteDifferences) {
  for (const Objectives& objectives :
       {Objectives{{"rag_sequence", 1.0}}, Objectives{{"rag_token", 1.0}},
        Objectives{{"realm", 1.0}}}) {
    SCOPED_TRACE(objectives.begin()->first);
    const TinyWorld world;
    RunConfig config = config_with(world, objectives);
    config.data.group_size = 1;
    config.train.batch_size = 3;
    Prepared made(config, 1);
    Session& session = made.session;
    const auto total = [&] { return made.forward_backward().loss; };
    total();
    std::map<std::string, at::Tensor> grads;
    for (const auto& p : session.model().parameters().all()) {
      if (p->grad.defined()) grads[p->name] = p->grad.clone();
    }
    ASSERT_GT(grads.size(), 20u);
    EXPECT_GT(grads.at("encoder.pool.patch").norm().item<double>(), 1e-6);  // the retriever learns
    EXPECT_EQ(grads.count("score.null"), objectives.count("realm"));
    expect_differences(session, grads, total);
  }
}

std::map<std::string, at::Tensor> gradients(const RunConfig& config) {
  Prepared made(config, 3);
  made.forward_backward();
  std::map<std::string, at::Tensor> out;
  for (const auto& p : made.session.model().parameters().all()) {
    if (p->grad.defined()) out[p->name] = p->grad.clone();
  }
  return out;
}

TEST_P(Each, DistillationReachesTheRetrieverAlone) {
  const TinyWorld world;
  const auto with = gradients(config_with(world, GetParam()));
  const auto reader = gradients(config_with(world, {{"reader", 1.0}}));
  // The decoder learns from the reader's loss as it did, bit for bit but for the order of sums.
  for (const auto& [name, grad] : reader) {
    if (name.rfind("decoder.", 0) != 0 && name.rfind("copy.", 0) != 0) continue;
    EXPECT_LE((with.at(name) - grad).norm().item<double>(),
              1e-10 * grad.norm().item<double>() + 1e-15)
        << name;
  }
  EXPECT_GT((with.at("encoder.layer.0.mlp.in") - reader.at("encoder.layer.0.mlp.in"))
                .norm()
                .item<double>(),
            1e-8);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Each,
                         testing::Values(Objectives{{"emdr2", 1.0}}, Objectives{{"pdist", 1.0}},
                                         Objectives{{"loop", 1.0}}, Objectives{{"adist", 1.0}}),
                         [](const auto& info) { return info.param.begin()->first; });

TEST(ObjectiveSettings, ContradictionsAreRefused) {
  const TinyWorld world;
  const auto refuses = [&](const Objectives& objectives, const std::string& says,
                           const std::string& fusion = "memory", bool frozen = false,
                           int64_t documents = 2) {
    RunConfig config = config_with(world, objectives, fusion);
    config.retriever.frozen = frozen;
    config.retriever.documents = documents;
    try {
      config.validate();
      FAIL() << "taken: " << says;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  refuses({{"rag_token", 1.0}}, "fusion=fid", "fid");
  refuses({{"emrd2", 1.0}}, "Did you mean 'emdr2'?");
  refuses({{"pdist", -1.0}}, "negative");
  refuses({{"pdist", 1.0}}, "frozen", "memory", true);
  refuses({{"rag_token", 1.0}, {"attentive", 1.0}}, "reader=1");
  refuses({{"loop", 1.0}}, "documents=0", "memory", false, 0);
  refuses({{"adist", 1.0}}, "cross-attention", "prefix");
  refuses({{"reader", 0.0}, {"pdist", 1.0}}, "neither");
}

}  // namespace
}  // namespace contexture::train
