// linear, rms_norm, swiglu and rotary against their references.
#include "model/ops.h"

#include <ATen/Parallel.h>

#include "core/error.h"
#include "ops_check.h"

namespace contexture::model::ops {
namespace {

const auto kOptions = at::TensorOptions(at::kDouble);

struct Shape {
  int64_t rows, width;
};
const std::vector<Shape> kShapes{{0, 8}, {1, 2}, {3, 10}, {65, 128}, {130, 36}};

TEST(Linear, MatchesAMatrixProductInEveryType) {
  at::manual_seed(1);
  for (const auto type : all_types()) {
    for (const auto& [N, D] : kShapes) {
      const auto inputs = {at::randn({N, D}, kOptions), at::randn({D + 3, D}, kOptions)};
      expect_same([](const auto& x) { return ops::linear(x[0], x[1]); },
                  [](const auto& x) { return at::mm(x[0], x[1].t()); }, inputs, type);
    }
  }
}

TEST(Linear, LeavesOutTheGradientNobodyWants) {
  const auto x = at::randn({4, 3}), w = at::randn({5, 3}).set_requires_grad(true);
  ops::linear(x, w).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(at::allclose(w.grad(), x.sum(0).expand({5, 3})));
}

TEST(Linear, GivesTheSameBitsOnOneAndTwoThreads) {
  at::manual_seed(8);
  const int threads = at::get_num_threads();
  for (const auto& [N, D, O] : std::vector<std::array<int64_t, 3>>{
           {1200, 128, 384}, {900, 344, 128}, {300, 512, 1376}, {37, 128, 688}}) {
    const std::vector<at::Tensor> inputs{at::randn({N, D}), at::randn({O, D})};
    const Operator op = [](const auto& x) { return ops::linear(x[0], x[1]); };
    at::set_num_threads(1);
    const auto one = run_with_gradients(op, inputs);
    at::set_num_threads(2);
    const auto two = run_with_gradients(op, inputs);
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_TRUE(at::equal(one[i], two[i])) << N << " rows, result " << i;
    }
  }
  at::set_num_threads(threads);
}

TEST(RmsNorm, MatchesTheReferenceInEveryType) {
  at::manual_seed(2);
  for (const auto type : all_types()) {
    for (const auto& [N, D] : kShapes) {
      const auto inputs = {at::randn({N, D}, kOptions), at::randn({D}, kOptions)};
      expect_same([](const auto& x) { return rms_norm(x[0], x[1].to(x[0].scalar_type()), 1e-6); },
                  [type](const auto& x) {
                    return reference::rms_norm(x[0], x[1].to(type).to(at::kDouble), 1e-6);
                  },
                  inputs, type);
    }
  }
}

TEST(RmsNorm, AcceptsAWiderGain) {
  const auto x = at::randn({7, 16}).to(at::kBFloat16);
  const auto gain = at::randn({16}).set_requires_grad(true);
  const auto y = rms_norm(x, gain, 1e-6);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(gain.grad().scalar_type(), at::kFloat);
}

TEST(SwiGlu, MatchesTheReferenceInEveryType) {
  at::manual_seed(3);
  for (const auto type : all_types()) {
    for (const auto& [N, F] : kShapes) {
      // Three sigmas of 4 also reach the flat ends of the sigmoid.
      expect_same([](const auto& x) { return swiglu(x[0]); },
                  [](const auto& x) { return reference::swiglu(x[0]); },
                  {at::randn({N, 2 * F}, kOptions) * 4}, type);
    }
  }
}

TEST(SwiGlu, StaysFiniteForHugeGates) {
  const auto ab = at::tensor({-1e4f, 1e4f, 2.0f, 3.0f}).reshape({1, 4});
  const auto y = swiglu(ab);
  EXPECT_NEAR(y[0][0].item<float>(), 0.0f, 1e-30f);  // exp is clamped at e^-86
  EXPECT_EQ(y[0][1].item<float>(), 3e4f);
}

TEST(Rotary, MatchesTheReferenceInEveryType) {
  at::manual_seed(4);
  struct Case {
    int64_t N, heads, rotated, width, max_position;
  };
  for (const auto type : all_types()) {
    for (const Case& c : std::vector<Case>{{0, 2, 1, 4, 9},
                                           {5, 4, 2, 6, 300},
                                           {70, 6, 6, 32, 600},
                                           {9, 1, 1, 2, 5'000'000},
                                           {3, 2, 0, 8, 5}}) {
      const auto position = at::randint(0, c.max_position, {c.N}, at::kLong);
      const auto apply = [&](auto rotate) {
        return [=](const std::vector<at::Tensor>& x) {
          return rotate(x[0], position, c.rotated, c.width, 10000.0);
        };
      };
      expect_same(apply(&rotary), apply(&reference::rotary),
                  {at::randn({c.N, c.heads * c.width}, kOptions)}, type);
    }
  }
}

TEST(Rotary, MakesProductsDependOnTheDistanceOnly) {
  at::manual_seed(5);
  const auto q = at::randn({1, 16}, kOptions), k = at::randn({1, 16}, kOptions);
  const auto turned = [](const at::Tensor& x, int64_t position) {
    return rotary(x, at::full({1}, position, at::kLong), 1, 16, 10000.0);
  };
  const double near = (turned(q, 7) * turned(k, 3)).sum().item<double>();
  const double far = (turned(q, 1007) * turned(k, 1003)).sum().item<double>();
  EXPECT_NEAR(near, far, 1e-11);  // the angles' rounding: 1007 * 2^-53
}

TEST(RowOperators, GiveTheSameBitsOnOneAndTwoThreads) {
  at::manual_seed(6);
  const auto x = at::randn({1000, 96}), gain = at::randn({96}),
             position = at::arange(1000, at::kLong);
  const std::vector<Operator> operators{
      [](const auto& in) { return rms_norm(in[0], in[1], 1e-6); },
      [](const auto& in) { return swiglu(in[0]); },
      [&](const auto& in) { return rotary(in[0], position, 4, 16, 10000.0); },
  };
  const int threads = at::get_num_threads();
  for (const auto& op : operators) {
    at::set_num_threads(1);
    const auto one = run_with_gradients(op, {x, gain});
    at::set_num_threads(2);
    const auto two = run_with_gradients(op, {x, gain});
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(one[i].defined(), two[i].defined());
      if (!one[i].defined()) continue;
      EXPECT_TRUE(at::equal(one[i], two[i])) << "result " << i;
    }
  }
  at::set_num_threads(threads);
}

