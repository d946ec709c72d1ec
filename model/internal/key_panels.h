// Key and value rows in the form the tile products want, and the walk over a sequence's keys in tiles.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "model/internal/attention_kernels.h"
#include "model/internal/threads.h"
#include "model/internal/tile_gemm.h"

namespace contexture::model::ops::internal {

inline constexpr int64_t kRowBlock = 48;   // query rows (times heads of a group) worked on at once
inline constexpr int64_t kFewRows = 8;     // up to here, repacking keys costs more than it saves
inline constexpr int64_t kTileKeys = 256;  // keys worked on at once
inline constexpr int64_t kTileStride = kTileKeys + 16;  // a panel may overrun the last key

// Head rows as a matrix: row m of group g at at(m, g), `stride` elements apart, readable up to the
// padded width.
template <typename T>
struct RowsView {
  const T* data;
  int64_t stride, group_stride;
  const T* at(int64_t m, int64_t g) const { return data + m * stride + g * group_stride; }
};

// Transposed rows: element (column c of row m of group g) at at(m, g)[c * stride].
template <typename T>
struct ColumnsView {
  const T* data;
  int64_t stride, group_stride;
  const T* at(int64_t m, int64_t g) const { return data + g * group_stride + m; }
};

inline constexpr int64_t kCopyRows = 64;

// rows [M, G, K] -> [G, K, M + overrun], in `memory`.
template <typename In>
ColumnsView<Wide<In>> transpose_rows(const In* rows, int64_t row_stride, int64_t M, int64_t G,
                                     int64_t K, std::unique_ptr<Wide<In>[]>& memory) {
  using T = Wide<In>;
  // An odd number of cache lines from column to column keeps them in different cache sets.
  const int64_t line = 64 / int64_t(sizeof(T));
  const int64_t stride = (round_up(M + kPanel<T>, line) / line | 1) * line;
  memory.reset(new T[size_t(G * K * stride)]);
  T* out = memory.get();
  const int64_t blocks = (M + kCopyRows - 1) / kCopyRows;
  parallel_tasks(G * blocks, M * G * K, [&](int64_t task) {
    const int64_t g = task / blocks, begin = task % blocks * kCopyRows;
    const int64_t end = std::min(M, begin + kCopyRows);
    for (int64_t c = 0; c < K; ++c) {
      const In* from = rows + g * K + c;
      T* to = out + (g * K + c) * stride;
      for (int64_t m = begin; m < end; ++m) to[m] = to_wide(from[m * row_stride]);
      if (end == M) std::fill(to + M, to + stride, T(0));
    }
  });
  return {out, stride, K * stride};
}

// The rows themselves where they already are wide and need no padding, else a copy in `memory`.
template <typename In>
RowsView<Wide<In>> wide_rows(const In* rows, int64_t row_stride, int64_t M, int64_t G, int64_t K,
                             std::unique_ptr<Wide<In>[]>& memory) {
  using T = Wide<In>;
  if constexpr (std::is_same_v<In, T>) {
    if (K % kPanel<T> == 0) return {rows, row_stride, K};
  }
  const int64_t width = round_up(K, kPanel<T>);
  memory.reset(new T[size_t(M * G * width)]);
  T* out = memory.get();
  const int64_t blocks = (M + kCopyRows - 1) / kCopyRows;
  parallel_tasks(blocks, M * G * K, [&](int64_t block) {
    const int64_t end = std::min(M, (block + 1) * kCopyRows);
    for (int64_t m = block * kCopyRows; m < end; ++m) {
      for (int64_t g = 0; g < G; ++g) {
        const In* from = rows + m * row_stride + g * K;
        T* to = out + (m * G + g) * width;
        for (int64_t c = 0; c < K; ++c) to[c] = to_wide(from[c]);
        std::fill(to + K, to + width, T(0));
      }
    }
  });
  return {out, G * width, width};
}

// A run of key rows inside a tile: rows [row, row + count) at the tile's columns from `column` on.
struct Chunk {
  int64_t row, count, column, segment;
};

// Calls visit(chunks, num_chunks, first_key, num_keys) for each tile of up to kTileKeys of the first
// `limit` keys of sequence s, in order.
template <typename T, typename Visit>
void for_each_tile(const SegmentTable<T>& table, int64_t s, int64_t limit, const Visit& visit) {
  constexpr int64_t kMaxChunks = 64;
  Chunk chunks[kMaxChunks];
  int64_t num_chunks = 0, first_key = 0, filled = 0;
  const auto flush = [&] {
    if (filled > 0) visit(chunks, num_chunks, first_key, filled);
    first_key += filled;
    num_chunks = filled = 0;
  };
  for (int64_t p = table.segment_begin[s]; p < table.segment_begin[s + 1]; ++p) {
    for (int64_t row = table.key_begin[p]; row < table.key_end[p];) {
      const int64_t count = std::min({table.key_end[p] - row, kTileKeys - filled,
                                      limit - first_key - filled});
      if (count <= 0) break;
      chunks[num_chunks++] = {row, count, filled, p};
      filled += count;
      row += count;
      if (filled == kTileKeys || num_chunks == kMaxChunks) flush();
    }
  }
  flush();
}

// Number of keys that query i of sequence s sees.
template <typename T>
int64_t visible_keys(const SegmentTable<T>& table, int64_t i, int64_t num_queries, int64_t num_keys) {
  if (!table.causal) return num_keys;
  return std::clamp<int64_t>(i + 1 + num_keys - num_queries, 0, num_keys);
}

// scores[r, column] = rows[r] . keys[column] for one tile. The columns past the last key hold other
// keys' products.
template <typename T>
void tile_scores(const Chunk* chunks, int64_t num_chunks, const ColumnsView<T>& keys, int64_t g,
                 int64_t num_rows, const T* rows, int64_t row_stride, int64_t K, T* scores) {
  for (int64_t i = 0; i < num_chunks; ++i) {
    const Chunk& c = chunks[i];
    tile_gemm<T>(num_rows, c.count, K, rows, row_stride, 1, keys.at(c.row, g), keys.stride,
                 scores + c.column, kTileStride, false);
  }
}

template <typename In>
Wide<In> dot(const Wide<In>* a, const In* b, int64_t n) {
  using T = Wide<In>;
  Vec<T> total{};
  int64_t c = 0;
  for (; c + kLanes<T> <= n; c += kLanes<T>) total += load(a + c) * load_wide(b + c);
  T rest = sum_lanes<T>(total);
  for (; c < n; ++c) rest += a[c] * to_wide(b[c]);
  return rest;
}

// The same for few rows: reads each key once, where it lies.
template <typename In>
void few_scores(const Chunk* chunks, int64_t num_chunks, const In* keys, int64_t key_stride,
                int64_t num_rows, const Wide<In>* rows, int64_t row_stride, int64_t K,
                Wide<In>* scores) {
  for (int64_t i = 0; i < num_chunks; ++i) {
    const In* key = keys + chunks[i].row * key_stride;
    for (int64_t j = 0; j < chunks[i].count; ++j, key += key_stride) {
      for (int64_t r = 0; r < num_rows; ++r) {
        scores[r * kTileStride + chunks[i].column + j] = dot(rows + r * row_stride, key, K);
      }
    }
  }
}

// The bias of each column of a tile, in `bias` [kTileStride]; null if there is none.
template <typename T>
const T* tile_bias(const SegmentTable<T>& table, const Chunk* chunks, int64_t num_chunks, T* bias) {
  if (!table.bias) return nullptr;
  for (int64_t i = 0; i < num_chunks; ++i) {
    const Chunk& c = chunks[i];
    std::fill(bias + c.column, bias + c.column + c.count, table.bias[c.segment]);
  }
  const Chunk& last = chunks[num_chunks - 1];
  std::fill(bias + last.column + last.count, bias + kTileStride, T(0));
  return bias;
}

}  // namespace contexture::model::ops::internal
