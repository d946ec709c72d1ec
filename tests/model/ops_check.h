// Comparing a fused operator with its reference: values and every gradient.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <vector>

namespace contexture::model::ops {

using Operator = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// |a - b| / (|b| + floor) over all elements; |a| where that is zero.
inline double relative_error(const at::Tensor& a, const at::Tensor& b, double floor = 0) {
  EXPECT_EQ(a.sizes(), b.sizes());
  if (b.numel() == 0) return 0;
  const double size = b.to(at::kDouble).norm().item<double>() + floor;
  const double error = (a.to(at::kDouble) - b.to(at::kDouble)).norm().item<double>();
  return size > 0 ? error / size : error;
}

// The output of op, then the gradient of sum(output * cotangent) by each floating-point input.
inline std::vector<at::Tensor> run_with_gradients(const Operator& op,
                                                  const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> leaves, differentiable;
  for (const auto& x : inputs) {
    leaves.push_back(x.defined() ? x.detach() : x);  // keeps strides
    if (x.defined() && x.is_floating_point()) {
      differentiable.push_back(leaves.back().set_requires_grad(true));
    }
  }
  const at::Tensor y = op(leaves);
  const auto index = at::arange(y.numel(), at::kDouble).reshape(y.sizes());
  const auto cotangent = (index * 0.7 + 0.3).sin().to(y.scalar_type());
  std::vector<at::Tensor> results{y.detach()};
  if (y.requires_grad()) {
    for (const auto& g :
         torch::autograd::grad({y}, differentiable, {cotangent}, std::nullopt, false,
                               /*allow_unused=*/true)) {
      results.push_back(g);
    }
  }
  return results;
}

// Tolerances are norm-wise. fp64 and fp32 are some hundred roundings of the type; in bf16 the
// output and each gradient are rounded to 8 bits, and attention's backward starts from a rounded
// output.
inline double tolerance(at::ScalarType type) {
  return type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 2e-2;
}

// Runs `fused` in `type` and `reference` in fp64 on the same values.
inline void expect_same(const Operator& fused, const Operator& reference,
                        const std::vector<at::Tensor>& inputs, at::ScalarType type,
                        const std::string& what = "") {
  std::vector<at::Tensor> rounded, exact;
  for (const auto& x : inputs) {
    const bool cast = x.defined() && x.is_floating_point();
    rounded.push_back(cast && x.dim() > 1 ? x.to(type) : x);
    exact.push_back(cast ? rounded.back().to(at::kDouble) : x);
  }
  const auto got = run_with_gradients(fused, rounded);
  const auto want = run_with_gradients(reference, exact);
  // A change common to all logits changes nothing, so gradients are differences of terms that may
  // cancel, entirely for a bias: errors are measured against the size of the terms too.
  const double terms = std::sqrt(double(got[0].numel()));
  const auto floor = [&](size_t i) {
    return i == 0 ? 0 : got[i].dim() == 1 ? terms : 0.05 * terms;
  };
  for (size_t i = 0; i < got.size(); ++i) {
    if (i >= want.size() || !want[i].defined()) {  // the reference does not depend on this input
      EXPECT_TRUE(!got[i].defined() || got[i].count_nonzero().item<int64_t>() == 0) << what;
      continue;
    }
    ASSERT_TRUE(got[i].defined()) << what << ": result " << i;
    EXPECT_LE(relative_error(got[i], want[i], floor(i)), tolerance(type))
        << what << ": " << (i == 0 ? "output" : "gradient " + std::to_string(i - 1)) << " in "
        << type;
  }
}

inline const std::vector<at::ScalarType>& all_types() {
  static const std::vector<at::ScalarType> types{at::kDouble, at::kFloat, at::kBFloat16};
  return types;
}

}  // namespace contexture::model::ops
