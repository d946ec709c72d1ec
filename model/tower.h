// The encoder side: embedding, encoder layers, pooling. A tower is a run of these blocks over one
// kind of sequence (documents, queries, or question-joined documents); towers share parameters by
// using the same prefix.
#pragma once
#include "model/batch.h"
#include "model/config.h"
#include "model/tensor_parallel.h"
#include "parallel/block.h"

namespace contexture::model {

// Tokens and patches to rows: wire `tower`.h.0 [N, D]. role: name of a learned vector added to
// every row; empty: none.
class Embed : public parallel::Block {
 public:
  Embed(parallel::ParameterStore& store, const ModelConfig& config, const std::string& tower,
        const std::string& role);
  parallel::Tensors forward(const parallel::Tensors& inputs,
                            const parallel::Pass& pass) const override;
  std::vector<parallel::WireShape> shapes(const parallel::Pass& pass) const override;
  double forward_flops(const parallel::Pass& pass) const override;
  bool by_rows() const override { return tower_ == "dec"; }

 private:
  std::string tower_;
  tensor_parallel::Group group_;
  const parallel::Parameter *token_, *patch_, *patch_position_, *shift_ = nullptr, *role_ = nullptr;
};

// Self-attention shared by encoder and decoder layers: x + out(attention(rotary(qkv(norm(x))))).
// Tensor-parallel ranks have a share of the heads each.
struct SelfAttention {
  const parallel::Parameter *norm, *qkv, *out;
  int64_t heads, kv_heads, head_width;  // of this rank
  double rope_theta, eps;
  tensor_parallel::Group group;
  // Fresh queries, keys and values of x_ND, rotated: views of one tensor, [N, H, K], [N, G, K], [N,
  // G, K].
  std::array<at::Tensor, 3> project(const at::Tensor& x_ND, const at::Tensor& position_N) const;
  at::Tensor finish(const at::Tensor& attended_NHK) const;  // [N, D], without the residual
};

// x + out(swiglu(in(norm(x)))).
struct FeedForward {
  const parallel::Parameter *norm, *in, *out;
  double eps;
  tensor_parallel::Group group;
  at::Tensor branch(const at::Tensor& x_ND, int64_t num_rows) const;  // without the residual
};

// Bidirectional encoder layer: wire `tower`.h.{i} to `tower`.h.{i+1}.
class EncoderLayer : public parallel::Block {
 public:
  EncoderLayer(parallel::ParameterStore& store, const ModelConfig& config, const std::string& tower,
               const std::string& prefix, int64_t index);
  parallel::Tensors forward(const parallel::Tensors& inputs,
                            const parallel::Pass& pass) const override;
  std::vector<parallel::WireShape> shapes(const parallel::Pass& pass) const override;
  double forward_flops(const parallel::Pass& pass) const override;

 private:
  std::string tower_;
  int64_t heads_width_;  // of all ranks' query heads together
  double dropout_;
  SelfAttention attention_;
  FeedForward mlp_;
};

// Final norm: `tower`.h.{L} to `tower`.states.
class FinalNorm : public parallel::Block {
 public:
  FinalNorm(parallel::ParameterStore& store, const ModelConfig& config, const std::string& in,
            const std::string& out, const std::string& parameter);
  parallel::Tensors forward(const parallel::Tensors& inputs,
                            const parallel::Pass& pass) const override;
  std::vector<parallel::WireShape> shapes(const parallel::Pass& pass) const override;
  bool by_rows() const override { return tower_ == "dec"; }

 private:
  std::string tower_;
  tensor_parallel::Group group_;
  const parallel::Parameter* gain_;
  double eps_;
};

// States to one unit-length retrieval embedding a sequence: `tower`.states to `tower`.embedding [S,
// E], fp32 or wider.
class Pool : public parallel::Block {
 public:
  Pool(parallel::ParameterStore& store, const ModelConfig& config, const std::string& tower,
       const std::string& prefix);
  parallel::Tensors forward(const parallel::Tensors& inputs,
                            const parallel::Pass& pass) const override;
  std::vector<parallel::WireShape> shapes(const parallel::Pass& pass) const override;
  double forward_flops(const parallel::Pass& pass) const override;

 private:
  std::string tower_;
  ModelConfig config_;
  const parallel::Parameter *plain_, *patch_ = nullptr;
};

// Used by the decoder and by published encoders too.
namespace layers {
// Each sequence's mean state: [N, D] to [S, D], fp32 or wider. Row by row into its sequence: the
// order of the sum does not depend on what else is in the batch.
at::Tensor sequence_means(const at::Tensor& states_ND, const parallel::Pass& pass,
                          const std::string& tower);
at::Tensor unit_length(const at::Tensor& rows_SE);  // each row, over its Euclidean norm
// Multiply-adds x 2 of attention: each query row with each key row it may read, for `width`
// numbers, twice.
double attention_flops(const parallel::Pass& pass, const std::string& segments, int64_t width,
                       bool causal);
// The shape of a tower's rows (this rank's, if shared out), in the dtype of `like`.
std::vector<parallel::WireShape> rows(const parallel::Pass& pass, const std::string& tower,
                                      const parallel::Parameter& like, int64_t width,
                                      const tensor_parallel::Group& group);
at::Tensor dropout(const at::Tensor& branch_ND, double p, const parallel::Pass& pass,
                   const std::string& tower, const std::string& place,
                   const tensor_parallel::Group& group);
}  // namespace layers

}  // namespace contexture::model
