// One head of attention without values: only how much weight falls on which token.
#include "model/internal/pointer_kernels.h"

#include <cmath>
#include <limits>

#include "model/internal/key_gradients.h"

namespace contexture::model::ops::internal {
namespace {

struct PointerTag;

template <typename T>
constexpr T kNone = -std::numeric_limits<T>::infinity();

// log(exp(a) + exp(b)) kept as a running maximum and sum.
template <typename T>
struct LogSum {
  T max = kNone<T>, sum = 0;
  void add(T top, T total) {  // total = sum of exp(x - top)
    if (max == kNone<T>) {
      max = top, sum = total;
    } else if (top > max) {
      sum = sum * std::exp(max - top) + total, max = top;
    } else {
      sum += total * std::exp(top - max);
    }
  }
  T log() const { return max == kNone<T> ? max : max + std::log(sum); }
};

template <typename T>
struct Block {
  T *q, *dq, *scores, *bias, *keys_t, *keys;

  explicit Block(int64_t C) {
    const int64_t width = round_up(C, kPanel<T>), room = tile_room<T>(C);
    T* p = scratch<PointerTag, T>(2 * kRowBlock * width + (kRowBlock + 1) * kTileStride + 2 * room);
    q = p, p += kRowBlock * width;
    dq = p, p += kRowBlock * width;
    scores = p, p += kRowBlock * kTileStride;
    bias = p, p += kTileStride;
    keys_t = p, p += room;
    keys = p;
  }
};

template <typename In>
bool few(const PointerInputs<In>& in, int64_t s) {
  return in.table.queries(s) <= kFewRows;
}

// Transposed keys if some sequence has rows enough to be worth it.
template <typename In>
ColumnsView<Wide<In>> transposed_keys(const PointerInputs<In>& in,
                                      std::unique_ptr<Wide<In>[]>& memory) {
  for (int64_t s = 0; s < in.table.num_sequences; ++s) {
    if (!few(in, s)) return transpose_rows(in.k, in.k_stride, in.M, 1, in.C, memory);
  }
  return {};
}

template <typename In>
int64_t work_of(const PointerInputs<In>& in) {
  int64_t work = 0;
  for (int64_t s = 0; s < in.table.num_sequences; ++s) {
    work += in.table.queries(s) * in.table.keys(s) * in.C;
  }
  return work;
}

template <typename In>
void load_queries(const PointerInputs<In>& in, int64_t first, int64_t rows, int64_t width,
                  Wide<In>* to) {
  for (int64_t r = 0; r < rows; ++r, to += width) {
    const In* from = in.q + (first + r) * in.q_stride;
    for (int64_t c = 0; c < in.C; ++c) to[c] = to_wide(from[c]) * in.scale;
    std::fill(to + in.C, to + width, Wide<In>(0));
  }
}

// Biased scores of one block of rows, tile by tile: visit(chunks, num_chunks, first_key, num_keys).
template <typename In, typename Visit>
void sweep(const PointerInputs<In>& in, const ColumnsView<Wide<In>>& keys, int64_t s, int64_t first,
           int64_t rows, const Block<Wide<In>>& block, const Visit& visit) {
  using T = Wide<In>;
  const int64_t width = round_up(in.C, kPanel<T>);
  load_queries(in, in.table.query_begin[s] + first, rows, width, block.q);
  const int64_t limit =
      visible_keys(in.table, first + rows - 1, in.table.queries(s), in.table.keys(s));
  for_each_tile(
      in.table, s, limit, [&](const Chunk* chunks, int64_t n, int64_t first_key, int64_t size) {
        if (few(in, s)) {
          few_scores(chunks, n, in.k, in.k_stride, rows, block.q, width, in.C, block.scores);
        } else {
          pack_columns(chunks, n, keys, 0, in.C, block.keys_t);
          tile_scores(rows, size, in.C, block.q, width, block.keys_t, block.scores);
        }
        if (const T* bias = tile_bias(in.table, chunks, n, block.bias)) {
          for (int64_t r = 0; r < rows; ++r) {
            T* scores = block.scores + r * kTileStride;
            for (int64_t j = 0; j < size; ++j) scores[j] += bias[j];
          }
        }
        visit(chunks, n, first_key, size);
      });
}

template <typename T>
void add_all(T* scores, int64_t n, LogSum<T>* to) {
  const int64_t padded = round_up(n, kLanes<T>);
  T kept[kLanes<T>];
  std::copy(scores + n, scores + padded, kept);
  std::fill(scores + n, scores + padded, kNone<T>);
  Vec<T> top = load(scores), total{};
  for (int64_t j = 0; j < padded; j += kLanes<T>) {
    const Vec<T> x = load(scores + j);
    top = x > top ? x : top;
  }
  T max = top[0];
  for (int i = 1; i < kLanes<T>; ++i) max = top[i] > max ? top[i] : max;
  for (int64_t j = 0; j < padded; j += kLanes<T>) total += exp_wide(load(scores + j) - max);
  std::copy(kept, kept + (padded - n), scores + n);
  to->add(max, sum_lanes<T>(total));
}

template <typename T>
void add_matching(const Chunk& c, const T* scores, int64_t n, const int64_t* token, int64_t target,
                  LogSum<T>* to) {
  for (int64_t j = 0; j < n; ++j) {
    if (token[c.row + j] == target) to->add(scores[c.column + j], T(1));
  }
}

// Scores to their gradients: dout * (weight among the matching keys - weight among all keys).
template <typename T>
void score_gradients(T* scores, int64_t n, const int64_t* token, int64_t target, T all, T match,
                     T dout) {
  int64_t found = 0, where[kTileKeys];
  T value[kTileKeys];
  for (int64_t j = 0; j < n; ++j) {
    if (token[j] != target) continue;
    where[found] = j;
    value[found++] = dout * std::exp(scores[j] - match);
  }
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) {
    store(scores + j, exp_wide(load(scores + j) - all) * -dout);
  }
  if (j < n) store_some(scores + j, exp_wide(load(scores + j) - all) * -dout, n - j);
  for (int64_t i = 0; i < found; ++i) scores[where[i]] += value[i];
}

// Calls run(s, first row, rows) for all blocks of rows of all sequences.
template <typename In, typename Run>
void for_each_block(const PointerInputs<In>& in, const Run& run) {
  parallel_tasks(in.table.num_sequences, work_of(in), [&](int64_t s) {
    for (int64_t first = 0; first < in.table.queries(s); first += kRowBlock) {
      run(s, first, std::min(kRowBlock, in.table.queries(s) - first));
    }
  });
}

}  // namespace

