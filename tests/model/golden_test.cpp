// The model, its losses and ten optimizer steps against the plain PyTorch model of
// tests/golden/reference_model.py. All comparisons are of whole tensors: |a - b| / |b|.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "core/config.h"
#include "core/error.h"
#include "core/json.h"
#include "model/model.h"
#include "parallel/checkpoint.h"
#include "parallel/decoding.h"
#include "retriever/contrastive.h"
#include "train/optimizer.h"

namespace contexture::model {
namespace {

using parallel::NamedTensors;

const std::string kFolder = CONTEXTURE_SOURCE_DIR "/tests/golden/";

double relative_error(const at::Tensor& value, const at::Tensor& golden) {
  EXPECT_EQ(value.numel(), golden.numel());
  const at::Tensor a = value.detach().to(at::kDouble).reshape(-1), b = golden.reshape(-1);
  return (a - b).norm().item<double>() / b.norm().item<double>();
}

// The tensors whose names begin with `prefix`, without it.
NamedTensors part(const NamedTensors& all, const std::string& prefix) {
  NamedTensors out;
  for (const auto& [name, tensor] : all) {
    if (name.rfind(prefix, 0) == 0) out[name.substr(prefix.size())] = tensor;
  }
  return out;
}

Sequence make_sequence(const ModelConfig& config, const Json& json) {
  Sequence out;
  out.tokens = json.at("tokens").get<std::vector<int32_t>>();
  if (!json.at("picture").is_null()) {
    out.patches = make_patches(config, json.at("picture").get<std::vector<uint8_t>>().data());
  }
  return out;
}

struct StepResult {
  double loss = 0, contrastive = 0, grad_norm = 0;
  at::Tensor target_log_prob, log_probs, query_embedding, doc_embedding;
};

class Golden : public testing::TestWithParam<std::tuple<std::string, at::ScalarType>> {
 protected:
  Golden()
      : json_(read_json_file(kFolder + "model_microbatch.json")),
        golden_(
            parallel::read_tensors(kFolder + "model_" + std::get<0>(GetParam()) + ".safetensors")) {
    apply_json(config_, json_.at("model").dump(), "model_microbatch.json");
    config_.fusion = std::get<0>(GetParam());
    for (const Json& d : json_.at("microbatch").at("documents"))
      batch_.documents.push_back(make_sequence(config_, d));
    for (const Json& i : json_.at("microbatch").at("inputs")) {
      batch_.inputs.push_back({make_sequence(config_, i.at("query")),
                               make_sequence(config_, i.at("prompt")),
                               i.at("target").get<std::vector<int32_t>>(),
                               i.at("documents").get<std::vector<int32_t>>()});
      positives_.push_back(i.at("positives").get<std::vector<int64_t>>());
      masked_.push_back(i.at("masked").get<std::vector<int64_t>>());
    }
    model_ = std::make_unique<Model>(config_);
    model_->materialise(std::get<1>(GetParam()), at::kCPU, /*seed=*/1);
    const parallel::ParallelConfig alone;
    engine_ = std::make_unique<parallel::Engine>(
        alone, parallel::Groups(), parallel::placement_for(alone, model_->blocks(), {}),
        model_->blocks(), model_->parameters());
    train::load_parameters(*engine_, part(golden_, "w."));
    executor_ = std::make_unique<parallel::Executor>(model_->blocks());
    const Json& training = json_.at("training");
    optimizer_config_.beta1 = training.at("beta1");
    optimizer_config_.beta2 = training.at("beta2");
    optimizer_config_.epsilon = training.at("epsilon");
    optimizer_config_.weight_decay = training.at("weight_decay");
    optimizer_config_.max_grad_norm = training.at("max_grad_norm");
  }

