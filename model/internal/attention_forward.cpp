// Forward pass: tiles of keys with a running maximum and sum (FlashAttention, arXiv:2205.14135).
#include <cmath>
#include <limits>
#include <vector>

#include "model/internal/key_panels.h"

namespace contexture::model::ops::internal {
namespace {

constexpr int64_t kTaskRows = 10 * kRowBlock;  // rows of a sequence that one task works on

struct ForwardTag;

// Running state of a block of rows.
template <typename T>
struct Block {
  T *q, *scores, *out, *max, *sum, *bias, *keys,
      *values;  // [rows, width], [rows, kTileStride], [rows, width], ...

  Block(int64_t K, int64_t width) {
    const int64_t rows = kRowBlock, room = tile_room<T>(K);
    T* p =
        scratch<ForwardTag, T>(2 * rows * width + (rows + 1) * kTileStride + 2 * room + 2 * rows);
    q = p, p += rows * width;
    out = p, p += rows * width;
    scores = p, p += rows * kTileStride;
    bias = p, p += kTileStride;
    keys = p, p += room;
    values = p, p += room;
    max = p, p += rows;
    sum = p;
  }
};

// Scores to weights exp(score - max) for the first n columns of a row, the others up to `columns`
// to 0; updates max and sum and rescales what out holds already.
template <typename T>
void softmax_row(T* scores, int64_t n, int64_t columns, const T* bias, int64_t width, T* out,
                 T* max, T* sum) {
  constexpr T kNone = -std::numeric_limits<T>::infinity();
  if (n <= 0) {
    std::fill(scores, scores + columns, T(0));
    return;
  }
  const int64_t padded = round_up(n, kLanes<T>);
  std::fill(scores + n, scores + padded, kNone);
  Vec<T> top = splat(*max);
  for (int64_t j = 0; j < padded; j += kLanes<T>) {
    Vec<T> x = load(scores + j);
    if (bias) {
      x += load(bias + j);
      store(scores + j, x);
    }
    top = x > top ? x : top;
  }
  T new_max = top[0];
  for (int i = 1; i < kLanes<T>; ++i) new_max = top[i] > new_max ? top[i] : new_max;
  Vec<T> total{};
  for (int64_t j = 0; j < padded; j += kLanes<T>) {
    const Vec<T> weight = exp_wide(load(scores + j) - new_max);
    total += weight;
    store(scores + j, weight);
  }
  if (*max == kNone) {
    *sum = sum_lanes<T>(total);
  } else {
    const T shrink = std::exp(*max - new_max);
    *sum = *sum * shrink + sum_lanes<T>(total);
    for (int64_t c = 0; c < width; ++c) out[c] *= shrink;
  }
  *max = new_max;
  std::fill(scores + n, scores + std::max(padded, columns), T(0));
}

template <typename In>
void load_queries(const AttentionInputs<In>& in, int64_t first_row, int64_t num_rows, int64_t g,
                  int64_t query_begin, int64_t width, Wide<In>* to) {
  const int64_t R = in.H / in.G;
  for (int64_t r = 0; r < num_rows; ++r, to += width) {
    const int64_t row = first_row + r;
    const In* from = in.q + (query_begin + row / R) * in.q_stride + (g * R + row % R) * in.K;
    for (int64_t c = 0; c < in.K; ++c) to[c] = to_wide(from[c]) * in.scale;
    std::fill(to + in.K, to + width, Wide<In>(0));
  }
}

// Divides by the sums and writes rows out.
template <typename In>
void store_block(const AttentionInputs<In>& in, const Block<Wide<In>>& block, int64_t first_row,
                 int64_t num_rows, int64_t g, int64_t query_begin, int64_t width, In* out,
                 Wide<In>* lse) {
  const int64_t R = in.H / in.G;
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t row = first_row + r;
    const int64_t index = (query_begin + row / R) * in.H + g * R + row % R;
    const bool none = block.sum[r] == 0;
    const Wide<In> inverse = none ? Wide<In>(0) : 1 / block.sum[r];
    const Wide<In>* from = block.out + r * width;
    for (int64_t c = 0; c < in.K; ++c) from_wide(from[c] * inverse, out + index * in.K + c);
    lse[index] = none ? Wide<In>(0) : block.max[r] + std::log(block.sum[r]);
  }
}

template <typename T>
void clear(const Block<T>& block, int64_t num_rows, int64_t width) {
  std::fill(block.out, block.out + num_rows * width, T(0));
  std::fill(block.max, block.max + num_rows, -std::numeric_limits<T>::infinity());
  std::fill(block.sum, block.sum + num_rows, T(0));
}

// Many rows: tile products on repacked keys and values.
template <typename In>
void many_rows(const AttentionInputs<In>& in, const ColumnsView<Wide<In>>& keys, int64_t s,
               int64_t g, int64_t begin, int64_t end, In* out, Wide<In>* lse) {
  using T = Wide<In>;
  const auto& table = in.table;
  const int64_t R = in.H / in.G, width = round_up(in.K, kPanel<T>);
  const int64_t num_queries = table.queries(s), num_keys = table.keys(s);
  const Block<T> block(in.K, width);
  PackedTile packed;
  for (int64_t first = begin; first < end; first += kRowBlock) {
    const int64_t rows = std::min(kRowBlock, end - first);
    load_queries(in, first, rows, g, table.query_begin[s], width, block.q);
    clear(block, rows, width);
    const int64_t limit = visible_keys(table, (first + rows - 1) / R, num_queries, num_keys);
    for_each_tile(
        table, s, limit, [&](const Chunk* chunks, int64_t n, int64_t first_key, int64_t size) {
          if (packed.replace(first_key, size)) {
            pack_columns(chunks, n, keys, g, in.K, block.keys);
            pack_rows(chunks, n, in.v + g * in.K, in.v_stride, in.K, block.values);
          }
          tile_scores(rows, size, in.K, block.q, width, block.keys, block.scores);
          const T* bias = tile_bias(table, chunks, n, block.bias);
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t visible = visible_keys(table, (first + r) / R, num_queries, num_keys);
            softmax_row(block.scores + r * kTileStride, std::min(size, visible - first_key), size,
                        bias, width, block.out + r * width, block.max + r, block.sum + r);
          }
          add_weighted_rows(rows, size, width, block.scores, block.values, block.out);
        });
    store_block(in, block, first, rows, g, table.query_begin[s], width, out, lse);
  }
}