template <typename In>
void pointer_forward(const PointerInputs<In>& in, Wide<In>* lse_all, Wide<In>* lse_match) {
  using T = Wide<In>;
  const auto& table = in.table;
  std::unique_ptr<T[]> memory;
  const ColumnsView<T> keys = transposed_keys(in, memory);
  for_each_block(in, [&](int64_t s, int64_t first, int64_t rows) {
    const Block<T> block(in.C);
    const int64_t query = table.query_begin[s] + first;
    LogSum<T> all[kRowBlock], match[kRowBlock];
    sweep(in, keys, s, first, rows, block,
          [&](const Chunk* chunks, int64_t n, int64_t first_key, int64_t size) {
            for (int64_t r = 0; r < rows; ++r) {
              const int64_t visible =
                  visible_keys(table, first + r, table.queries(s), table.keys(s)) - first_key;
              if (visible <= 0) continue;
              T* scores = block.scores + r * kTileStride;
              add_all(scores, std::min(size, visible), &all[r]);
              for (int64_t i = 0; i < n && in.target; ++i) {
                const int64_t count = std::min(chunks[i].count, visible - chunks[i].column);
                add_matching(chunks[i], scores, count, in.token, in.target[query + r], &match[r]);
              }
            }
          });
    for (int64_t r = 0; r < rows; ++r) {
      lse_all[query + r] = all[r].log();
      if (in.target) lse_match[query + r] = match[r].log();
    }
  });
}

