// Backward pass: recomputes each tile's weights from the stored log-sum-exp (FlashAttention-2,
// arXiv:2307.08691). A task owns one sequence and one key-value head. Where sequences share key
// rows, each task sums into rows of its own, which are then added up in the order of the segments.
#include "model/internal/key_gradients.h"

namespace contexture::model::ops::internal {
namespace {

struct BackwardTag;

template <typename In>
struct Operands {
  ColumnsView<Wide<In>> keys_t, values_t;
};

template <typename T>
struct Block {
  T *q, *dout, *dq, *weight, *dweight, *lse, *delta, *keys_t, *values_t, *keys;

  Block(int64_t K, int64_t width) {
    const int64_t rows = kRowBlock, room = tile_room<T>(K);
    T* p = scratch<BackwardTag, T>(3 * (rows * width + room) + 2 * rows * kTileStride + 2 * rows);
    q = p, p += rows * width;
    dout = p, p += rows * width;
    dq = p, p += rows * width;
    weight = p, p += rows * kTileStride;
    dweight = p, p += rows * kTileStride;
    keys_t = p, p += room;
    values_t = p, p += room;
    keys = p, p += room;
    lse = p, p += rows;
    delta = p;
  }
};

// Index of a block's row in [N, H].
template <typename In>
int64_t head_row(const AttentionInputs<In>& in, int64_t s, int64_t g, int64_t row) {
  const int64_t R = in.H / in.G;
  return (in.table.query_begin[s] + row / R) * in.H + g * R + row % R;
}

template <typename In>
void load_block(const AttentionInputs<In>& in, const AttentionGradients<In>& grad, int64_t s,
                int64_t g, int64_t first, int64_t rows, int64_t width,
                const Block<Wide<In>>& block) {
  using T = Wide<In>;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t index = head_row(in, s, g, first + r);
    const In* q = in.q + index / in.H * in.q_stride + index % in.H * in.K;
    const In* out = grad.out + index * in.K;
    const In* dout = grad.dout + index * in.K;
    T* q_to = block.q + r * width;
    T* dout_to = block.dout + r * width;
    Vec<T> delta{};
    for (int64_t c = 0; c < in.K; c += kLanes<T>) {
      const int64_t n = in.K - c;
      const Vec<T> d = n >= kLanes<T> ? load_wide(dout + c) : load_some(dout + c, n);
      const Vec<T> o = n >= kLanes<T> ? load_wide(out + c) : load_some(out + c, n);
      const Vec<T> x = n >= kLanes<T> ? load_wide(q + c) : load_some(q + c, n);
      delta += d * o;
      store(dout_to + c, d);
      store(q_to + c, x * in.scale);
    }
    for (int64_t c = round_up(in.K, kLanes<T>); c < width; ++c) q_to[c] = dout_to[c] = 0;
    block.delta[r] = sum_lanes<T>(delta);
    block.lse[r] = grad.lse[index];
  }
  std::fill(block.dq, block.dq + rows * width, T(0));
}

// One chunk of one row: scores to weights, and their gradients to the scores' gradients.
template <typename T>
void weight_row(T* weight, T* dweight, int64_t n, int64_t columns, T shift, T delta) {
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) {
    const Vec<T> p = exp_wide(load(weight + j) + shift);
    store(dweight + j, p * (load(dweight + j) - delta));
    store(weight + j, p);
  }
  if (j < n) {  // what follows belongs to the next chunk
    const Vec<T> p = exp_wide(load(weight + j) + shift);
    store_some(dweight + j, p * (load(dweight + j) - delta), n - j);
    store_some(weight + j, p, n - j);
  }
  std::fill(weight + n, weight + columns, T(0));
  std::fill(dweight + n, dweight + columns, T(0));
}

