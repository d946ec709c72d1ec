#include "retriever/internal/dot_kernel.h"

#include <algorithm>

namespace contexture::retriever::internal {
namespace {

// Eight floats, anywhere in memory; the compiler splits them where registers are narrower.
using Lanes = float __attribute__((vector_size(32), aligned(4)));
using Mask = int32_t __attribute__((vector_size(32)));
using Words = int64_t __attribute__((vector_size(32)));

Lanes load(const float* p) { return *reinterpret_cast<const Lanes*>(p); }

// R rows against one panel of 8 V columns. R x V accumulators stay in registers.
template <int R, int V>
void panel_products(const float* rows, int64_t dim, const float* panel, float* scores,
                    int64_t width) {
  Lanes sum[R][V] = {};
  for (int64_t i = 0; i < dim; ++i) {
    Lanes q[V];
    for (int v = 0; v < V; ++v) q[v] = load(panel + (i * V + v) * 8);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const float x = rows[r * dim + i];
      for (int v = 0; v < V; ++v) sum[r][v] += x * q[v];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) *reinterpret_cast<Lanes*>(scores + r * width + v * 8) = sum[r][v];
  }
}

template <int V>
void all_rows(const float* rows, int64_t num_rows, int64_t dim, const float* panel, float* scores,
              int64_t width) {
  constexpr int kRows = 12 / V;
  int64_t r = 0;
  for (; r + kRows <= num_rows; r += kRows) {
    panel_products<kRows, V>(rows + r * dim, dim, panel, scores + r * width, width);
  }
  for (; r < num_rows; ++r) {
    panel_products<1, V>(rows + r * dim, dim, panel, scores + r * width, width);
  }
}

// One row with Q queries as they lie: nothing to reuse but the row, so the row's bytes set the
// pace.
template <int Q>
void plain_products(const float* x, int64_t dim, const float* queries, float* scores) {
  Lanes sum[Q][2] = {};
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    const Lanes x0 = load(x + i), x1 = load(x + i + 8);
    for (int q = 0; q < Q; ++q) {
      sum[q][0] += x0 * load(queries + q * dim + i);
      sum[q][1] += x1 * load(queries + q * dim + i + 8);
    }
  }
  for (int q = 0; q < Q; ++q) {
    const Lanes both = sum[q][0] + sum[q][1];
    float total = 0;
    for (int lane = 0; lane < 8; ++lane) total += both[lane];
    for (int64_t j = i; j < dim; ++j) total += x[j] * queries[q * dim + j];
    scores[q] = total;
  }
}

}  // namespace

QueryPanels::QueryPanels(const float* queries, int64_t num_queries, int64_t dim)
    : num_queries_(num_queries), dim_(dim), width_((num_queries + 7) / 8 * 8) {
  if (num_queries <= 2) {
    packed_.assign(queries, queries + num_queries * dim);
    return;
  }
  packed_.assign(width_ * dim, 0.0f);
  for (int64_t q = 0; q < num_queries; ++q) {
    const int64_t first = q / 16 * 16;
    const int64_t columns = std::min<int64_t>(16, width_ - first);
    float* panel = packed_.data() + first * dim;
    for (int64_t i = 0; i < dim; ++i) panel[i * columns + q - first] = queries[q * dim + i];
  }
}

void QueryPanels::products(const float* rows, int64_t num_rows, float* scores) const {
  if (num_queries_ <= 2) {
    for (int64_t r = 0; r < num_rows; ++r) {
      const float* x = rows + r * dim_;
      float* out = scores + r * width_;
      std::fill(out, out + width_, 0.0f);
      if (num_queries_ == 1) plain_products<1>(x, dim_, packed_.data(), out);
      if (num_queries_ == 2) plain_products<2>(x, dim_, packed_.data(), out);
    }
    return;
  }
  for (int64_t first = 0; first < width_; first += 16) {
    const float* panel = packed_.data() + first * dim_;
    if (width_ - first >= 16) {
      all_rows<2>(rows, num_rows, dim_, panel, scores + first, width_);
    } else {
      all_rows<1>(rows, num_rows, dim_, panel, scores + first, width_);
    }
  }
}

void to_negative_distances(float* scores, const float* squared_lengths, int64_t num_rows,
                           int64_t width) {
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      scores[r * width + c] = 2 * scores[r * width + c] - squared_lengths[r];
    }
  }
}

bool any_reaches(const float* scores, const float* bars, int64_t width) {
  Mask hit = {};
  for (int64_t c = 0; c < width; c += 8) hit |= load(scores + c) >= load(bars + c);
  const Words words = reinterpret_cast<Words>(hit);
  return (words[0] | words[1] | words[2] | words[3]) != 0;
}

}  // namespace contexture::retriever::internal
