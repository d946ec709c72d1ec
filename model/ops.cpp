// The operators that work row by row. N rows, D width, O output width.
#include "model/ops.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "core/error.h"
#include "model/internal/op_checks.h"
#include "model/internal/op_dispatch.h"
#include "model/internal/product.h"
#include "model/internal/row_compositions.h"
#include "model/internal/row_kernels.h"
#include "parallel/communicator.h"
#include "parallel/deferred_gradients.h"

namespace contexture::model::ops {
namespace {

using internal::data;
using internal::data_or_null;
using internal::product;
using internal::Wide;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

void check_linear(const at::Tensor& x_ND, const at::Tensor& w_OD) {
  CONTEXTURE_REQUIRE(x_ND.dim() == 2 && w_OD.dim() == 2 && x_ND.size(1) == w_OD.size(1),
                     "linear: x must be [rows, width] and w [outputs, width]; got ", x_ND.sizes(),
                     " and ", w_OD.sizes(), ".");
}

// dy^T x, now or when the schedule wants it.
at::Tensor weight_gradient(const at::Tensor& weight, const at::Tensor& dy_NO,
                           const at::Tensor& x_ND) {
  if (parallel::Deferred* deferred = parallel::Deferred::active()) {
    deferred->add({weight, [dy_NO, x_ND] { return product(dy_NO.t(), x_ND); }});
    return {};
  }
  return product(dy_NO.t(), x_ND);
}

struct Linear : Function<Linear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_ND, const at::Tensor& w_OD) {
    ctx->save_for_backward({x_ND, w_OD});
    return product(x_ND, w_OD.t());
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto dy_NO = grads[0];
    return {ctx->needs_input_grad(0) ? product(dy_NO, saved[1]) : at::Tensor(),
            ctx->needs_input_grad(1) ? weight_gradient(saved[1], dy_NO, saved[0]) : at::Tensor()};
  }
};

// The tensor-parallel form of linear: w is this rank's rows, x the same on all ranks, so that the
// gradient of x is a sum over ranks. It travels while the weight's gradient is computed.
struct ColumnLinear : Function<ColumnLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_ND, const at::Tensor& w_OD,
                            int64_t tp) {
    ctx->save_for_backward({x_ND, w_OD});
    ctx->saved_data["tp"] = tp;
    return product(x_ND, w_OD.t());
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    auto* tp = reinterpret_cast<parallel::Communicator*>(ctx->saved_data["tp"].toInt());
    const auto dy_NO = grads[0];
    at::Tensor dx_ND;
    parallel::Pending sum;
    if (ctx->needs_input_grad(0)) {
      dx_ND = product(dy_NO, saved[1]);
      sum = tp->all_reduce(dx_ND);
    }
    at::Tensor dw_OD;
    if (ctx->needs_input_grad(1)) dw_OD = weight_gradient(saved[1], dy_NO, saved[0]);
    sum.wait();
    return {dx_ND, dw_OD, at::Tensor()};
  }
};

struct RmsNorm : Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_in, const at::Tensor& gain_D,
                            double eps) {
    const auto x_ND = x_in.contiguous();
    if (!internal::is_fused(x_ND)) {
      const auto [y_ND, inverse_N1] = internal::composed::rms_norm(x_ND, gain_D, eps);
      ctx->save_for_backward({x_ND, gain_D, inverse_N1});
      return y_ND;
    }
    const auto gain = gain_D.to(internal::wide_type(x_ND)).contiguous();
    const auto y_ND = at::empty_like(x_ND);
    const auto inverse_N = internal::wide_like(x_ND, {x_ND.size(0)});
    internal::dispatch(x_ND.scalar_type(), [&](auto in) {
      using In = decltype(in);
      internal::rms_norm_forward<In>(x_ND.size(0), x_ND.size(1), data<In>(x_ND),
                                     data<Wide<In>>(gain), Wide<In>(eps), data<In>(y_ND),
                                     data<Wide<In>>(inverse_N));
    });
    ctx->save_for_backward({x_ND, gain_D, inverse_N});
    return y_ND;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x_ND = saved[0], &gain_D = saved[1], &inverse_N = saved[2];
    if (!internal::is_fused(x_ND)) {
      const auto [dx_ND, dgain_D] =
          internal::composed::rms_norm_backward(x_ND, gain_D, inverse_N, grads[0]);
      return {dx_ND, dgain_D, at::Tensor()};
    }
    const auto gain = gain_D.to(internal::wide_type(x_ND)).contiguous();
    const auto dy_ND = grads[0].contiguous();
    const auto dx_ND = at::empty_like(x_ND);
    at::Tensor dgain;
    if (ctx->needs_input_grad(1)) dgain = at::empty_like(gain);
    internal::dispatch(x_ND.scalar_type(), [&](auto in) {
      using In = decltype(in);
      internal::rms_norm_backward<In>(x_ND.size(0), x_ND.size(1), data<In>(x_ND),
                                      data<Wide<In>>(gain), data<Wide<In>>(inverse_N),
                                      data<In>(dy_ND), data<In>(dx_ND),
                                      data_or_null<Wide<In>>(dgain));
    });
    return {dx_ND, dgain.defined() ? dgain.to(gain_D.scalar_type()) : dgain, at::Tensor()};
  }
};

