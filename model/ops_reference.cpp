// The oracle: every operator as a plain ATen composition, differentiable to any order by autograd.
// bf16 is computed in fp32. N rows, D width, H query heads, G key-value heads, K head width.
#include <vector>

#include "core/error.h"
#include "model/internal/op_checks.h"
#include "model/ops.h"

namespace contexture::model::ops::reference {
namespace {

using internal::SegmentsView;

at::Tensor wide(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf ? x.to(at::kFloat) : x;
}

// The rows of all segments that sequence s reads, laid end to end.
at::Tensor gather_keys(const at::Tensor& rows, const SegmentsView& view, int64_t s) {
  std::vector<at::Tensor> parts;
  for (int64_t p = view.segment_begin[s]; p < view.segment_begin[s + 1]; ++p) {
    parts.push_back(rows.slice(0, view.key_begin[p], view.key_end[p]));
  }
  return parts.empty() ? rows.slice(0, 0, 0) : at::cat(parts, 0);
}

// The bias of each of those rows, or an undefined tensor.
at::Tensor gather_bias(const at::Tensor& bias_P, const SegmentsView& view, int64_t s) {
  std::vector<at::Tensor> parts;
  for (int64_t p = view.segment_begin[s]; p < view.segment_begin[s + 1]; ++p) {
    parts.push_back(bias_P[p].expand({view.key_end[p] - view.key_begin[p]}));
  }
  return at::cat(parts, 0);
}

// True where query i may not see key j.
at::Tensor hidden(int64_t num_queries, int64_t num_keys, const at::Device& device) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const auto i = at::arange(num_queries, options).unsqueeze(1);
  const auto j = at::arange(num_keys, options).unsqueeze(0);
  return j > i + (num_keys - num_queries);
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x_ND, const at::Tensor& gain_D, double eps) {
  const auto x = wide(x_ND);
  const auto scale_N1 = (x.square().mean(1, /*keepdim=*/true) + eps).rsqrt();
  return (x * scale_N1 * wide(gain_D)).to(x_ND.scalar_type());
}

at::Tensor swiglu(const at::Tensor& ab_N2F) {
  const auto halves = wide(ab_N2F).chunk(2, 1);
  return (halves[0] * at::sigmoid(halves[0]) * halves[1]).to(ab_N2F.scalar_type());
}

at::Tensor rotary(const at::Tensor& x_NL, const at::Tensor& position_N, int64_t rotated_heads,
                  int64_t head_width, double theta) {
  const auto x = wide(x_NL);
  const int64_t N = x.size(0), half = head_width / 2, rotated = rotated_heads * head_width;
  const auto exponent =
      at::arange(half, position_N.options().dtype(at::kDouble)) * (-2.0 / double(head_width));
  const auto angle = position_N.to(at::kDouble).unsqueeze(1) *
                     at::pow(at::scalar_tensor(theta, exponent.options()), exponent);
  const auto cos = angle.cos().to(x.scalar_type()).unsqueeze(1);  // [N, 1, half]
  const auto sin = angle.sin().to(x.scalar_type()).unsqueeze(1);
  const auto heads = x.slice(1, 0, rotated).reshape({N, rotated_heads, head_width});
  const auto a = heads.slice(2, 0, half), b = heads.slice(2, half);
  const auto turned = at::cat({a * cos - b * sin, b * cos + a * sin}, 2).reshape({N, rotated});
  return at::cat({turned, x.slice(1, rotated)}, 1).to(x_NL.scalar_type());
}

at::Tensor attention(const at::Tensor& q_NHK, const at::Tensor& k_MGK, const at::Tensor& v_MGK,
                     const Segments& segments, const at::Tensor& bias_P) {
  const SegmentsView view(segments, q_NHK.size(0), k_MGK.size(0));
  const auto q = wide(q_NHK), k = wide(k_MGK), v = wide(v_MGK);
  const int64_t repeats = q.size(1) / std::max<int64_t>(1, k.size(1));
  const double scale = 1.0 / std::sqrt(double(q.size(2)));
  std::vector<at::Tensor> parts;
  int64_t written = 0;
  const auto zeros = [&](int64_t rows) {
    parts.push_back(at::zeros({rows, q.size(1), v.size(2)}, q.options()));
  };
  for (int64_t s = 0; s < view.num_sequences; ++s) {
    const int64_t begin = view.query_begin[s], end = view.query_begin[s + 1];
    if (begin == end) continue;
    if (begin > written) zeros(begin - written);
    written = end;
    const auto keys = gather_keys(k, view, s).repeat_interleave(repeats, 1);
    const auto values = gather_keys(v, view, s).repeat_interleave(repeats, 1);
    if (keys.size(0) == 0) {
      zeros(end - begin);
      continue;
    }
    auto logits_HQM = at::einsum("qhk,mhk->hqm", {q.slice(0, begin, end), keys}) * scale;
    if (bias_P.defined())
      logits_HQM = logits_HQM + gather_bias(bias_P, view, s).to(q.scalar_type());
    at::Tensor mask;
    if (segments.causal) {
      mask = hidden(end - begin, keys.size(0), q.device());
      logits_HQM = logits_HQM.masked_fill(mask, -1e30);
    }
    auto weight = at::softmax(logits_HQM, -1);
    if (segments.causal) weight = weight.masked_fill(mask, 0.0);  // rows that see no key at all
    parts.push_back(at::einsum("hqm,mhk->qhk", {weight, values}));
  }
  if (written < q.size(0) || parts.empty()) zeros(q.size(0) - written);
  return at::cat(parts, 0).to(q_NHK.scalar_type());
}

}  // namespace contexture::model::ops::reference
