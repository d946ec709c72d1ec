// The most memory that training takes on a device, against what the planner says it will.
#ifdef CONTEXTURE_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include "core/format.h"
#include "device/devices.h"
#include "model/model.h"
#include "train/model_trace.h"
#include "train/optimizer.h"
#include "train/planning.h"
#include "train/tiny_world.h"

namespace contexture::train {
namespace {

int64_t bytes(at::Device device, bool peak) {
  if (!device.is_cuda()) return peak ? shadow::peak_bytes() : shadow::bytes();
#ifdef CONTEXTURE_CUDA
  namespace cache = c10::cuda::CUDACachingAllocator;
  const auto stat =
      cache::getDeviceStats(device.index())
          .allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  return peak ? stat.peak : stat.current;
#else
  return 0;
#endif
}

void reset_peak([[maybe_unused]] at::Device device) {
  shadow::reset_peak();
#ifdef CONTEXTURE_CUDA
  if (device.is_cuda()) c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
#endif
}

class Memory : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(Memory, OfATrainingStepIsWhatThePlannerSays) {
  const auto& [name, fusion] = GetParam();
  SKIP_WITHOUT(name);
  const at::Device device = device_named(name);
  const TinyWorld world;
  RunConfig config = world.config("fp32");
  config.model.fusion = fusion;
  config.model.width =
      128;  // so that states and activations are far above the allocator's unit of 512 bytes
  config.model.heads = 4;
  config.model.head_width = 32;
  config.model.ffn_width = 344;
  config.model.encoder_layers = config.model.decoder_layers = 3;
  config.train.batch_size = 8;
  config.data.group_size = 1;
  config.data.max_document_tokens = 64;
  config.parallel.dp = 1;
  const parallel::LayoutPlan plan =
      parallel::Planner(planned_model(config, {}), parallel::default_cluster(1, 1)).price({});
  const parallel::MemoryParts& parts = plan.memory.front();

  const int64_t before = bytes(device, false);
  model::Model model(config.model);
  model.materialise(at::kFloat, device, 1);
  parallel::Engine engine(config.parallel, {},
                          parallel::placement_for(config.parallel, model.blocks(), {}),
                          model.blocks(), model.parameters());
  AdamW optimizer(config.optimizer, engine);
  const model::Microbatch batch = typical_microbatch(config);
  for (int step = 0; step < 2; ++step) {
    reset_peak(device);
    engine.sharding().begin_step();
    const parallel::Feeds feeds = model::make_feeds(config.model, batch, at::kFloat, device);
    parallel::Pass pass(feeds, /*training=*/true);
    pass.device = device;
    engine.pipeline().forward_backward({&pass}, [&](int, const parallel::ForwardPass&) {
      return parallel::WireValues{
          {"loss.reader", at::ones({}, at::TensorOptions().dtype(at::kDouble).device(device))}};
    });
    engine.sharding().finish();
    optimizer.clip();
    optimizer.step(1e-3);
  }
  const auto states = static_cast<double>(bytes(device, false) - before),
             most = static_cast<double>(bytes(device, true) - before);
  const double predicted = parts.states() + parts.activations + parts.working + parts.inputs;
  std::cout << format("peak {:.2f} MB, predicted {:.2f} MB ({:.2f}); states {:.2f} and {:.2f} MB\n",
                      most / 1e6, predicted / 1e6, most / predicted, states / 1e6,
                      parts.states() / 1e6);
  // Weights, gradients, moments: exact but for units of 512 bytes.
  EXPECT_NEAR(states, parts.states(), 0.03 * parts.states());
  // The planner counts what matrices keep, with fused attention. Without, as on the shadow device,
  // attention's weights come on top: most where decoder rows read documents among themselves
  // (prefix).
  EXPECT_GT(most, 0.7 * predicted);
  EXPECT_LT(most, 1.6 * predicted);
}

INSTANTIATE_TEST_SUITE_P(AllModes, Memory,
                         testing::Combine(testing::ValuesIn(kDevices),
                                          testing::Values("memory", "fid", "prefix")),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param);
                         });

}  // namespace
}  // namespace contexture::train
