#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "core/error.h"
#include "retriever/internal/dot_kernel.h"
#include "retriever/internal/flat_file.h"
#include "retriever/internal/parallel_for.h"
#include "retriever/internal/score.h"
#include "retriever/internal/store.h"

namespace contexture::retriever::internal {
namespace {

// Rows worked on at a time: 96 rows of 768 floats fit half of a 512 KiB cache beside the queries.
constexpr int64_t kRowsPerBlock = 96;
constexpr int64_t kQueriesPerPass = 256;

// The best of one query so far, with everything that rounding may have put behind them.
struct Shortlist {
  std::vector<std::pair<float, int64_t>> items;
  float bar = -std::numeric_limits<float>::infinity();
  size_t capacity = 0;

  // Drops what is further than `slack` behind the k-th best.
  void prune(int64_t k, double slack) {
    if (static_cast<int64_t>(items.size()) <= k) return;
    std::nth_element(items.begin(), items.begin() + (k - 1), items.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    const double bound = static_cast<double>(items[k - 1].first) - slack;
    bar = std::nextafter(static_cast<float>(bound), -std::numeric_limits<float>::infinity());
    std::erase_if(items, [this](const auto& item) { return item.first < bar; });
  }
};

class ExactStore : public Store {
 public:
  ExactStore(Metric metric, int64_t dim, std::vector<float> vectors)
      : metric_(metric), dim_(dim), vectors_(std::move(vectors)) {
    measure(0);
  }

  int64_t size() const override { return static_cast<int64_t>(vectors_.size()) / dim_; }

  const float* vector(int64_t row, float*) const override { return vectors_.data() + row * dim_; }

  void add(std::span<const float> vectors) override {
    const int64_t first = size();
    vectors_.insert(vectors_.end(), vectors.begin(), vectors.end());
    measure(first);
  }

  void replace(std::span<const int64_t> rows, std::span<const float> vectors) override {
    for (size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(vectors_.data() + rows[i] * dim_, vectors.data() + i * dim_,
                  dim_ * sizeof(float));
      measure_row(rows[i]);
    }
  }

  std::vector<std::vector<int64_t>> candidates(std::span<const float> queries,
                                               int64_t k) const override {
    const int64_t n = static_cast<int64_t>(queries.size()) / dim_;
    std::vector<std::vector<int64_t>> rows(n);
    for (int64_t first = 0; first < n; first += kQueriesPerPass) {
      const int64_t count = std::min(kQueriesPerPass, n - first);
      pass(queries.data() + first * dim_, count, k, rows.data() + first);
    }
    return rows;
  }

  void set_search(const std::string& parameters) override {
    CONTEXTURE_REQUIRE(parameters.empty(),
                       "An exact index (Flat) has no search parameters, but got '", parameters,
                       "'. Leave them empty, or choose another factory.");
  }

  void write(const Sink& sink) const override { write_flat_file(metric_, dim_, vectors_, sink); }

 private:
  void measure(int64_t first) {
    if (metric_ == Metric::kL2) squared_lengths_.resize(size());
    for (int64_t row = first; row < size(); ++row) measure_row(row);
  }

  void measure_row(int64_t row) {
    const double squared = squared_length(vectors_.data() + row * dim_, dim_);
    longest_ = std::max(longest_, std::sqrt(squared));
    if (metric_ == Metric::kL2) squared_lengths_[row] = static_cast<float>(squared);
  }

  // Twice the largest error of a float score. A sum of m rounded terms is off by at most m u / (1 -
  // m u) times the sum of their magnitudes, which Cauchy-Schwarz bounds by |q| |x|; the last term
  // covers underflow.
  double slack(const float* query) const {
    const double u = std::ldexp(1.0, -24), m = static_cast<double>(dim_) + 3;
    const double gamma = m * u / (1 - m * u);
    const double length = std::sqrt(squared_length(query, dim_));
    double magnitude = length * longest_;
    if (metric_ == Metric::kL2) magnitude = 2 * magnitude + longest_ * longest_;
    return 2 * (gamma * magnitude + m * 1e-37);
  }

