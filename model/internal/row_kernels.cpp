// Each kernel reads its rows once. Blocks of a fixed number of rows are the parallel tasks, so that
// sums over rows do not depend on the number of threads.
#include "model/internal/row_kernels.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/internal/row_loops.h"

namespace contexture::model::ops::internal {
template <typename In>
void rms_norm_forward(int64_t N, int64_t D, const In* x, const Wide<In>* gain, Wide<In> eps, In* y,
                      Wide<In>* inverse) {
  using T = Wide<In>;
  for_each_row(N, D * 2, [=](int64_t, int64_t row) {
    const In* from = x + row * D;
    In* to = y + row * D;
    Vec<T> squares{};
    for_each_vector<T>(D, [&](int64_t c, int64_t n) {
      const Vec<T> v = load_n(from + c, n);
      squares += v * v;
    });
    const T scale = 1 / std::sqrt(sum_lanes<T>(squares) / T(D) + eps);
    inverse[row] = scale;
    for_each_vector<T>(D, [&](int64_t c, int64_t n) {
      store_n(to + c, load_n(from + c, n) * scale * load_n(gain + c, n), n);
    });
  });
}

template <typename In>
void rms_norm_backward(int64_t N, int64_t D, const In* x, const Wide<In>* gain,
                       const Wide<In>* inverse, const In* dy, In* dx, Wide<In>* dgain) {
  using T = Wide<In>;
  std::vector<T> partial(size_t(dgain ? num_blocks(N) * D : 0), T(0));
  T* const partials = partial.data();
  for_each_row(N, D * 4, [=](int64_t block, int64_t row) {
    const In* a = x + row * D;
    const In* d = dy + row * D;
    In* to = dx + row * D;
    T* sums = dgain ? partials + block * D : nullptr;
    const T r = inverse[row];
    Vec<T> product{};
    for_each_vector<T>(D, [&](int64_t c, int64_t n) {
      const Vec<T> xd = load_n(a + c, n) * load_n(d + c, n);
      product += xd * load_n(gain + c, n);
      if (sums) store_n(sums + c, load_n(sums + c, n) + xd * r, n);
    });
    const T along = sum_lanes<T>(product) * r * r * r / T(D);
    for_each_vector<T>(D, [&](int64_t c, int64_t n) {
      store_n(to + c, load_n(d + c, n) * load_n(gain + c, n) * r - load_n(a + c, n) * along, n);
    });
  });
  if (!dgain) return;
  std::fill(dgain, dgain + D, T(0));
  for (int64_t block = 0; block < num_blocks(N); ++block) {
    for (int64_t c = 0; c < D; ++c) dgain[c] += partials[block * D + c];
  }
}

template <typename In>
void swiglu_forward(int64_t N, int64_t F, const In* ab, In* y) {
  using T = Wide<In>;
  for_each_row(N, F * 8, [=](int64_t, int64_t row) {
    const In *gate = ab + row * 2 * F, *up = gate + F;
    for_each_vector<T>(F, [&](int64_t c, int64_t n) {
      const Vec<T> a = load_n(gate + c, n);
      store_n(y + row * F + c, a / (exp_wide(-a) + T(1)) * load_n(up + c, n), n);
    });
  });
}

template <typename In>
void swiglu_backward(int64_t N, int64_t F, const In* ab, const In* dy, In* dab) {
  using T = Wide<In>;
  for_each_row(N, F * 12, [=](int64_t, int64_t row) {
    const In *gate = ab + row * 2 * F, *up = gate + F;
    In *dgate = dab + row * 2 * F, *dup = dgate + F;
    for_each_vector<T>(F, [&](int64_t c, int64_t n) {
      const Vec<T> a = load_n(gate + c, n), b = load_n(up + c, n), d = load_n(dy + row * F + c, n);
      const Vec<T> sigmoid = T(1) / (exp_wide(-a) + T(1));
      const Vec<T> silu = a * sigmoid;
      store_n(dup + c, d * silu, n);
      store_n(dgate + c, d * b * (sigmoid + silu * (T(1) - sigmoid)), n);
    });
  });
}

template <typename In>
void rotary(int64_t N, int64_t L, int64_t heads, int64_t half, const In* x,
            const int64_t* table_row, const Wide<In>* cos, const Wide<In>* sin, Wide<In> sign,
            In* y) {
  using T = Wide<In>;
  for_each_row(N, L * 2, [=](int64_t, int64_t row) {
    const In* from = x + row * L;
    In* to = y + row * L;
    const T* cos_row = cos + table_row[row] * half;
    const T* sin_row = sin + table_row[row] * half;
    for (int64_t h = 0; h < heads; ++h, from += 2 * half, to += 2 * half) {
      for_each_vector<T>(half, [&](int64_t c, int64_t n) {
        const Vec<T> a = load_n(from + c, n), b = load_n(from + half + c, n);
        const Vec<T> cosine = load_n(cos_row + c, n), sine = load_n(sin_row + c, n) * sign;
        store_n(to + c, a * cosine - b * sine, n);
        store_n(to + half + c, b * cosine + a * sine, n);
      });
    }
    std::copy(from, x + (row + 1) * L, to);
  });
}

#define CONTEXTURE_INSTANTIATE(In)                                                               \
  template void rms_norm_forward(int64_t, int64_t, const In*, const Wide<In>*, Wide<In>, In*,    \
                                 Wide<In>*);                                                     \
  template void rms_norm_backward(int64_t, int64_t, const In*, const Wide<In>*, const Wide<In>*, \
                                  const In*, In*, Wide<In>*);                                    \
  template void swiglu_forward(int64_t, int64_t, const In*, In*);                                \
  template void swiglu_backward(int64_t, int64_t, const In*, const In*, In*);                    \
  template void rotary(int64_t, int64_t, int64_t, int64_t, const In*, const int64_t*,            \
                       const Wide<In>*, const Wide<In>*, Wide<In>, In*);
CONTEXTURE_INSTANTIATE(double)
CONTEXTURE_INSTANTIATE(float)
CONTEXTURE_INSTANTIATE(Bf16)

}  // namespace contexture::model::ops::internal
