// CPU kernels of BERT's layers, row by row, in plain pointers: each reads and writes its rows once.
// In is float or Bf16; biases, norms and sums are float. Rows are contiguous.
#pragma once
#include <cstdint>

#include "model/internal/simd.h"

namespace contexture::model::ops::internal {

struct LayerNorm {
  const float *gain, *bias;  // [D]
  float eps;
};

// y [N, D] = norm(words[ids[n]] + positions[position[n]] + type).
template <typename In>
void embed_rows(int64_t N, int64_t D, const float* words, const float* positions, const float* type,
                const int32_t* ids, const int32_t* position, const LayerNorm& norm, In* y);
// x [N, D] = norm(x + bias + branch), in place.
template <typename In>
void add_norm_rows(int64_t N, int64_t D, const In* branch, const float* bias, const LayerNorm& norm,
                   In* x);
// x [N, D] += bias.
template <typename In>
void add_bias_rows(int64_t N, int64_t D, const float* bias, In* x);
// x [N, D] = gelu(x + bias), x Phi(x) to 2e-7.
template <typename In>
void gelu_rows(int64_t N, int64_t D, const float* bias, In* x);
// y [S, D] = the mean of rows begin[s]..begin[s + 1] of x, or the first of them.
template <typename In>
void pool_rows(int64_t S, int64_t D, const int64_t* begin, bool mean, const In* x, float* y);

}  // namespace contexture::model::ops::internal
