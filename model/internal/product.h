// The matrix product behind ops::linear: the fastest that LibTorch offers for type and processor.
#pragma once
#include <ATen/ATen.h>

namespace contexture::model::ops::internal {

// a b, [M, K] and [K, N] of one type, either of them perhaps a transposed view. No gradient.
at::Tensor product(const at::Tensor& a_MK, const at::Tensor& b_KN);

}  // namespace contexture::model::ops::internal