template <typename In>
void backward_task(const AttentionInputs<In>& in, const AttentionGradients<In>& grad,
                   const Operands<In>& operands, KeyGradients<Wide<In>>& sums, int64_t s,
                   int64_t g) {
  using T = Wide<In>;
  const auto& table = in.table;
  const int64_t R = in.H / in.G, width = round_up(in.K, kPanel<T>);
  const int64_t num_queries = table.queries(s), num_keys = table.keys(s),
                num_rows = num_queries * R;
  const Block<T> block(in.K, width);
  PackedTile packed;
  T* const weight = block.weight;
  T* const dweight = block.dweight;
  for (int64_t first = 0; first < num_rows; first += kRowBlock) {
    const int64_t rows = std::min(kRowBlock, num_rows - first);
    load_block(in, grad, s, g, first, rows, width, block);
    const int64_t limit = visible_keys(table, (first + rows - 1) / R, num_queries, num_keys);
    for_each_tile(
        table, s, limit, [&](const Chunk* chunks, int64_t n, int64_t first_key, int64_t size) {
          if (packed.replace(first_key, size)) {
            pack_columns(chunks, n, operands.keys_t, g, in.K, block.keys_t);
            pack_columns(chunks, n, operands.values_t, g, in.K, block.values_t);
            pack_rows(chunks, n, in.k + g * in.K, in.k_stride, in.K, block.keys);
          }
          tile_scores(rows, size, in.K, block.q, width, block.keys_t, weight);
          tile_scores(rows, size, in.K, block.dout, width, block.values_t, dweight);
          for (int64_t i = 0; i < n; ++i) {
            const Chunk& c = chunks[i];
            const T bias = table.bias ? table.bias[c.segment] : T(0);
            double bias_sum = 0;
            for (int64_t r = 0; r < rows; ++r) {
              const int64_t visible = visible_keys(table, (first + r) / R, num_queries, num_keys) -
                                      first_key - c.column;
              const int64_t at = r * kTileStride + c.column;
              weight_row(weight + at, dweight + at, std::clamp<int64_t>(visible, 0, c.count),
                         c.count, bias - block.lse[r], block.delta[r]);
              if (grad.dbias) bias_sum += row_sum(dweight + at, c.count);
            }
            if (grad.dbias) grad.dbias[g * table.num_segments + c.segment] += bias_sum;
            add_to_keys(c, rows, width, weight, block.dout, sums.second_at(c) + g * width,
                        sums.stride());
            add_to_keys(c, rows, width, dweight, block.q, sums.at(c) + g * width, sums.stride());
          }
          add_weighted_rows(rows, size, width, dweight, block.keys, block.dq);
        });
    for (int64_t r = 0; r < rows; ++r) {
      In* to = grad.dq + head_row(in, s, g, first + r) * in.K;
      for (int64_t c = 0; c < in.K; ++c) from_wide(block.dq[r * width + c] * in.scale, to + c);
    }
  }
}

}  // namespace

template <typename In>
void attention_backward(const AttentionInputs<In>& in, const AttentionGradients<In>& grad) {
  using T = Wide<In>;
  const auto& table = in.table;
  int64_t work = 0;
  for (int64_t s = 0; s < table.num_sequences; ++s) {
    work += table.queries(s) * table.keys(s) * in.H * in.K * 5;
  }
  std::unique_ptr<T[]> memory[2];
  const Operands<In> operands{transpose_rows(in.k, in.k_stride, in.M, in.G, in.K, memory[0]),
                              transpose_rows(in.v, in.v_stride, in.M, in.G, in.K, memory[1])};
  const int64_t stride = in.G * round_up(in.K, kPanel<T>);
  KeyGradients<T> sums(table, stride, grad.dk, grad.dv);
  parallel_tasks(table.num_sequences * in.G, work,
                 [&](int64_t i) { backward_task(in, grad, operands, sums, i / in.G, i % in.G); });
  sums.finish(in.M);
}

template <typename T>
int64_t padded_width(int64_t K) {
  return round_up(K, kPanel<T>);
}

template int64_t padded_width<double>(int64_t);
template int64_t padded_width<float>(int64_t);
template void attention_backward(const AttentionInputs<double>&, const AttentionGradients<double>&);
template void attention_backward(const AttentionInputs<float>&, const AttentionGradients<float>&);
template void attention_backward(const AttentionInputs<Bf16>&, const AttentionGradients<Bf16>&);

}  // namespace contexture::model::ops::internal
