#include "retriever/internal/dot_kernel.h"

#include <algorithm>
#include <cstring>

namespace contexture::retriever::internal {
namespace {

#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
constexpr int64_t kPanel = 2 * kLanes;  // columns
constexpr int64_t kCacheLine = 16;      // floats

// A register of floats; and one float anywhere in memory: vectors in a mapped file lie as its
// header lets them.
using Lanes = float __attribute__((vector_size(4 * kLanes)));
using Loose = float __attribute__((aligned(1), may_alias));
using Mask = int32_t __attribute__((vector_size(4 * kLanes)));
using Words = int64_t __attribute__((vector_size(4 * kLanes)));

// By copying: clang takes a pointer to such a vector for one to aligned memory, whatever its type
// says.
Lanes load(const void* p) {
  Lanes out;
  __builtin_memcpy(&out, p, sizeof out);
  return out;
}

// R rows against one panel of V registers' columns. R x V accumulators stay in registers, and the
// next R rows are asked for: with few queries memory sets the pace.
template <int R, int V>
void panel_products(const Loose* rows, int64_t dim, const float* panel, float* scores,
                    int64_t width) {
  Lanes sum[R][V] = {};
  for (int64_t i = 0; i < dim;) {
    for (int r = 0; r < R; ++r)
      __builtin_prefetch(rows + (r + R) * dim + i);  // beyond the last: nothing
    const int64_t end = std::min(dim, i + kCacheLine);
    for (; i < end; ++i) {
      Lanes q[V];
      for (int v = 0; v < V; ++v) q[v] = load(panel + (i * V + v) * kLanes);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const float x = rows[r * dim + i];
        for (int v = 0; v < V; ++v) sum[r][v] += x * q[v];
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      __builtin_memcpy(scores + r * width + v * kLanes, &sum[r][v], sizeof sum[r][v]);
    }
  }
}

template <int V>
void all_rows(const Loose* rows, int64_t num_rows, int64_t dim, const float* panel, float* scores,
              int64_t width) {
  constexpr int kRows = kLanes == 16 ? 12 : 12 / V;  // 32 registers, or 16
  int64_t r = 0;
  for (; r + kRows <= num_rows; r += kRows) {
    panel_products<kRows, V>(rows + r * dim, dim, panel, scores + r * width, width);
  }
  for (; r < num_rows; ++r) {
    panel_products<1, V>(rows + r * dim, dim, panel, scores + r * width, width);
  }
}

// By halves: lane after lane would take longer than the row's products.
float lane_sum(const Lanes& lanes) {
  using Half = float __attribute__((vector_size(2 * kLanes)));
  using Quarter = float __attribute__((vector_size(kLanes)));
  Half halves[2];
  std::memcpy(halves, &lanes, sizeof(halves));
  const Half half = halves[0] + halves[1];
  Quarter quarters[2];
  std::memcpy(quarters, &half, sizeof(quarters));
  const Quarter quarter = quarters[0] + quarters[1];
  float total = 0;
  for (int i = 0; i < kLanes / 4; ++i) total += quarter[i];
  return total;
}

// R rows with Q queries as they lie. There is nothing to reuse but what is in registers, so memory
// sets the pace: the rows are read in order, side by side, and what comes half a page later is
// asked for.
template <int Q, int R>
void plain_products(const Loose* rows, int64_t dim, const float* queries, float* scores,
                    int64_t stride) {
  constexpr int kChains = std::max(1, 8 / (Q * R));
  Lanes sum[R][Q][kChains] = {};
  int64_t i = 0;
  for (; i + kChains * kLanes <= dim; i += kChains * kLanes) {
    for (int c = 0; c < kChains; ++c) {
      const int64_t at = i + c * kLanes;
      Lanes q[Q];
      for (int j = 0; j < Q; ++j) q[j] = load(queries + j * dim + at);
      for (int r = 0; r < R; ++r) {
        __builtin_prefetch(rows + (r + R) * dim + at);  // past the last row it does nothing
        const Lanes part = load(rows + r * dim + at);
        for (int j = 0; j < Q; ++j) sum[r][j][c] += part * q[j];
      }
    }
  }
  for (; i + kLanes <= dim; i += kLanes) {
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < Q; ++j)
        sum[r][j][0] += load(rows + r * dim + i) * load(queries + j * dim + i);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < Q; ++j) {
      for (int c = 1; c < kChains; ++c) sum[r][j][0] += sum[r][j][c];
      float total = lane_sum(sum[r][j][0]);
      for (int64_t t = i; t < dim; ++t) total += rows[r * dim + t] * queries[j * dim + t];
      scores[j * stride + r] = total;
    }
  }
}

template <int Q>
void all_plain(const Loose* rows, int64_t num_rows, int64_t dim, const float* queries,
               float* scores, int64_t stride) {
  constexpr int kRows = 4;
  int64_t r = 0;
  for (; r + kRows <= num_rows; r += kRows) {
    plain_products<Q, kRows>(rows + r * dim, dim, queries, scores + r, stride);
  }
  for (; r < num_rows; ++r) plain_products<Q, 1>(rows + r * dim, dim, queries, scores + r, stride);
}

}  // namespace

QueryPanels::QueryPanels(const float* queries, int64_t num_queries, int64_t dim)
    : num_queries_(num_queries), dim_(dim), width_((num_queries + kLanes - 1) / kLanes * kLanes) {
  if (by_query()) {
    packed_.assign(queries, queries + num_queries * dim);
    return;
  }
  packed_.assign(width_ * dim, 0.0f);
  for (int64_t q = 0; q < num_queries; ++q) {
    const int64_t first = q / kPanel * kPanel;
    const int64_t columns = std::min(kPanel, width_ - first);
    float* panel = packed_.data() + first * dim;
    for (int64_t i = 0; i < dim; ++i) panel[i * columns + q - first] = queries[q * dim + i];
  }
}

void QueryPanels::products(const void* data, int64_t num_rows, float* scores) const {
  const auto* rows = static_cast<const Loose*>(data);
  constexpr int64_t kStride = 96;
  if (num_queries_ == 1) return all_plain<1>(rows, num_rows, dim_, packed_.data(), scores, kStride);
  if (num_queries_ == 2) return all_plain<2>(rows, num_rows, dim_, packed_.data(), scores, kStride);
  for (int64_t first = 0; first < width_; first += kPanel) {
    const float* panel = packed_.data() + first * dim_;
    if (width_ - first >= kPanel) {
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
  for (int64_t c = 0; c < width; c += kLanes) hit |= load(scores + c) >= load(bars + c);
  const Words words = reinterpret_cast<Words>(hit);
  int64_t any = 0;
  for (int i = 0; i < kLanes / 2; ++i) any |= words[i];
  return any != 0;
}

int64_t next_reaching(const float* scores, float bar, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end;) {
    if (r % kLanes == 0) {
      const Mask hit = load(scores + r) >= (Lanes{} + bar);
      const Words words = reinterpret_cast<Words>(hit);
      int64_t any = 0;
      for (int i = 0; i < kLanes / 2; ++i) any |= words[i];
      if (any == 0) {
        r += kLanes;
        continue;
      }
    }
    const int64_t stop = std::min(end, (r / kLanes + 1) * kLanes);
    for (; r < stop; ++r) {
      if (scores[r] >= bar) return r;
    }
  }
  return end;
}

}  // namespace contexture::retriever::internal
