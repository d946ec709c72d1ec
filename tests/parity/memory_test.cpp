// What ZeRO keeps on each rank, in bytes as allocated, against the formulae of arXiv:1910.02054 for
// our dtypes: gradients and moments in fp32; fp32 weights are their own masters, bf16 weights have
// fp32 ones.
#include <gtest/gtest.h>

#include "layouts.h"
#include "model/ops.h"
#include "train/optimizer.h"

namespace contexture::train {
namespace {

class Product : public parallel::Block {
 public:
  Product(parallel::ParameterStore& store, int index, int64_t width)
      : Block(concat("product.", index),
              index == 0 ? std::vector<std::string>{} : std::vector{concat("h.", index)},
              {concat("h.", index + 1)}) {
    weight_ = &use(store, concat("weight.", index), {width, width}, parallel::Init::normal(0.01));
  }
  parallel::Tensors forward(const parallel::Tensors& inputs,
                            const parallel::Pass& pass) const override {
    return {model::ops::linear(inputs.empty() ? pass.feed("x") : inputs[0], weight_->value)};
  }
  std::vector<parallel::WireShape> shapes(const parallel::Pass& pass) const override {
    return {{pass.feed("x").sizes().vec(), weight_->value.scalar_type()}};
  }

 private:
  const parallel::Parameter* weight_;
};

TEST(Memory, EachZeroStageKeepsWhatTheFormulaSays) {
  constexpr int64_t kWidth = 1024, kLayers = 11;
  constexpr double kParameters = kLayers * kWidth * kWidth;  // 11.5 million
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const double weight = dtype == at::kFloat ? 4 : 2, master = dtype == at::kFloat ? 0 : 4;
    for (const int ranks : {2, 4}) {
      for (int zero = 0; zero <= 3; ++zero) {
        SCOPED_TRACE(concat(at::toString(dtype), ", ", ranks, " ranks, ZeRO ", zero));
        parallel::ParallelConfig config;
        config.dp = ranks;
        config.zero = zero;
        std::vector<double> bytes(ranks);
        on_threads(config, [&](const parallel::Groups& groups) {
          parallel::ParameterStore store;
          parallel::BlockList blocks;
          for (int i = 0; i < kLayers; ++i)
            blocks.push_back(std::make_unique<Product>(store, i, kWidth));
          store.materialise(dtype, at::kCPU, 1);
          parallel::Engine engine(config, groups, parallel::placement_for(config, blocks, groups),
                                  blocks, store);
          AdamW optimizer(OptimizerConfig(), engine);
          const parallel::Feeds feeds{{"x", at::ones({2, kWidth}, dtype)}};
          const parallel::Pass pass(feeds, true);
          engine.sharding().begin_step();
          engine.pipeline().forward_backward(
              {&pass, &pass}, [&](int, const parallel::ForwardPass&) {
                return parallel::WireValues{{concat("h.", kLayers), at::ones({2, kWidth}, dtype)}};
              });
          engine.sharding().finish();
          optimizer.clip();
          optimizer.step(1e-3);
          bytes[groups.rank()] =
              static_cast<double>(engine.sharding().value_bytes() +
                                  engine.sharding().gradient_bytes() + optimizer.state_bytes());
        });
        const double n = ranks;
        const double per_parameter = zero == 0   ? weight + 4 + master + 8
                                     : zero == 1 ? weight + 4 + (master + 8) / n
                                     : zero == 2 ? weight + (4 + master + 8) / n
                                                 : (weight + 4 + master + 8) / n;
        for (const double b : bytes)
          EXPECT_NEAR(b, per_parameter * kParameters, 0.02 * per_parameter * kParameters);
      }
    }
  }
}

}  // namespace
}  // namespace contexture::train