// Few rows, as in decoding: reads each key and value once, where it lies.
template <typename In>
void few_rows(const AttentionInputs<In>& in, int64_t s, int64_t g, In* out, Wide<In>* lse) {
  using T = Wide<In>;
  const auto& table = in.table;
  const int64_t R = in.H / in.G, width = round_up(in.K, kPanel<T>);
  const int64_t num_queries = table.queries(s), num_keys = table.keys(s), rows = num_queries * R;
  const Block<T> block(in.K, width);
  load_queries(in, 0, rows, g, table.query_begin[s], width, block.q);
  clear(block, rows, width);
  const int64_t limit = visible_keys(table, num_queries - 1, num_queries, num_keys);
  for_each_tile(
      table, s, limit, [&](const Chunk* chunks, int64_t n, int64_t first_key, int64_t size) {
        few_scores(chunks, n, in.k + g * in.K, in.k_stride, rows, block.q, width, in.K,
                   block.scores);
        const T* bias = tile_bias(table, chunks, n, block.bias);
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t visible = visible_keys(table, r / R, num_queries, num_keys);
          softmax_row(block.scores + r * kTileStride, std::min(size, visible - first_key), size,
                      bias, width, block.out + r * width, block.max + r, block.sum + r);
        }
        for (int64_t i = 0; i < n; ++i) {
          const In* value = in.v + chunks[i].row * in.v_stride + g * in.K;
          for (int64_t j = 0; j < chunks[i].count; ++j, value += in.v_stride) {
            for (int64_t r = 0; r < rows; ++r) {
              const T weight = block.scores[r * kTileStride + chunks[i].column + j];
              T* to = block.out + r * width;
              for (int64_t c = 0; c < in.K; ++c) to[c] += weight * to_wide(value[c]);
            }
          }
        }
      });
  store_block(in, block, 0, rows, g, table.query_begin[s], width, out, lse);
}

}  // namespace

template <typename In>
void attention_forward(const AttentionInputs<In>& in, In* out, Wide<In>* lse) {
  struct Task {
    int64_t s, begin, end;
  };
  const auto& table = in.table;
  const int64_t R = in.H / in.G;
  std::vector<Task> tasks;
  int64_t work = 0;
  bool repack = false;
  for (int64_t s = 0; s < table.num_sequences; ++s) {
    const int64_t rows = table.queries(s) * R;
    work += rows * table.keys(s) * in.K * in.G * 2;
    repack |= rows > kFewRows;
    for (int64_t begin = 0; begin < rows; begin += kTaskRows) {
      tasks.push_back({s, begin, std::min(rows, begin + kTaskRows)});
    }
  }
  std::unique_ptr<Wide<In>[]> memory;
  ColumnsView<Wide<In>> keys{};
  if (repack) keys = transpose_rows(in.k, in.k_stride, in.M, in.G, in.K, memory);
  parallel_tasks(int64_t(tasks.size()) * in.G, work, [&](int64_t i) {
    const Task& task = tasks[size_t(i / in.G)];
    const int64_t g = i % in.G;
    if (table.queries(task.s) * R <= kFewRows) {
      few_rows(in, task.s, g, out, lse);
    } else {
      many_rows(in, keys, task.s, g, task.begin, task.end, out, lse);
    }
  });
}

template void attention_forward(const AttentionInputs<double>&, double*, double*);
template void attention_forward(const AttentionInputs<float>&, float*, float*);
template void attention_forward(const AttentionInputs<Bf16>&, Bf16*, float*);

}  // namespace contexture::model::ops::internal
