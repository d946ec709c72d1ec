// Loops over rows and over a row's vectors, shared by the CPU kernels. Only for sources that are
// compiled for this processor.
#pragma once
#include <algorithm>
#include <cstdint>

#include "model/internal/simd.h"
#include "model/internal/threads.h"

namespace contexture::model::ops::internal {

inline constexpr int64_t kBlockRows = 64;

inline int64_t num_blocks(int64_t N) { return (N + kBlockRows - 1) / kBlockRows; }

// run(block, row) for all rows, a block per task.
template <typename Run>
void for_each_row(int64_t N, int64_t work_per_row, const Run& run) {
  parallel_tasks(num_blocks(N), N * work_per_row, [&](int64_t block) {
    const int64_t end = std::min(N, (block + 1) * kBlockRows);
    for (int64_t n = block * kBlockRows; n < end; ++n) run(block, n);
  });
}

// step(column, lanes) for all columns of a row: whole vectors, then the rest.
template <typename T, typename Step>
CONTEXTURE_INLINE void for_each_vector(int64_t n, const Step& step) {
  int64_t c = 0;
  for (; c + kLanes<T> <= n; c += kLanes<T>) step(c, int64_t(kLanes<T>));
  if (c < n) step(c, n - c);
}
template <typename In>
CONTEXTURE_INLINE Vec<Wide<In>> load_n(const In* p, int64_t n) {
  return n == kLanes<Wide<In>> ? load_wide(p) : load_some(p, n);
}
template <typename In>
CONTEXTURE_INLINE void store_n(In* p, Vec<Wide<In>> v, int64_t n) {
  if (n == kLanes<Wide<In>>) {
    store_wide(p, v);
  } else {
    store_some(p, v, n);
  }
}

}  // namespace contexture::model::ops::internal
