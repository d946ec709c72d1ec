// The best of each query while blocks of vectors go by: what the exact store and the inverted lists
// share.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "retriever/internal/dot_kernel.h"

namespace contexture::retriever::internal {

// The best of one query so far, with everything that rounding may have put behind them.
struct Shortlist {
  std::vector<std::pair<float, int64_t>> items;  // score, row
  float bar = -std::numeric_limits<float>::infinity();
  size_t capacity = 0;

  void start(int64_t k) { capacity = static_cast<size_t>(2 * k + 64); }
  // Adds a score that reaches the bar. slack: how far behind the k-th best one may be.
  void add(float score, int64_t row, int64_t k, double slack);
  // Drops what is further than `slack` behind the k-th best.
  void prune(int64_t k, double slack);
};

// Twice the largest error of a float inner product of dim terms: a sum of m rounded terms is off by
// at most m u / (1 - m u) times the sum of their magnitudes, which Cauchy-Schwarz bounds by |q|
// |x|; the last term covers underflow. longest: no |x| is larger.
double inner_product_slack(double query_length, double longest, int64_t dim);

// One thread's work: scores blocks of vectors against a set of queries and keeps the best.
class BlockScanner {
 public:
  // Vectors worked on at a time: 96 of 768 floats fit half of a 512 KiB cache beside the queries.
  static constexpr int64_t kBlock = 96;

  // lists: of all queries, this thread's own; slacks: of all queries.
  BlockScanner(int64_t k, const std::vector<double>& slacks, std::vector<Shortlist>& lists)
      : k_(k), slacks_(slacks), lists_(lists) {}

  // Column c of the panels is query query_of[c]. rows: num_rows (<= kBlock) vectors of floats at
  // any address; squared_lengths: of them, to score by minus the squared distance, or null.
  // row_of(r) names row r.
  template <typename RowOf>
  void scan(const QueryPanels& panels, const int64_t* query_of, const void* rows, int64_t num_rows,
            const float* squared_lengths, const RowOf& row_of) {
    const int64_t Q = panels.num_queries(), width = panels.width();
    scores_.resize(static_cast<size_t>(kBlock * width));
    panels.products(rows, num_rows, scores_.data());
    if (panels.by_query())
      return scan_by_query(panels, query_of, num_rows, squared_lengths, row_of);
    if (squared_lengths != nullptr)
      to_negative_distances(scores_.data(), squared_lengths, num_rows, width);
    bars_.assign(static_cast<size_t>(width), std::numeric_limits<float>::infinity());
    for (int64_t q = 0; q < Q; ++q) bars_[q] = lists_[query_of[q]].bar;
    for (int64_t r = 0; r < num_rows; ++r) {
      const float* row_scores = scores_.data() + r * width;
      if (!any_reaches(row_scores, bars_.data(), width)) continue;
      for (int64_t q = 0; q < Q; ++q) {
        if (row_scores[q] < bars_[q]) continue;
        lists_[query_of[q]].add(row_scores[q], row_of(r), k_, slacks_[query_of[q]]);
        bars_[q] = lists_[query_of[q]].bar;
      }
    }
  }

 private:
  // One or two queries: the scores of each lie together.
  template <typename RowOf>
  void scan_by_query(const QueryPanels& panels, const int64_t* query_of, int64_t num_rows,
                     const float* squared_lengths, const RowOf& row_of) {
    for (int64_t q = 0; q < panels.num_queries(); ++q) {
      float* scores = scores_.data() + q * kBlock;
      if (squared_lengths != nullptr) {
        for (int64_t r = 0; r < num_rows; ++r) scores[r] = 2 * scores[r] - squared_lengths[r];
      }
      Shortlist& list = lists_[query_of[q]];
      for (int64_t r = 0; (r = next_reaching(scores, list.bar, r, num_rows)) < num_rows; ++r) {
        list.add(scores[r], row_of(r), k_, slacks_[query_of[q]]);
      }
    }
  }

  int64_t k_;
  const std::vector<double>& slacks_;
  std::vector<Shortlist>& lists_;
  std::vector<float> scores_, bars_;
};

// The rows within slack of the k-th best, of the lists that several threads made of one query.
std::vector<int64_t> merge_shortlists(const std::vector<std::vector<Shortlist>>& by_thread,
                                      int64_t query, int64_t k, double slack);

}  // namespace contexture::retriever::internal