struct SwiGlu : Function<SwiGlu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& ab_in) {
    const auto ab_N2F = ab_in.contiguous();
    if (!internal::is_fused(ab_N2F)) {
      ctx->save_for_backward({ab_N2F});
      return internal::composed::swiglu(ab_N2F);
    }
    const int64_t N = ab_N2F.size(0), F = ab_N2F.size(1) / 2;
    const auto y_NF = at::empty({N, F}, ab_N2F.options());
    internal::dispatch(ab_N2F.scalar_type(), [&](auto in) {
      using In = decltype(in);
      internal::swiglu_forward<In>(N, F, data<In>(ab_N2F), data<In>(y_NF));
    });
    ctx->save_for_backward({ab_N2F});
    return y_NF;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto ab_N2F = ctx->get_saved_variables()[0];
    if (!internal::is_fused(ab_N2F)) return {internal::composed::swiglu_backward(ab_N2F, grads[0])};
    const auto dy_NF = grads[0].contiguous();
    const auto dab_N2F = at::empty_like(ab_N2F);
    internal::dispatch(ab_N2F.scalar_type(), [&](auto in) {
      using In = decltype(in);
      internal::swiglu_backward<In>(ab_N2F.size(0), ab_N2F.size(1) / 2, data<In>(ab_N2F),
                                    data<In>(dy_NF), data<In>(dab_N2F));
    });
    return {dab_N2F};
  }
};

// cos and sin of position * theta^(-2 i / head_width), one table row per position, computed in
// fp64.
struct Angles {
  at::Tensor cos, sin;
};

Angles make_angles(const at::Tensor& positions, int64_t half, double theta, at::ScalarType type) {
  const auto exponent = at::arange(half, at::kDouble) * (-1.0 / double(half));
  const auto frequency = at::pow(at::scalar_tensor(theta, at::kDouble), exponent);
  const auto angle = positions.to(at::kDouble).unsqueeze(1) * frequency;
  return {angle.cos().to(type).contiguous(), angle.sin().to(type).contiguous()};
}

// Shared table of the positions [0, n), n >= needed; grows by doubling.
Angles cached_angles(int64_t needed, int64_t half, double theta, at::ScalarType type) {
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, double, at::ScalarType>, Angles> tables;
  const std::lock_guard lock(mutex);
  Angles& angles = tables[{half, theta, type}];
  if (!angles.cos.defined() || angles.cos.size(0) < needed) {
    int64_t rows = 256;
    while (rows < needed) rows *= 2;
    angles = make_angles(at::arange(rows, at::kLong), half, theta, type);
  }
  return angles;
}

at::Tensor turn(const at::Tensor& x_NL, const at::Tensor& row_N, const Angles& angles,
                int64_t heads, int sign) {
  const auto y_NL = at::empty_like(x_NL);
  internal::dispatch(x_NL.scalar_type(), [&](auto in) {
    using In = decltype(in);
    internal::rotary<In>(x_NL.size(0), x_NL.size(1), heads, angles.cos.size(1), data<In>(x_NL),
                         data<int64_t>(row_N), data<Wide<In>>(angles.cos),
                         data<Wide<In>>(angles.sin), Wide<In>(sign), data<In>(y_NL));
  });
  return y_NL;
}