TEST(RowOperators, AcceptStridedRows) {
  at::manual_seed(7);
  const auto x = at::randn({9, 64}, kOptions).slice(1, 8, 40), gain = at::randn({32}, kOptions);
  const auto position = at::arange(9, at::kLong);
  EXPECT_TRUE(at::equal(rms_norm(x, gain, 1e-6), rms_norm(x.contiguous(), gain, 1e-6)));
  EXPECT_TRUE(at::equal(swiglu(x), swiglu(x.contiguous())));
  EXPECT_TRUE(
      at::equal(rotary(x, position, 2, 8, 1e4), rotary(x.contiguous(), position, 2, 8, 1e4)));
}

TEST(RowOperators, RefuseMismatchedShapes) {
  EXPECT_THROW(ops::linear(at::zeros({2, 3}), at::zeros({4, 5})), UserError);
  EXPECT_THROW(rms_norm(at::zeros({2, 3}), at::zeros({4}), 1e-6), UserError);
  EXPECT_THROW(swiglu(at::zeros({2, 3})), UserError);
  EXPECT_THROW(rotary(at::zeros({2, 6}), at::zeros({2}, at::kLong), 2, 4, 1e4), UserError);
  EXPECT_THROW(rotary(at::zeros({2, 6}), at::zeros({3}, at::kLong), 1, 4, 1e4), UserError);
}

TEST(RowOperators, TraceShapesOnMetaTensors) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto x = at::empty({1 << 20, 4096}, meta);
  EXPECT_EQ(ops::linear(x, at::empty({128, 4096}, meta)).size(1), 128);
  EXPECT_EQ(rms_norm(x, at::empty({4096}, meta), 1e-6).sizes(), x.sizes());
  EXPECT_EQ(swiglu(x).size(1), 2048);
  EXPECT_EQ(rotary(x, at::empty({1 << 20}, meta.dtype(at::kLong)), 8, 64, 1e4).sizes(), x.sizes());
}

}  // namespace
}  // namespace contexture::model::ops
