// The operators that read key rows.
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "core/error.h"
#include "model/internal/attention_kernels.h"
#include "model/internal/op_checks.h"
#include "model/internal/op_dispatch.h"
#include "model/ops.h"

namespace contexture::model::ops {
namespace {

using internal::data;
using internal::data_or_null;
using internal::SegmentsView;
using internal::Wide;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// The same rows with a layout the kernels read: heads side by side, only the row stride is free.
at::Tensor as_rows(const at::Tensor& x_NHK) {
  const bool heads = x_NHK.size(1) == 1 || x_NHK.stride(1) == x_NHK.size(2);
  return heads && (x_NHK.size(2) == 1 || x_NHK.stride(2) == 1) ? x_NHK : x_NHK.contiguous();
}

// Rows that no sequence owns are not written by the kernels, so they must be zero before.
at::Tensor rows_like(const at::Tensor& x, at::IntArrayRef shape, at::ScalarType type,
                     const SegmentsView& view) {
  const bool all_owned =
      view.query_begin[0] == 0 && view.query_begin[view.num_sequences] == shape[0];
  const auto options = x.options().dtype(type);
  return all_owned ? at::empty(shape, options) : at::zeros(shape, options);
}

template <typename T>
internal::SegmentTable<T> make_table(const SegmentsView& view, const at::Tensor& bias_P) {
  return {view.num_sequences, view.num_segments, view.query_begin,        view.segment_begin,
          view.key_begin,     view.key_end,      data_or_null<T>(bias_P), view.causal};
}

at::Tensor wide_bias(const at::Tensor& bias_P, const at::Tensor& q) {
  return bias_P.defined() ? bias_P.to(internal::wide_type(q)).contiguous() : bias_P;
}

template <typename In>
internal::AttentionInputs<In> attention_inputs(const at::Tensor& q, const at::Tensor& k,
                                               const at::Tensor& v, const SegmentsView& view,
                                               const at::Tensor& bias) {
  return {make_table<Wide<In>>(view, bias),
          k.size(0),
          q.size(1),
          k.size(1),
          q.size(2),
          data<In>(q),
          data<In>(k),
          data<In>(v),
          q.stride(0),
          k.stride(0),
          v.stride(0),
          Wide<In>(1.0 / std::sqrt(double(q.size(2))))};
}

void save_segments(AutogradContext* ctx, const Segments& segments) {
  ctx->saved_data["query_begin"] = segments.query_begin;
  ctx->saved_data["segment_begin"] = segments.segment_begin;
  ctx->saved_data["key_begin"] = segments.key_begin;
  ctx->saved_data["key_end"] = segments.key_end;
  ctx->saved_data["causal"] = segments.causal;
}

Segments saved_segments(AutogradContext* ctx) {
  auto& saved = ctx->saved_data;
  return {saved["query_begin"].toTensor(), saved["segment_begin"].toTensor(),
          saved["key_begin"].toTensor(), saved["key_end"].toTensor(), saved["causal"].toBool()};
}

// A padded sum of key-row gradients as the gradient itself.
at::Tensor narrowed(const at::Tensor& sum, int64_t width, at::ScalarType type) {
  return sum.narrow(-1, 0, width).to(type).contiguous();
}

// Function::apply takes no undefined tensor, only an absent one.
std::optional<at::Tensor> as_optional(const at::Tensor& t) {
  return t.defined() ? std::optional(t) : std::nullopt;
}

// On meta tensors both passes only make shapes.
struct Attention : Function<Attention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_in, const at::Tensor& k_in,
                            const at::Tensor& v_in, const std::optional<at::Tensor>& optional_bias,
                            const Segments& segments) {
    const auto bias_P = optional_bias.value_or(at::Tensor());
    const auto q = as_rows(q_in), k = as_rows(k_in), v = as_rows(v_in);
    const SegmentsView view(segments, q.size(0), k.size(0));
    const auto bias = wide_bias(bias_P, q);
    const auto out = rows_like(q, q.sizes(), q.scalar_type(), view);
    const auto lse = rows_like(q, {q.size(0), q.size(1)}, internal::wide_type(q), view);
    if (!q.is_meta()) {
      internal::dispatch(q.scalar_type(), [&](auto in) {
        using In = decltype(in);
        internal::attention_forward<In>(attention_inputs<In>(q, k, v, view, bias), data<In>(out),
                                        data<Wide<In>>(lse));
      });
    }
    ctx->save_for_backward({q, k, v, bias, out, lse});
    save_segments(ctx, segments);
    if (bias_P.defined()) ctx->saved_data["bias_type"] = bias_P.scalar_type();
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &bias = saved[3], &out = saved[4];
    const auto& lse = saved[5];
    const Segments segments = saved_segments(ctx);
    const SegmentsView view(segments, q.size(0), k.size(0));
    const auto dout = grads[0].contiguous();
    const int64_t G = k.size(1), K = k.size(2);
    const auto type = q.scalar_type();
    const auto dq = rows_like(q, q.sizes(), type, view);
    at::Tensor dk, dv, dbias;
    if (q.is_meta()) {
      dk = at::empty_like(k, at::MemoryFormat::Contiguous), dv = at::empty_like(dk);
      return {dq, dk, dv, bias.defined() ? at::empty_like(bias) : at::Tensor(), at::Tensor()};
    }
    if (bias.defined() && ctx->needs_input_grad(3)) {
      dbias = at::zeros({G, view.num_segments}, at::kDouble);
    }
    internal::dispatch(type, [&](auto in) {
      using In = decltype(in);
      dk = internal::wide_like(k, {k.size(0), G, internal::padded_width<Wide<In>>(K)}).zero_();
      dv = at::zeros_like(dk);
      internal::attention_backward<In>(
          attention_inputs<In>(q, k, v, view, bias),
          {data<In>(out), data<In>(dout), data<Wide<In>>(lse), data<In>(dq), data<Wide<In>>(dk),
           data<Wide<In>>(dv), data_or_null<double>(dbias)});
    });
    if (dbias.defined()) dbias = dbias.sum(0).to(ctx->saved_data["bias_type"].toScalarType());
    return {dq, narrowed(dk, K, type), narrowed(dv, K, type), dbias, at::Tensor()};
  }
};

}  // namespace

