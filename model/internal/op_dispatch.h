// From tensors to the kernels' types and pointers.
#pragma once
#include <ATen/ATen.h>

#include "core/error.h"
#include "model/internal/simd.h"

namespace contexture::model::ops::internal {

// Whether the CPU kernels serve this tensor.
inline bool is_fused(const at::Tensor& x) {
  const auto type = x.scalar_type();
  return x.device().is_cpu() &&
         (type == at::kFloat || type == at::kDouble || type == at::kBFloat16);
}

// run(In{}) for the kernel type In of the tensors' type.
template <typename Run>
void dispatch(at::ScalarType type, const Run& run) {
  switch (type) {
    case at::kDouble:
      return run(double{});
    case at::kFloat:
      return run(float{});
    case at::kBFloat16:
      return run(Bf16{});
    default:
      CONTEXTURE_INVARIANT(false, "no CPU kernel for ", type);
  }
}

template <typename In>
In* data(const at::Tensor& t) {
  return static_cast<In*>(t.data_ptr());
}
template <typename T>
T* data_or_null(const at::Tensor& t) {
  return t.defined() ? data<T>(t) : nullptr;
}

// The type sums run in.
inline at::ScalarType wide_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}
inline at::Tensor wide_like(const at::Tensor& x, at::IntArrayRef shape) {
  return at::empty(shape, x.options().dtype(wide_type(x)));
}

}  // namespace contexture::model::ops::internal
