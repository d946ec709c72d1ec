// The tiny model on a GPU against the same model on the CPU: loss, embeddings and every gradient.
#include <gtest/gtest.h>

#include "model/model.h"

namespace contexture::model {
namespace {

ModelConfig tiny_config(const std::string& fusion) {
  ModelConfig config;
  config.vocab = 40;
  config.width = 32;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_width = 16;
  config.ffn_width = 48;
  config.encoder_layers = 1;
  config.decoder_layers = 1;
  config.copy_width = 16;
  config.fusion = fusion;
  return config;
}

Sequence made_sequence(const ModelConfig& config, int first, int length, bool picture) {
  Sequence out;
  for (int i = 0; i < length; ++i) out.tokens.push_back(10 + (first * 7 + i * 3) % 30);
  if (picture) {
    std::vector<uint8_t> rgb(3 * config.image_size * config.image_size);
    for (size_t i = 0; i < rgb.size(); ++i)
      rgb[i] = static_cast<uint8_t>((i * 31 + first * 97) % 251);
    out.patches = make_patches(config, rgb.data());
  }
  return out;
}

Microbatch made_batch(const ModelConfig& config) {
  Microbatch batch;
  for (int d = 0; d < 3; ++d) batch.documents.push_back(made_sequence(config, d, 5 + d, d != 1));
  for (int i = 0; i < 2; ++i) {
    batch.inputs.push_back({made_sequence(config, 10 + i, 4, true),
                            made_sequence(config, 20 + i, 3, true),
                            {15 + i, 20, 3},
                            {i, 2}});
  }
  return batch;
}

struct Result {
  double loss = 0;
  at::Tensor query_embedding;
  std::map<std::string, at::Tensor> gradients;
};

Result forward_backward(const ModelConfig& config, at::Device device) {
  Model model(config);
  model.materialise(at::kFloat, device, /*seed=*/3);
  parallel::Executor executor(model.blocks());
  const parallel::Feeds feeds = make_feeds(config, made_batch(config), at::kFloat, device);
  parallel::ForwardPass forward =
      executor.forward(parallel::Pass(feeds, /*training=*/true), /*grad=*/true);
  Result out;
  out.loss = forward.wire("loss.reader").item<double>();
  out.query_embedding = forward.wire("query.embedding").detach().cpu();
  executor.backward(std::move(forward), {{"loss.reader", at::ones({}, at::kDouble).to(device)}});
  for (const auto& parameter : model.parameters().all()) {
    if (parameter->grad.defined()) out.gradients[parameter->name] = parameter->grad.cpu();
  }
  return out;
}

class Device : public testing::TestWithParam<std::string> {};

TEST_P(Device, AGpuComputesWhatTheCpuComputes) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here, or a build without CONTEXTURE_CUDA";
  const ModelConfig config = tiny_config(GetParam());
  const Result cpu = forward_backward(config, at::kCPU);
  const Result gpu = forward_backward(config, at::Device(at::kCUDA, 0));
  // fp32 sums of up to some hundred terms in another order; matrix products without TF32,
  // LibTorch's default.
  const double tolerance = 1e-5;
  EXPECT_NEAR(gpu.loss, cpu.loss, tolerance * cpu.loss);
  const auto error = [](const at::Tensor& a, const at::Tensor& b) {
    return ((a - b).norm() / b.norm()).item<double>();
  };
  EXPECT_LT(error(gpu.query_embedding, cpu.query_embedding), tolerance);
  ASSERT_EQ(gpu.gradients.size(), cpu.gradients.size());
  for (const auto& [name, gradient] : cpu.gradients) {
    if (gradient.norm().item<double>() == 0.0) continue;
    EXPECT_LT(error(gpu.gradients.at(name), gradient), tolerance) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(AllModes, Device, testing::Values("memory", "fid", "prefix"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace contexture::model
