// Initialisation rules and the declarations that encoder and decoder layers share.
#pragma once
#include <cmath>

#include "model/tower.h"

namespace contexture::model {

// Unit-length rows on average, so that a token's match with itself stands out from the first step.
inline parallel::Init embedding_init(const ModelConfig& config) {
  return parallel::Init::normal(
      config.init_std > 0 ? config.init_std : 1.0 / std::sqrt(static_cast<double>(config.width)));
}

inline parallel::Init fan_in_init(int64_t fan_in) {
  return parallel::Init::normal(1.0 / std::sqrt(static_cast<double>(fan_in)));
}

// Projections back into the residual stream are scaled down by the number of branches (GPT-2).
inline parallel::Init branch_init(int64_t fan_in, int64_t layers) {
  return parallel::Init::normal(
      1.0 / std::sqrt(static_cast<double>(fan_in) * 2.0 * static_cast<double>(layers)));
}

// Splits over tensor-parallel ranks. Heads go in whole heads, so that a rank's query heads read its
// own key heads.
inline parallel::Split head_rows(std::vector<int64_t> runs, int64_t head_width) {
  return {0, std::move(runs), head_width};
}

template <typename Declare>
SelfAttention self_attention(const ModelConfig& c, int64_t layers,
                             const tensor_parallel::Group& group, const Declare& declare) {
  const int64_t q = c.heads * c.head_width, kv = c.kv_heads * c.head_width,
                ranks = group.ranks == nullptr ? 1 : group.ranks->size();
  return {declare("attention.norm", {c.width}, parallel::Init::constant(1.0), {}),
          declare("attention.qkv", {q + 2 * kv, c.width}, fan_in_init(c.width),
                  head_rows({q, kv, kv}, c.head_width)),
          declare("attention.out", {c.width, q}, branch_init(q, layers), {1, {q}, c.head_width}),
          c.heads / ranks,
          c.kv_heads / ranks,
          c.head_width,
          c.rope_theta,
          c.norm_eps,
          group};
}

template <typename Declare>
FeedForward feed_forward(const ModelConfig& c, int64_t layers, const tensor_parallel::Group& group,
                         const Declare& declare) {
  return {declare("mlp.norm", {c.width}, parallel::Init::constant(1.0), {}),
          declare("mlp.in", {2 * c.ffn_width, c.width}, fan_in_init(c.width),
                  {0, {c.ffn_width, c.ffn_width}}),
          declare("mlp.out", {c.width, c.ffn_width}, branch_init(c.ffn_width, layers),
                  {1, {c.ffn_width}}),
          c.norm_eps, group};
}

}  // namespace contexture::model
