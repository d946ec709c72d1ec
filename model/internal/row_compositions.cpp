#include "model/internal/row_compositions.h"

#include "model/ops.h"

namespace contexture::model::ops::internal::composed {
namespace {

at::Tensor wide(const at::Tensor& x) { return x.element_size() < 4 ? x.to(at::kFloat) : x; }

}  // namespace

std::pair<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x_ND, const at::Tensor& gain_D,
                                           double eps) {
  const at::Tensor x = wide(x_ND),
                   inverse_N1 = (x.square().mean(1, /*keepdim=*/true) + eps).rsqrt();
  return {(x * inverse_N1 * wide(gain_D)).to(x_ND.scalar_type()), inverse_N1};
}

std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& x_ND,
                                                    const at::Tensor& gain_D,
                                                    const at::Tensor& inverse_N1,
                                                    const at::Tensor& dy_ND) {
  const at::Tensor normed = wide(x_ND) * inverse_N1, dy = wide(dy_ND), d_normed = dy * wide(gain_D);
  const at::Tensor dx =
      (d_normed - normed * (d_normed * normed).mean(1, /*keepdim=*/true)) * inverse_N1;
  return {dx.to(x_ND.scalar_type()), (dy * normed).sum(0).to(gain_D.scalar_type())};
}

at::Tensor swiglu(const at::Tensor& ab_N2F) { return reference::swiglu(ab_N2F); }

at::Tensor swiglu_backward(const at::Tensor& ab_N2F, const at::Tensor& dy_NF) {
  const auto halves = wide(ab_N2F).chunk(2, 1);
  const at::Tensor &a = halves[0], &b = halves[1], dy = wide(dy_NF), s = at::sigmoid(a);
  return at::cat({dy * b * s * (1.0 + a * (1.0 - s)), dy * a * s}, 1).to(ab_N2F.scalar_type());
}

at::Tensor rotary(const at::Tensor& x_NL, const at::Tensor& position_N, int64_t rotated_heads,
                  int64_t head_width, double theta, int sign) {
  return reference::rotary(x_NL, sign > 0 ? position_N : position_N.neg(), rotated_heads,
                           head_width, theta);
}

}  // namespace contexture::model::ops::internal::composed