struct Rotary : Function<Rotary> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_in,
                            const at::Tensor& position_N, int64_t heads, int64_t head_width,
                            double theta) {
    constexpr int64_t kMaxCached = 1 << 15;
    const auto x_NL = x_in.contiguous();
    auto row_N = position_N.contiguous();
    const int64_t* p = data<int64_t>(row_N);
    const auto [low, high] = std::minmax_element(p, p + row_N.numel());
    const bool cached = row_N.numel() == 0 || (*low >= 0 && *high < kMaxCached);
    Angles angles;
    if (cached) {
      angles = cached_angles(row_N.numel() ? *high + 1 : 1, head_width / 2, theta,
                             internal::wide_type(x_NL));
    } else {
      angles = make_angles(row_N, head_width / 2, theta, internal::wide_type(x_NL));
      row_N = at::arange(row_N.numel(), at::kLong);
    }
    ctx->save_for_backward({row_N, angles.cos, angles.sin});
    ctx->saved_data["heads"] = heads;
    return turn(x_NL, row_N, angles, heads, 1);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const int64_t heads = ctx->saved_data["heads"].toInt();
    const auto dx = turn(grads[0].contiguous(), saved[0], {saved[1], saved[2]}, heads, -1);
    return {dx, {}, {}, {}, {}};
  }
};

struct ComposedRotary : Function<ComposedRotary> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_NL,
                            const at::Tensor& position_N, int64_t heads, int64_t head_width,
                            double theta) {
    ctx->save_for_backward({position_N});
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["head_width"] = head_width;
    ctx->saved_data["theta"] = theta;
    return internal::composed::rotary(x_NL, position_N, heads, head_width, theta, 1);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& saved = ctx->saved_data;
    const auto dx =
        internal::composed::rotary(grads[0], ctx->get_saved_variables()[0], saved["heads"].toInt(),
                                   saved["head_width"].toInt(), saved["theta"].toDouble(), -1);
    return {dx, {}, {}, {}, {}};
  }
};

// Shapes alone, and fp16 on the CPU, which nothing of ours computes fast.
bool takes_reference(const at::Tensor& x) {
  return x.is_meta() || (x.is_cpu() && !internal::is_fused(x));
}

}  // namespace

at::Tensor linear(const at::Tensor& x_ND, const at::Tensor& w_OD) {
  check_linear(x_ND, w_OD);
  return Linear::apply(x_ND, w_OD);
}

at::Tensor column_linear(const at::Tensor& x_ND, const at::Tensor& w_OD,
                         parallel::Communicator* tp) {
  if (tp == nullptr) return ops::linear(x_ND, w_OD);
  check_linear(x_ND, w_OD);
  return ColumnLinear::apply(x_ND, w_OD, reinterpret_cast<int64_t>(tp));
}

at::Tensor rms_norm(const at::Tensor& x_ND, const at::Tensor& gain_D, double eps) {
  CONTEXTURE_REQUIRE(x_ND.dim() == 2 && gain_D.dim() == 1 && gain_D.size(0) == x_ND.size(1),
                     "rms_norm: x must be [rows, width] and gain [width]; got ", x_ND.sizes(),
                     " and ", gain_D.sizes(), ".");
  if (takes_reference(x_ND)) return reference::rms_norm(x_ND, gain_D, eps);
  return RmsNorm::apply(x_ND, gain_D, eps);
}

at::Tensor swiglu(const at::Tensor& ab_N2F) {
  CONTEXTURE_REQUIRE(ab_N2F.dim() == 2 && ab_N2F.size(1) % 2 == 0,
                     "swiglu: input must be [rows, 2 * width]; got ", ab_N2F.sizes(), ".");
  if (takes_reference(ab_N2F)) return reference::swiglu(ab_N2F);
  return SwiGlu::apply(ab_N2F);
}

at::Tensor rotary(const at::Tensor& x_NL, const at::Tensor& position_N, int64_t rotated_heads,
                  int64_t head_width, double theta) {
  internal::check_rotary(x_NL, position_N, rotated_heads, head_width);
  if (takes_reference(x_NL)) {
    return reference::rotary(x_NL, position_N, rotated_heads, head_width, theta);
  }
  if (!internal::is_fused(x_NL)) {
    return ComposedRotary::apply(x_NL, position_N, rotated_heads, head_width, theta);
  }
  return Rotary::apply(x_NL, position_N, rotated_heads, head_width, theta);
}

}  // namespace contexture::model::ops
