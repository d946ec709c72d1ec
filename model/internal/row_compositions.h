// The row operators of ops.h as ATen compositions with a backward of their own, for devices without
// our kernels: they keep what the kernels keep, and not every intermediate. bf16 and fp16 compute
// in fp32. No gradient. N rows, D width, F half of the input's.
#pragma once
#include <ATen/ATen.h>

#include <utility>

namespace contexture::model::ops::internal::composed {

// y_ND, and the inverse root mean square that backward wants, [N, 1].
std::pair<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x_ND, const at::Tensor& gain_D,
                                           double eps);
// The gradients of x and gain.
std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& x_ND,
                                                    const at::Tensor& gain_D,
                                                    const at::Tensor& inverse_N1,
                                                    const at::Tensor& dy_ND);

at::Tensor swiglu(const at::Tensor& ab_N2F);
at::Tensor swiglu_backward(const at::Tensor& ab_N2F, const at::Tensor& dy_NF);

// sign 1: rotary; -1: its inverse, which is its gradient.
at::Tensor rotary(const at::Tensor& x_NL, const at::Tensor& position_N, int64_t rotated_heads,
                  int64_t head_width, double theta, int sign);

}  // namespace contexture::model::ops::internal::composed