  // Forward, the contrastive loss at the embedding wires, backward. Leaves the gradients in the
  // parameters.
  StepResult forward_backward() {
    engine_->sharding().begin_step();
    const parallel::Feeds feeds = make_feeds(config_, batch_, model_->dtype(), at::kCPU);
    const parallel::Pass pass(feeds, /*training=*/true);
    parallel::ForwardPass forward = executor_->forward(pass, /*grad=*/true);
    StepResult out;
    out.loss = forward.wire("loss.reader").item<double>();
    out.target_log_prob = forward.wire("target.log_prob");
    out.query_embedding = forward.wire("query.embedding");
    out.doc_embedding = forward.wire("doc.embedding");
    {
      parallel::Decoding decoding;
      parallel::Pass next(feeds);
      next.decoding = &decoding;
      parallel::WireValues given;
      for (const std::string& name :
           {std::string("dec.states"), model_->memory_wire(), std::string("slot.log_prob")})
        given[name] = forward.wire(name);
      out.log_probs = executor_->forward(next, /*grad=*/false, {"target.log_prob"}, given)
                          .wire("target.log_prob")
                          .index_select(0, feeds.at("pointer.cell"));
    }
    const auto contrast = retriever::contrastive(out.query_embedding, out.doc_embedding, positives_,
                                                 masked_, config_.score_temperature,
                                                 json_.at("training").at("contrastive_weight"));
    out.contrastive = contrast.loss;
    executor_->backward(std::move(forward), {{"loss.reader", at::ones({}, at::kDouble)},
                                             {"query.embedding", contrast.query_grad_BE},
                                             {"doc.embedding", contrast.doc_grad_UE}});
    engine_->sharding().finish();
    return out;
  }

  // fp64: rounding of about 1e-16 through some dozen sums of up to 48 terms and ten steps; fp32:
  // the same from 6e-8.
  double tolerance() const { return std::get<1>(GetParam()) == at::kDouble ? 1e-10 : 1e-5; }
  double scalar(const std::string& name) const { return golden_.at(name).item<double>(); }

  Json json_;
  NamedTensors golden_;
  ModelConfig config_;
  Microbatch batch_;
  std::vector<std::vector<int64_t>> positives_, masked_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<parallel::Engine> engine_;
  std::unique_ptr<parallel::Executor> executor_;
  train::OptimizerConfig optimizer_config_;
};

TEST_P(Golden, TheParametersAreTheReferencesByName) {
  NamedTensors weights = part(golden_, "w.");
  for (const auto& parameter : model_->parameters().all()) {
    EXPECT_EQ(weights.erase(parameter->name), 1u)
        << parameter->name << " is unknown to the reference";
  }
  for (const auto& [name, tensor] : weights) ADD_FAILURE() << name << " is unknown to the model";
}

TEST_P(Golden, LossesAndProbabilitiesAgree) {
  const StepResult result = forward_backward();
  EXPECT_NEAR(result.loss, scalar("loss"), tolerance() * scalar("loss"));
  EXPECT_NEAR(result.contrastive, scalar("contrastive"), tolerance() * scalar("contrastive"));
  EXPECT_LT(relative_error(result.target_log_prob, golden_.at("target_log_prob")), tolerance());
  EXPECT_LT(relative_error(result.log_probs, golden_.at("log_probs")), tolerance());
  EXPECT_LT(relative_error(result.query_embedding, golden_.at("query_embedding")), tolerance());
  EXPECT_LT(relative_error(result.doc_embedding, golden_.at("doc_embedding")), tolerance());
}

TEST_P(Golden, EveryGradientAgrees) {
  forward_backward();
  double worst = 0;
  for (const auto& parameter : model_->parameters().all()) {
    ASSERT_TRUE(parameter->grad.defined()) << parameter->name << " got no gradient";
    const double error = relative_error(parameter->grad, golden_.at("g." + parameter->name));
    EXPECT_LT(error, tolerance()) << parameter->name;
    worst = std::max(worst, error);
  }
  RecordProperty("worst_relative_error", concat(worst));
}

TEST_P(Golden, TenOptimizerStepsAgree) {
  train::AdamW optimizer(optimizer_config_, *engine_);
  const Json& training = json_.at("training");
  StepResult result;
  for (int64_t step = 0; step < training.at("steps").get<int64_t>(); ++step) {
    result = forward_backward();
    const double norm = optimizer.clip();
    if (step == 0) {
      EXPECT_NEAR(norm, scalar("grad_norm"), tolerance() * norm);
    }
    optimizer.step(training.at("rate"));
  }
  EXPECT_NEAR(result.loss, scalar("last_loss"), tolerance() * scalar("last_loss"));
  for (const auto& parameter : model_->parameters().all()) {
    EXPECT_LT(relative_error(parameter->value, golden_.at("a." + parameter->name)), tolerance())
        << parameter->name;
  }
}

INSTANTIATE_TEST_SUITE_P(AllModes, Golden,
                         testing::Combine(testing::Values("memory", "fid", "prefix"),
                                          testing::Values(at::kDouble, at::kFloat)),
                         [](const auto& info) {
                           return std::get<0>(info.param) +
                                  (std::get<1>(info.param) == at::kDouble ? "_fp64" : "_fp32");
                         });

}  // namespace
}  // namespace contexture::model
