// C (+)= A B for one thread and matrices that fit its cache. Each element of C is one chain of
// fused multiply-adds over k = 0, 1, ..., so a row's result depends on neither its neighbours nor
// the sizes.
#pragma once
#include "model/internal/simd.h"

namespace contexture::model::ops::internal {

// Columns of C come in panels of this many: N is rounded up to it, and B and C must have room for
// that.
template <typename T>
inline constexpr int64_t kPanel = 2 * kLanes<T>;

template <typename T, int kRows>
CONTEXTURE_INLINE void tile_panel(int64_t K, const T* a, int64_t a_row, int64_t a_k, const T* b,
                                  int64_t b_k, T* c, int64_t c_row, bool accumulate) {
  Vec<T> left[kRows], right[kRows];
  for (int r = 0; r < kRows; ++r) {
    left[r] = accumulate ? load(c + r * c_row) : Vec<T>{};
    right[r] = accumulate ? load(c + r * c_row + kLanes<T>) : Vec<T>{};
  }
  for (int64_t k = 0; k < K; ++k) {
    const Vec<T> b0 = load(b + k * b_k), b1 = load(b + k * b_k + kLanes<T>);
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> x = splat(a[r * a_row + k * a_k]);
      left[r] += x * b0;
      right[r] += x * b1;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    store(c + r * c_row, left[r]);
    store(c + r * c_row + kLanes<T>, right[r]);
  }
}

// A is M x K with element (m, k) at a[m * a_row + k * a_k]. Panel p of B begins at b + p * b_panel,
// its rows are b_k apart; rows of C are c_row apart.
template <typename T>
inline void tile_gemm(int64_t M, int64_t N, int64_t K, const T* a, int64_t a_row, int64_t a_k,
                      const T* b, int64_t b_panel, int64_t b_k, T* c, int64_t c_row,
                      bool accumulate) {
  for (int64_t n = 0; n < N; n += kPanel<T>, b += b_panel, c += kPanel<T>) {
    int64_t m = 0;
    for (; m + 6 <= M; m += 6) {
      tile_panel<T, 6>(K, a + m * a_row, a_row, a_k, b, b_k, c + m * c_row, c_row, accumulate);
    }
    const T* a_rest = a + m * a_row;
    T* c_rest = c + m * c_row;
    switch (M - m) {
      case 5:
        tile_panel<T, 5>(K, a_rest, a_row, a_k, b, b_k, c_rest, c_row, accumulate);
        break;
      case 4:
        tile_panel<T, 4>(K, a_rest, a_row, a_k, b, b_k, c_rest, c_row, accumulate);
        break;
      case 3:
        tile_panel<T, 3>(K, a_rest, a_row, a_k, b, b_k, c_rest, c_row, accumulate);
        break;
      case 2:
        tile_panel<T, 2>(K, a_rest, a_row, a_k, b, b_k, c_rest, c_row, accumulate);
        break;
      case 1:
        tile_panel<T, 1>(K, a_rest, a_row, a_k, b, b_k, c_rest, c_row, accumulate);
        break;
    }
  }
}

}  // namespace contexture::model::ops::internal
