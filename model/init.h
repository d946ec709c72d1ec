// Initialisation rules and the declarations that encoder and decoder layers share.
#pragma once
#include <cmath>

#include "model/tower.h"

namespace contexture::model {

// Unit-length rows on average, so that a token's match with itself stands out from the first step.
inline parallel::Init embedding_init(const ModelConfig& config) {
  return parallel::Init::normal(config.init_std > 0 ? config.init_std : 1.0 / std::sqrt(static_cast<double>(config.width)));
}

inline parallel::Init fan_in_init(int64_t fan_in) {
  return parallel::Init::normal(1.0 / std::sqrt(static_cast<double>(fan_in)));
}

// Projections back into the residual stream are scaled down by the number of branches (GPT-2).
inline parallel::Init branch_init(int64_t fan_in, int64_t layers) {
  return parallel::Init::normal(1.0 / std::sqrt(static_cast<double>(fan_in) * 2.0 * static_cast<double>(layers)));
}

template <typename Declare>
SelfAttention self_attention(const ModelConfig& c, int64_t layers, const Declare& declare) {
  const int64_t q = c.heads * c.head_width, kv = c.kv_heads * c.head_width;
  return {declare("attention.norm", {c.width}, parallel::Init::constant(1.0)),
          declare("attention.qkv", {q + 2 * kv, c.width}, fan_in_init(c.width)),
          declare("attention.out", {c.width, q}, branch_init(q, layers)),
          c.heads, c.kv_heads, c.head_width, c.rope_theta, c.norm_eps};
}

template <typename Declare>
FeedForward feed_forward(const ModelConfig& c, int64_t layers, const Declare& declare) {
  return {declare("mlp.norm", {c.width}, parallel::Init::constant(1.0)),
          declare("mlp.in", {2 * c.ffn_width, c.width}, fan_in_init(c.width)),
          declare("mlp.out", {c.width, c.ffn_width}, branch_init(c.ffn_width, layers)), c.norm_eps};
}

}  // namespace contexture::model