  void pass(const float* queries, int64_t n, int64_t k, std::vector<int64_t>* rows_of) const {
    const QueryPanels panels(queries, n, dim_);
    std::vector<double> slacks(n);
    for (int64_t q = 0; q < n; ++q) slacks[q] = slack(queries + q * dim_);
    const int64_t num_blocks = (size() + kRowsPerBlock - 1) / kRowsPerBlock;
    const bool shared = n * size() * dim_ >= kWorthThreads;
    std::vector<std::vector<Shortlist>> by_thread;
#ifdef _OPENMP
    by_thread.resize(std::max(1, omp_get_max_threads()));
#else
    by_thread.resize(1);
#endif
#pragma omp parallel if (shared)
    {
#ifdef _OPENMP
      std::vector<Shortlist>& mine = by_thread[omp_get_thread_num()];
#else
      std::vector<Shortlist>& mine = by_thread[0];
#endif
      mine.resize(n);
      for (Shortlist& list : mine) list.capacity = static_cast<size_t>(2 * k + 64);
      std::vector<float> scores(kRowsPerBlock * panels.width());
      std::vector<float> bars(panels.width(), std::numeric_limits<float>::infinity());
      std::fill(bars.begin(), bars.begin() + n, -std::numeric_limits<float>::infinity());
#pragma omp for schedule(dynamic, 4)
      for (int64_t block = 0; block < num_blocks; ++block) {
        scan(block, panels, k, slacks, scores, bars, mine);
      }
    }
    for (int64_t q = 0; q < n; ++q) {
      Shortlist all;
      for (const auto& lists : by_thread) {
        if (lists.empty()) continue;
        all.items.insert(all.items.end(), lists[q].items.begin(), lists[q].items.end());
      }
      all.prune(k, slacks[q]);
      for (const auto& [score, row] : all.items) rows_of[q].push_back(row);
    }
  }

  void scan(int64_t block, const QueryPanels& panels, int64_t k, const std::vector<double>& slacks,
            std::vector<float>& scores, std::vector<float>& bars,
            std::vector<Shortlist>& lists) const {
    const int64_t first = block * kRowsPerBlock;
    const int64_t num_rows = std::min(kRowsPerBlock, size() - first);
    const int64_t width = panels.width();
    panels.products(vectors_.data() + first * dim_, num_rows, scores.data());
    if (metric_ == Metric::kL2) {
      to_negative_distances(scores.data(), squared_lengths_.data() + first, num_rows, width);
    }
    for (int64_t r = 0; r < num_rows; ++r) {
      const float* row_scores = scores.data() + r * width;
      if (!any_reaches(row_scores, bars.data(), width)) continue;
      for (int64_t q = 0; q < panels.num_queries(); ++q) {
        if (row_scores[q] < bars[q]) continue;
        Shortlist& list = lists[q];
        list.items.emplace_back(row_scores[q], first + r);
        if (list.items.size() < list.capacity) continue;
        list.prune(k, slacks[q]);
        list.capacity = std::max(list.capacity, 2 * list.items.size());
        bars[q] = list.bar;
      }
    }
  }

  Metric metric_;
  int64_t dim_;
  std::vector<float> vectors_;          // [size, dim]
  std::vector<float> squared_lengths_;  // [size], under kL2 only
  double longest_ = 0.0;                // no vector, present or former, is longer
};

}  // namespace

std::unique_ptr<Store> make_exact_store(Metric metric, int64_t dim,
                                        std::span<const float> vectors) {
  return std::make_unique<ExactStore>(metric, dim,
                                      std::vector<float>(vectors.begin(), vectors.end()));
}

std::unique_ptr<Store> read_exact_store(Metric metric, int64_t dim, int64_t count,
                                        std::string_view bytes, const std::string& source) {
  return std::make_unique<ExactStore>(metric, dim, read_flat_file(dim, count, bytes, source));
}

}  // namespace contexture::retriever::internal