template <typename In>
void pointer_distribution(const PointerInputs<In>& in, const Wide<In>* lse_all, int64_t vocab,
                          Wide<In>* out) {
  using T = Wide<In>;
  const auto& table = in.table;
  std::unique_ptr<T[]> memory;
  const ColumnsView<T> keys = transposed_keys(in, memory);
  for_each_block(in, [&](int64_t s, int64_t first, int64_t rows) {
    const Block<T> block(in.C);
    sweep(in, keys, s, first, rows, block,
          [&](const Chunk* chunks, int64_t n, int64_t first_key, int64_t) {
            for (int64_t r = 0; r < rows; ++r) {
              const int64_t visible =
                  visible_keys(table, first + r, table.queries(s), table.keys(s)) - first_key;
              const int64_t query = table.query_begin[s] + first + r;
              for (int64_t i = 0; i < n; ++i) {
                const T* scores = block.scores + r * kTileStride + chunks[i].column;
                const int64_t count = std::min(chunks[i].count, visible - chunks[i].column);
                for (int64_t j = 0; j < count; ++j) {
                  out[query * vocab + in.token[chunks[i].row + j]] +=
                      std::exp(scores[j] - lse_all[query]);
                }
              }
            }
          });
  });
}

template <typename In>
void pointer_backward(const PointerInputs<In>& in, const PointerGradients<In>& grad) {
  using T = Wide<In>;
  const auto& table = in.table;
  const int64_t width = round_up(in.C, kPanel<T>);
  std::unique_ptr<T[]> memory;
  const ColumnsView<T> keys = transposed_keys(in, memory);
  KeyGradients<T> sums(table, width, grad.dk, nullptr);
  for_each_block(in, [&](int64_t s, int64_t first, int64_t rows) {
    const Block<T> block(in.C);
    const int64_t query = table.query_begin[s] + first;
    std::fill(block.dq, block.dq + rows * width, T(0));
    sweep(in, keys, s, first, rows, block,
          [&](const Chunk* chunks, int64_t n, int64_t first_key, int64_t size) {
            for (int64_t i = 0; i < n; ++i) {
              const Chunk& c = chunks[i];
              double bias_sum = 0;
              for (int64_t r = 0; r < rows; ++r) {
                T* scores = block.scores + r * kTileStride + c.column;
                const int64_t visible =
                    visible_keys(table, first + r, table.queries(s), table.keys(s)) - first_key;
                const T all = grad.lse_all[query + r], match = grad.lse_match[query + r];
                const int64_t count =
                    match == kNone<T> ? 0 : std::clamp<int64_t>(visible - c.column, 0, c.count);
                if (count > 0) {
                  score_gradients(scores, count, in.token + c.row, in.target[query + r], all, match,
                                  grad.dout[query + r]);
                  if (grad.dbias) bias_sum += row_sum(scores, count);
                }
                std::fill(scores + count, scores + c.count, T(0));
              }
              if (grad.dbias) grad.dbias[c.segment] += bias_sum;
              add_to_keys(c, rows, width, block.scores, block.q, sums.at(c), width);
            }
            pack_rows(chunks, n, in.k, in.k_stride, in.C, block.keys);
            add_weighted_rows(rows, size, width, block.scores, block.keys, block.dq);
          });
    for (int64_t r = 0; r < rows; ++r) {
      In* to = grad.dq + (query + r) * in.C;
      for (int64_t c = 0; c < in.C; ++c) from_wide(block.dq[r * width + c] * in.scale, to + c);
    }
  });
  sums.finish(in.M);
}

#define CONTEXTURE_INSTANTIATE(In)                                                       \
  template void pointer_forward(const PointerInputs<In>&, Wide<In>*, Wide<In>*);         \
  template void pointer_distribution(const PointerInputs<In>&, const Wide<In>*, int64_t, \
                                     Wide<In>*);                                         \
  template void pointer_backward(const PointerInputs<In>&, const PointerGradients<In>&);
CONTEXTURE_INSTANTIATE(double)
CONTEXTURE_INSTANTIATE(float)
CONTEXTURE_INSTANTIATE(Bf16)

}  // namespace contexture::model::ops::internal
