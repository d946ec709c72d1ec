// What ZeRO keeps on each rank, in bytes as allocated, against the formulae of arXiv:1910.02054 for
// our dtypes: gradients and moments in fp32; fp32 weights are their own masters, bf16 weights have
// fp32 ones. Pipeline stages and tensor-parallel ranks divide all of it.
#include <gtest/gtest.h>

#include "layouts.h"
#include "model/ops.h"
#include "model/tensor_parallel.h"
#include "train/optimizer.h"

namespace contexture::train {
namespace {

// Two products, split over tensor-parallel ranks by rows, then by columns.
class Products : public parallel::Block {
 public:
  Products(parallel::ParameterStore& store, int index, int64_t width)
      : Block(concat("products.", index),
              index == 0 ? std::vector<std::string>{} : std::vector{concat("h.", index)},
              {concat("h.", index + 1)}),
        tp_(store.tp()) {
    const auto init = parallel::Init::normal(0.01);
    up_ = &use(store, concat("up.", index), {width, width}, init, {0, {width}});
    down_ = &use(store, concat("down.", index), {width, width}, init, {1, {width}});
  }
  parallel::Tensors forward(const parallel::Tensors& inputs,
                            const parallel::Pass& pass) const override {
    const at::Tensor hidden =
        model::ops::column_linear(inputs.empty() ? pass.feed("x") : inputs[0], up_->value, tp_);
    return {model::tensor_parallel::reduce(model::ops::linear(hidden, down_->value), tp_)};
  }
  std::vector<parallel::WireShape> shapes(const parallel::Pass& pass) const override {
    return {{pass.feed("x").sizes().vec(), up_->value.scalar_type()}};
  }

 private:
  parallel::Communicator* tp_;
  const parallel::Parameter *up_, *down_;
};

struct Layout {
  int dp, pp, tp;
};

TEST(Memory, EachZeroStageKeepsWhatTheFormulaSays) {
  constexpr int64_t kWidth = 1024, kBlocks = 6;
  constexpr double kParameters = 2 * kBlocks * kWidth * kWidth;  // 12.6 million
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const double weight = dtype == at::kFloat ? 4 : 2, master = dtype == at::kFloat ? 0 : 4;
    for (const Layout& layout :
         {Layout{2, 1, 1}, Layout{4, 1, 1}, Layout{2, 2, 1}, Layout{2, 1, 2}, Layout{2, 2, 2}}) {
      for (int zero = 0; zero <= 3; ++zero) {
        SCOPED_TRACE(concat(at::toString(dtype), ", dp ", layout.dp, " pp ", layout.pp, " tp ",
                            layout.tp, ", ZeRO ", zero));
        parallel::ParallelConfig config;
        config.dp = layout.dp;
        config.pp = layout.pp;
        config.tp = layout.tp;
        config.zero = zero;
        std::vector<double> bytes(layout.dp * layout.pp * layout.tp);
        on_threads(config, [&](const parallel::Groups& groups) {
          parallel::ParameterStore store(groups.tp);
          parallel::BlockList blocks;
          for (int i = 0; i < kBlocks; ++i)
            blocks.push_back(std::make_unique<Products>(store, i, kWidth));
          parallel::Placement placement = parallel::placement_for(config, blocks, groups);
          store.materialise(dtype, at::kCPU, 1, [&](const parallel::Parameter& p) {
            return parallel::Engine::owns(placement, blocks, p, groups.pp_rank());
          });
          parallel::Engine engine(config, groups, std::move(placement), blocks, store);
          AdamW optimizer(OptimizerConfig(), engine);
          const parallel::Feeds feeds{{"x", at::ones({2, kWidth}, dtype)}};
          const parallel::Pass pass(feeds, true);
          engine.sharding().begin_step();
          engine.pipeline().forward_backward(
              {&pass, &pass}, [&](int, const parallel::ForwardPass& forward) {
                const std::string last = concat("h.", kBlocks);
                return forward.has(last)
                           ? parallel::WireValues{{last, at::ones({2, kWidth}, dtype)}}
                           : parallel::WireValues();
              });
          engine.sharding().finish();
          optimizer.clip();
          optimizer.step(1e-3);
          bytes[groups.rank()] =
              static_cast<double>(engine.sharding().value_bytes() +
                                  engine.sharding().gradient_bytes() + optimizer.state_bytes());
        });
        const double n = layout.dp, share = kParameters / (layout.pp * layout.tp);
        const double per_parameter = zero == 0   ? weight + 4 + master + 8
                                     : zero == 1 ? weight + 4 + (master + 8) / n
                                     : zero == 2 ? weight + (4 + master + 8) / n
                                                 : (weight + 4 + master + 8) / n;
        for (const double b : bytes)
          EXPECT_NEAR(b, per_parameter * share, 0.02 * per_parameter * share);
      }
    }
  }
}

}  // namespace
}  // namespace contexture::train
