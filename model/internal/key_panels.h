// Key and value rows in the form the tile products want, and the walk over a sequence's keys in
// tiles.
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

// A run of key rows inside a tile: rows [row, row + count) at the tile's columns from `column` on.
struct Chunk {
  int64_t row, count, column, segment;
};

// Calls visit(chunks, num_chunks, first_key, num_keys) for each tile of up to kTileKeys of the
// first `limit` keys of sequence s, in order.
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
      const int64_t count =
          std::min({table.key_end[p] - row, kTileKeys - filled, limit - first_key - filled});
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
int64_t visible_keys(const SegmentTable<T>& table, int64_t i, int64_t num_queries,
                     int64_t num_keys) {
  if (!table.causal) return num_keys;
  return std::clamp<int64_t>(i + 1 + num_keys - num_queries, 0, num_keys);
}

// Room for the operands of one tile, which are copied into panels: contiguous, whatever the strides
// of the rows they come from.
template <typename T>
constexpr int64_t tile_room(int64_t K) {
  return round_up(K, kPanel<T>) * kTileStride;
}

// Columns of keys as panels of kPanel keys, each [K, kPanel]: the right side of rows . keys.
template <typename T>
void pack_columns(const Chunk* chunks, int64_t num_chunks, const ColumnsView<T>& keys, int64_t g,
                  int64_t K, T* panels) {
  constexpr int64_t P = kPanel<T>;
  const Chunk& last = chunks[num_chunks - 1];
  const int64_t size = last.column + last.count;
  if (size % P != 0) std::fill_n(panels + size / P * P * K, P * K, T(0));
  for (int64_t i = 0; i < num_chunks; ++i) {
    const Chunk& chunk = chunks[i];
    for (int64_t j = 0; j < chunk.count;) {
      const int64_t column = chunk.column + j, n = std::min(P - column % P, chunk.count - j);
      const T* from = keys.at(chunk.row + j, g);
      T* to = panels + column / P * P * K + column % P;
      if (n == P) {
        for (int64_t c = 0; c < K; ++c) {
          store(to + c * P, load(from + c * keys.stride));
          store(to + c * P + kLanes<T>, load(from + c * keys.stride + kLanes<T>));
        }
      } else {
        for (int64_t c = 0; c < K; ++c) std::copy_n(from + c * keys.stride, n, to + c * P);
      }
      j += n;
    }
  }
}

// Rows of keys (of one head) as panels of kPanel columns, each [kTileStride, kPanel]: the right
// side of weights . keys.
template <typename In>
void pack_rows(const Chunk* chunks, int64_t num_chunks, const In* rows, int64_t row_stride,
               int64_t K, Wide<In>* panels) {
  using T = Wide<In>;
  constexpr int64_t P = kPanel<T>;
  for (int64_t i = 0; i < num_chunks; ++i) {
    const In* from = rows + chunks[i].row * row_stride;
    T* to = panels + chunks[i].column * P;
    for (int64_t j = 0; j < chunks[i].count; ++j, from += row_stride, to += P) {
      int64_t c = 0;
      for (; c + P <= K; c += P) {
        store(to + c * kTileStride, load_wide(from + c));
        store(to + c * kTileStride + kLanes<T>, load_wide(from + c + kLanes<T>));
      }
      for (int64_t rest = 0; c < K && rest < P; ++rest) {
        to[c * kTileStride + rest] = c + rest < K ? to_wide(from[c + rest]) : T(0);
      }
    }
  }
}

// scores[r, column] = rows[r] . keys[column] for a tile packed by pack_columns.
template <typename T>
void tile_scores(int64_t num_rows, int64_t num_keys, int64_t K, const T* rows, int64_t row_stride,
                 const T* panels, T* scores) {
  tile_gemm<T>(num_rows, num_keys, K, rows, row_stride, 1, panels, K * kPanel<T>, kPanel<T>, scores,
               kTileStride, false);
}

// sums[r] += scores[r, column] * keys[column] for a tile packed by pack_rows.
template <typename T>
void add_weighted_rows(int64_t num_rows, int64_t num_keys, int64_t width, const T* scores,
                       const T* panels, T* sums) {
  tile_gemm<T>(num_rows, width, num_keys, scores, kTileStride, 1, panels, kTileStride * kPanel<T>,
               kPanel<T>, sums, width, true);
}

// sums[column of the chunk] += scores[r, column] * rows[r]; rows [num_rows, width].
template <typename T>
void add_to_keys(const Chunk& chunk, int64_t num_rows, int64_t width, const T* scores,
                 const T* rows, T* sums, int64_t stride) {
  tile_gemm<T>(chunk.count, width, num_rows, scores + chunk.column, 1, kTileStride, rows, kPanel<T>,
               width, sums, stride, true);
}

// Remembers which tile is packed, so that it is not packed again for the next block of rows.
struct PackedTile {
  int64_t first_key = -1, size = -1;
  bool replace(int64_t new_first_key, int64_t new_size) {
    const bool stale = first_key != new_first_key || size != new_size;
    first_key = new_first_key, size = new_size;
    return stale;
  }
};

template <typename T>
double row_sum(const T* x, int64_t n) {
  Vec<T> total{};
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) total += load(x + j);
  double rest = double(sum_lanes<T>(total));
  for (; j < n; ++j) rest += double(x[j]);
  return rest;
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
