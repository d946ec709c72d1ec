// The tiny model on a device against the same model on the CPU: loss, embeddings and every
// gradient.
#include "device/devices.h"
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

Result forward_backward(const ModelConfig& config, at::ScalarType dtype, at::Device device) {
  Model model(config);
  model.materialise(dtype, device, /*seed=*/3);
  parallel::Executor executor(model.blocks());
  const parallel::Feeds feeds = make_feeds(config, made_batch(config), dtype, device);
  parallel::Pass pass(feeds, /*training=*/true, /*seed=*/5, /*step=*/7);
  pass.device = device;
  parallel::ForwardPass forward = executor.forward(pass, /*grad=*/true);
  Result out;
  out.loss = forward.wire("loss.reader").item<double>();
  out.query_embedding = forward.wire("query.embedding").detach().cpu();
  executor.backward(std::move(forward), {{"loss.reader", at::ones({}, at::kDouble).to(device)}});
  for (const auto& parameter : model.parameters().all()) {
    if (parameter->grad.defined()) out.gradients[parameter->name] = parameter->grad.cpu();
  }
  return out;
}

class Device : public testing::TestWithParam<std::tuple<std::string, std::string, at::ScalarType>> {
};

TEST_P(Device, ComputesWhatTheCpuComputes) {
  const auto& [name, fusion, dtype] = GetParam();
  SKIP_WITHOUT(name);
  ModelConfig config = tiny_config(fusion);
  config.dropout = 0.1;  // the same masks on both
  const Result cpu = forward_backward(config, dtype, at::kCPU);
  const Result there = forward_backward(config, dtype, device_named(name));
  // Sums of up to some hundred terms in another order; matrix products without TF32, LibTorch's
  // default.
  const double tolerance = dtype == at::kDouble ? 1e-10 : 1e-5;
  EXPECT_NEAR(there.loss, cpu.loss, tolerance * cpu.loss);
  EXPECT_LT(relative_difference(there.query_embedding, cpu.query_embedding), tolerance);
  ASSERT_EQ(there.gradients.size(), cpu.gradients.size());
  for (const auto& [parameter, gradient] : cpu.gradients) {
    if (gradient.norm().item<double>() == 0.0) continue;
    EXPECT_LT(relative_difference(there.gradients.at(parameter), gradient), tolerance) << parameter;
  }
}

INSTANTIATE_TEST_SUITE_P(AllModes, Device,
                         testing::Combine(testing::ValuesIn(kDevices),
                                          testing::Values("memory", "fid", "prefix"),
                                          testing::Values(at::kDouble, at::kFloat)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param) + "_" +
                                  at::toString(std::get<2>(info.param));
                         });

}  // namespace
}  // namespace contexture::model