Segments self_segments(const at::Tensor& begin_S1, bool causal) {
  const int64_t S = begin_S1.numel() - 1;
  return {begin_S1, at::arange(S + 1, at::kLong), begin_S1.slice(0, 0, S), begin_S1.slice(0, 1),
          causal};
}

at::Tensor attention(const at::Tensor& q_NHK, const at::Tensor& k_MGK, const at::Tensor& v_MGK,
                     const Segments& segments, const at::Tensor& bias_P) {
  internal::check_attention(q_NHK, k_MGK, v_MGK, segments, bias_P);
  if (!internal::is_fused(q_NHK) && !q_NHK.is_meta()) {
    return q_NHK.is_cpu() ? reference::attention(q_NHK, k_MGK, v_MGK, segments, bias_P)
                          : padded::attention(q_NHK, k_MGK, v_MGK, segments, bias_P);
  }
  return Attention::apply(q_NHK, k_MGK, v_MGK, as_optional(bias_P), segments);
}

at::Tensor attention_share(const at::Tensor& q_NHK, const at::Tensor& k_MGK,
                           const Segments& segments, const at::Tensor& bias_P,
                           const at::Tensor& weight_MG) {
  const at::NoGradGuard no_grad;
  internal::check_attention(q_NHK, k_MGK, k_MGK, segments, bias_P);
  const SegmentsView view(segments, q_NHK.size(0), k_MGK.size(0));
  const auto shares =
      at::zeros({view.num_segments}, q_NHK.options().dtype(internal::wide_type(q_NHK)));
  const int64_t repeats = q_NHK.size(1) / k_MGK.size(1);
  for (int64_t s = 0; s < view.num_sequences; ++s) {
    const auto q_HQK = q_NHK.slice(0, view.query_begin[s], view.query_begin[s + 1]).transpose(0, 1);
    std::vector<at::Tensor> logits;   // of each segment, [H, queries, keys]
    std::vector<at::Tensor> weights;  // [H, 1, keys]
    for (int64_t p = view.segment_begin[s]; p < view.segment_begin[s + 1]; ++p) {
      const auto k_HKM = k_MGK.slice(0, view.key_begin[p], view.key_end[p])
                             .repeat_interleave(repeats, 1)
                             .permute({1, 2, 0});
      auto scores = at::matmul(q_HQK, k_HKM).to(internal::wide_type(q_NHK)) /
                    std::sqrt(double(q_NHK.size(2)));
      if (weight_MG.defined()) {
        weights.push_back(weight_MG.slice(0, view.key_begin[p], view.key_end[p])
                              .repeat_interleave(repeats, 1)
                              .t()
                              .unsqueeze(1)
                              .to(scores.scalar_type()));
      }
      logits.push_back(bias_P.defined() ? scores + bias_P[p].to(scores.scalar_type()) : scores);
    }
    if (logits.empty() || q_HQK.size(1) == 0) continue;
    auto all = at::cat(logits, 2);
    const int64_t num_queries = all.size(1), num_keys = all.size(2);
    if (num_keys == 0) continue;
    if (view.causal) {
      const auto hidden = at::ones({num_queries, num_keys}, all.options().dtype(at::kBool))
                              .triu(num_keys - num_queries + 1);
      all = at::softmax(all.masked_fill(hidden, -1e30), 2).masked_fill(hidden, 0.0);
    } else {
      all = at::softmax(all, 2);
    }
    if (weight_MG.defined()) all = all * at::cat(weights, 2);
    const auto weight_M = all.mean(at::IntArrayRef{0, 1});
    int64_t key = 0;
    for (int64_t p = view.segment_begin[s]; p < view.segment_begin[s + 1]; ++p) {
      const int64_t end = key + view.key_end[p] - view.key_begin[p];
      shares.narrow(0, p, 1).copy_(weight_M.slice(0, key, end).sum().unsqueeze(0));
      key = end;
    }
  }
  return shares;
}

}  // namespace contexture::model::ops
