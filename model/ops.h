// The few operators that decide the trainer's speed. Everything here works on *packed* rows: the
// tokens of all sequences of a microbatch lie one after another, without padding, and an offset
// table says where each begins. Each operator is differentiable once, in fp64, fp32 and bf16 (bf16
// computes in fp32).
//
// CPU tensors take fused kernels whose results depend neither on the number of threads nor on what
// else is in the batch: every output row and every gradient row is summed in a fixed order. (linear
// is the library's matrix product: there a row's last bit may depend on how many rows are
// multiplied.) Other devices take ATen compositions that keep as little for the backward as the
// kernels, and for attention `padded`; there, gradients of rows that are read several times may be
// summed in any order. The plain compositions in `reference` are the oracle of the tests, and serve
// fp16 on the CPU and meta tensors, on which attention only makes shapes.
//
// N rows (tokens), D model width, H query heads, G key-value heads (H a multiple of G), K head
// width, S sequences, P segments (runs of key rows). All functions throw UserError on mismatched
// shapes.
#pragma once
#include <ATen/ATen.h>

namespace contexture::parallel {
class Communicator;
}

namespace contexture::model::ops {

// y_NO = x_ND w_OD^T. The weight gradient is a product of its own, so that a pipeline can postpone
// it. bf16 on a processor without bf16 instructions multiplies in fp32 (ten times faster there).
at::Tensor linear(const at::Tensor& x_ND, const at::Tensor& w_OD);

// The same where w is a tensor-parallel rank's rows and x is equal on all ranks (Megatron-LM's
// column-parallel linear, arXiv:1909.08053): the gradient of x is summed over the ranks, while the
// weight's is computed. tp null: linear.
at::Tensor column_linear(const at::Tensor& x_ND, const at::Tensor& w_OD,
                         parallel::Communicator* tp);

// x / sqrt(mean(x^2) + eps) * gain, per row.
at::Tensor rms_norm(const at::Tensor& x_ND, const at::Tensor& gain_D, double eps);

// silu(gate) * up, where ab_N2F holds gate in its first F columns and up in its last F.
at::Tensor swiglu(const at::Tensor& ab_N2F);

// Rotary position embedding (RoFormer, arXiv:2104.09864; the half-split layout of GPT-NeoX and
// Llama) of the first `rotated_heads` heads of x_NL (L = all heads * head_width); the remaining
// columns are copied. position_N: int64, any device-local positions, may repeat.
at::Tensor rotary(const at::Tensor& x_NL, const at::Tensor& position_N, int64_t rotated_heads,
                  int64_t head_width, double theta);

// Which key rows each query sequence reads: sequence s owns the query rows [query_begin[s],
// query_begin[s+1]) and reads the segments [segment_begin[s], segment_begin[s+1]), each a run
// [key_begin[p], key_end[p]) of key rows. Several sequences may read the same rows: that is how one
// encoded document serves many inputs. Causal: with the segments of a sequence laid end to end
// (len_k keys, len_q queries), query i sees key j iff j <= i + len_k - len_q. int64 CPU tensors,
// contiguous.
struct Segments {
  at::Tensor query_begin;    // [S + 1]
  at::Tensor segment_begin;  // [S + 1]
  at::Tensor key_begin;      // [P]
  at::Tensor key_end;        // [P]
  bool causal = false;
  int64_t num_sequences() const { return query_begin.numel() - 1; }
  int64_t num_segments() const { return key_begin.numel(); }
};

// Plain self-attention: sequence s reads exactly its own rows. begin_S1: [S + 1] int64 CPU.
Segments self_segments(const at::Tensor& begin_S1, bool causal);

// softmax(q k^T * scale + bias) v per sequence and head, scale = 1/sqrt(K); GQA: query head h reads
// key head h / (H / G). bias_P (optional, fp32 or wider) is added to all logits of segment p, for
// every head, and gets a gradient (sum over the segment's logits in fp32 or wider). A sequence
// without any key gives zeros. q_NHK [Nq, H, K], k_MGK and v_MGK [Nk, G, K] may be strided views
// with a contiguous last dimension (such as slices of one fused qkv projection). Returns [Nq, H, K]
// contiguous.
at::Tensor attention(const at::Tensor& q_NHK, const at::Tensor& k_MGK, const at::Tensor& v_MGK,
                     const Segments& segments, const at::Tensor& bias_P = {});

// The share of attention each segment receives, averaged over heads and over the sequence's
// queries: [P], fp32 or wider. No gradient. weight_MG (optional): what a key's attention counts,
// else 1. For answers with sources, and for attention distillation.
at::Tensor attention_share(const at::Tensor& q_NHK, const at::Tensor& k_MGK,
                           const Segments& segments, const at::Tensor& bias_P = {},
                           const at::Tensor& weight_MG = {});

namespace reference {  // plain ATen compositions; any device, autograd of any order; slow and
                       // obviously right
at::Tensor rms_norm(const at::Tensor& x_ND, const at::Tensor& gain_D, double eps);
at::Tensor swiglu(const at::Tensor& ab_N2F);
at::Tensor rotary(const at::Tensor& x_NL, const at::Tensor& position_N, int64_t rotated_heads,
                  int64_t head_width, double theta);
at::Tensor attention(const at::Tensor& q_NHK, const at::Tensor& k_MGK, const at::Tensor& v_MGK,
                     const Segments& segments, const at::Tensor& bias_P);
}  // namespace reference

namespace padded {  // any device: few, large products over padded sequences
at::Tensor attention(const at::Tensor& q_NHK, const at::Tensor& k_MGK, const at::Tensor& v_MGK,
                     const Segments& segments, const at::Tensor& bias_P);
}  // namespace padded
}  // namespace contexture::model::ops
