#include "model/internal/encoder_kernels.h"

#include <cmath>

#include "model/internal/row_loops.h"

namespace contexture::model::ops::internal {
namespace {

// Normalises the D floats of `row`, which the caller has filled, into y.
template <typename In>
CONTEXTURE_INLINE void write_normed(int64_t D, const float* row, const LayerNorm& norm, In* y) {
  Vec<float> total{};
  for_each_vector<float>(D, [&](int64_t c, int64_t n) { total += load_n(row + c, n); });
  const float mean = sum_lanes<float>(total) / float(D);
  Vec<float> squares{};
  for_each_vector<float>(D, [&](int64_t c, int64_t n) {
    Vec<float> d = load_n(row + c, n) - mean;
    if (n < kLanes<float>) {
      for (int64_t i = n; i < kLanes<float>; ++i) d[i] = 0;
    }
    squares += d * d;
  });
  const float scale = 1 / std::sqrt(sum_lanes<float>(squares) / float(D) + norm.eps);
  for_each_vector<float>(D, [&](int64_t c, int64_t n) {
    store_n(
        y + c,
        (load_n(row + c, n) - mean) * scale * load_n(norm.gain + c, n) + load_n(norm.bias + c, n),
        n);
  });
}

struct RowTag;

// x Phi(x), with erf by Abramowitz and Stegun 7.1.26 (absolute error 1.5e-7).
CONTEXTURE_INLINE Vec<float> gelu(Vec<float> x) {
  const Vec<float> z = (x < 0.0f ? -x : x) * 0.70710678118654752f;
  const Vec<float> t = 1.0f / (z * 0.3275911f + 1.0f);
  Vec<float> p = splat(1.061405429f);
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const Vec<float> erf = 1.0f - p * t * exp_wide(-z * z);
  return x * 0.5f * (1.0f + (x < 0.0f ? -erf : erf));
}

}  // namespace

template <typename In>
void embed_rows(int64_t N, int64_t D, const float* words, const float* positions, const float* type,
                const int32_t* ids, const int32_t* position, const LayerNorm& norm, In* y) {
  for_each_row(N, D * 4, [=](int64_t, int64_t row) {
    const float *word = words + ids[row] * D, *place = positions + position[row] * D;
    float* sum = scratch<RowTag, float>(D);
    for_each_vector<float>(D, [&](int64_t c, int64_t n) {
      store_n(sum + c, load_n(word + c, n) + load_n(type + c, n) + load_n(place + c, n), n);
    });
    write_normed(D, sum, norm, y + row * D);
  });
}

template <typename In>
void add_norm_rows(int64_t N, int64_t D, const In* branch, const float* bias, const LayerNorm& norm,
                   In* x) {
  for_each_row(N, D * 4, [=](int64_t, int64_t row) {
    float* sum = scratch<RowTag, float>(D);
    for_each_vector<float>(D, [&](int64_t c, int64_t n) {
      store_n(sum + c,
              load_n(branch + row * D + c, n) + load_n(bias + c, n) + load_n(x + row * D + c, n),
              n);
    });
    write_normed(D, sum, norm, x + row * D);
  });
}

template <typename In>
void add_bias_rows(int64_t N, int64_t D, const float* bias, In* x) {
  for_each_row(N, D, [=](int64_t, int64_t row) {
    In* at = x + row * D;
    for_each_vector<float>(D, [&](int64_t c, int64_t n) {
      store_n(at + c, load_n(at + c, n) + load_n(bias + c, n), n);
    });
  });
}

template <typename In>
void gelu_rows(int64_t N, int64_t D, const float* bias, In* x) {
  for_each_row(N, D * 16, [=](int64_t, int64_t row) {
    In* at = x + row * D;
    for_each_vector<float>(D, [&](int64_t c, int64_t n) {
      store_n(at + c, gelu(load_n(at + c, n) + load_n(bias + c, n)), n);
    });
  });
}

template <typename In>
void pool_rows(int64_t S, int64_t D, const int64_t* begin, bool mean, const In* x, float* y) {
  parallel_tasks(S, begin[S] * D, [=](int64_t s) {
    const int64_t end = mean ? begin[s + 1] : begin[s] + 1;
    for_each_vector<float>(D, [&](int64_t c, int64_t n) {
      Vec<float> total{};
      for (int64_t row = begin[s]; row < end; ++row) total += load_n(x + row * D + c, n);
      store_n(y + s * D + c, total / float(end - begin[s]), n);
    });
  });
}

#define CONTEXTURE_INSTANTIATE(In)                                                               \
  template void embed_rows(int64_t, int64_t, const float*, const float*, const float*,           \
                           const int32_t*, const int32_t*, const LayerNorm&, In*);               \
  template void add_norm_rows(int64_t, int64_t, const In*, const float*, const LayerNorm&, In*); \
  template void add_bias_rows(int64_t, int64_t, const float*, In*);                              \
  template void gelu_rows(int64_t, int64_t, const float*, In*);                                  \
  template void pool_rows(int64_t, int64_t, const int64_t*, bool, const In*, float*);
CONTEXTURE_INSTANTIATE(float)
CONTEXTURE_INSTANTIATE(Bf16)

}  // namespace contexture::model::ops::internal
