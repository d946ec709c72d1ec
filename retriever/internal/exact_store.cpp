#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>

#include "core/error.h"
#include "retriever/internal/device_search.h"
#include "retriever/internal/dot_kernel.h"
#include "retriever/internal/flat_file.h"
#include "retriever/internal/parallel_for.h"
#include "retriever/internal/score.h"
#include "retriever/internal/shortlist.h"
#include "retriever/internal/store.h"

namespace contexture::retriever::internal {
namespace {

constexpr int64_t kQueriesPerPass = 256;

class ExactStore : public Store {
 public:
  ExactStore(Metric metric, int64_t dim, std::vector<float> vectors)
      : metric_(metric), dim_(dim), owned_(std::move(vectors)) {
    point();
    measure(0);
  }

  // Over vectors that lie elsewhere, at any address. unit_length: none is longer than 1.0001, so
  // nothing need be read.
  ExactStore(Metric metric, int64_t dim, std::span<const std::byte> vectors, bool unit_length)
      : metric_(metric), dim_(dim), mapped_(true), data_(vectors.data()) {
    size_ = static_cast<int64_t>(vectors.size() / sizeof(float)) / dim;
    longest_ = 1.0001;
    if (!unit_length || metric == Metric::kL2) measure(0);
  }

  int64_t size() const override { return size_; }

  const float* vector(int64_t row, float* buffer) const override {
    if (!mapped_) return owned_.data() + row * dim_;
    std::memcpy(buffer, row_data(row), dim_ * sizeof(float));
    return buffer;
  }

  void add(std::span<const float> vectors) override {
    own();
    const int64_t first = size_;
    owned_.insert(owned_.end(), vectors.begin(), vectors.end());
    point();
    measure(first);
    if (device_) search_on(device_->device(), device_->score_bytes());
  }

  void replace(std::span<const int64_t> rows, std::span<const float> vectors) override {
    own();
    for (size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(owned_.data() + rows[i] * dim_, vectors.data() + i * dim_, dim_ * sizeof(float));
      measure_row(rows[i]);
    }
    if (device_) device_->update(rows, owned_.data(), squared_lengths());
  }

  std::vector<std::vector<int64_t>> candidates(std::span<const float> queries,
                                               int64_t k) const override {
    const int64_t n = static_cast<int64_t>(queries.size()) / dim_;
    std::vector<std::vector<int64_t>> rows(n);
    for (int64_t first = 0; first < n; first += kQueriesPerPass) {
      const int64_t count = std::min(kQueriesPerPass, n - first);
      const float* some = queries.data() + first * dim_;
      std::vector<double> slacks(count);
      for (int64_t q = 0; q < count; ++q) slacks[q] = slack(some + q * dim_);
      if (device_) {
        device_->candidates(some, count, k, slacks.data(), rows.data() + first);
      } else {
        pass(some, count, k, slacks, rows.data() + first);
      }
    }
    return rows;
  }

  void search_on(at::Device device, int64_t score_bytes) override {
    own();
    device_.emplace(device, score_bytes, dim_, size_, owned_.data(), squared_lengths());
  }

  void set_search(const std::string& parameters) override {
    CONTEXTURE_REQUIRE(parameters.empty(),
                       "An exact index (Flat) has no search parameters, but got '", parameters,
                       "'. Leave them empty, or choose another factory.");
  }

  void write(const Sink& sink) const override {
    write_flat_file(metric_, dim_, size_,
                    {data_, static_cast<size_t>(size_ * dim_) * sizeof(float)}, sink);
  }

 private:
  const std::byte* row_data(int64_t row) const { return data_ + row * dim_ * sizeof(float); }
  // To score rows by minus the squared distance, or null.
  const float* squared_lengths() const {
    return metric_ == Metric::kL2 ? squared_lengths_.data() : nullptr;
  }

  void point() {
    data_ = std::as_bytes(std::span(owned_)).data();
    size_ = static_cast<int64_t>(owned_.size()) / dim_;
  }

  // Copies mapped vectors before the first change.
  void own() {
    if (!mapped_) return;
    owned_.resize(static_cast<size_t>(size_ * dim_));
    std::memcpy(owned_.data(), data_, owned_.size() * sizeof(float));
    mapped_ = false;
    point();
  }

  void measure(int64_t first) {
    if (metric_ == Metric::kL2) squared_lengths_.resize(size_);
    for (int64_t row = first; row < size_; ++row) measure_row(row);
  }

  void measure_row(int64_t row) {
    std::vector<float> buffer(mapped_ ? dim_ : 0);
    const double squared = squared_length(vector(row, buffer.data()), dim_);
    longest_ = std::max(longest_, std::sqrt(squared));
    if (metric_ == Metric::kL2) squared_lengths_[row] = static_cast<float>(squared);
  }

  // Twice the largest error of a float score.
  double slack(const float* query) const {
    const double length = std::sqrt(squared_length(query, dim_));
    if (metric_ != Metric::kL2) return inner_product_slack(length, longest_, dim_);
    return inner_product_slack(2 * length + longest_, longest_, dim_);
  }

  void pass(const float* queries, int64_t n, int64_t k, const std::vector<double>& slacks,
            std::vector<int64_t>* rows_of) const {
    const QueryPanels panels(queries, n, dim_);
    std::vector<int64_t> query_of(n);
    std::iota(query_of.begin(), query_of.end(), int64_t{0});
    const int64_t num_blocks = (size_ + BlockScanner::kBlock - 1) / BlockScanner::kBlock;
    [[maybe_unused]] const bool shared =
        n * size_ * dim_ >= kWorthThreads;  // unused without OpenMP
    std::vector<std::vector<Shortlist>> by_thread(static_cast<size_t>(max_threads()));
#pragma omp parallel if (shared)
    {
      std::vector<Shortlist>& mine = by_thread[static_cast<size_t>(thread_number())];
      mine.resize(n);
      for (Shortlist& list : mine) list.start(k);
      BlockScanner scanner(k, slacks, mine);
#pragma omp for schedule(dynamic, 4)
      for (int64_t block = 0; block < num_blocks; ++block) {
        const int64_t first = block * BlockScanner::kBlock;
        scanner.scan(panels, query_of.data(), row_data(first),
                     std::min(BlockScanner::kBlock, size_ - first),
                     metric_ == Metric::kL2 ? squared_lengths_.data() + first : nullptr,
                     [first](int64_t r) { return first + r; });
      }
    }
    for (int64_t q = 0; q < n; ++q) rows_of[q] = merge_shortlists(by_thread, q, k, slacks[q]);
  }

  Metric metric_;
  int64_t dim_;
  bool mapped_ = false;
  std::vector<float> owned_;         // [size, dim]; empty when mapped
  const std::byte* data_ = nullptr;  // [size, dim] floats
  int64_t size_ = 0;
  std::vector<float> squared_lengths_;  // [size], under kL2 only
  double longest_ = 0.0;                // no vector, present or former, is longer
  std::optional<DeviceSearch> device_;  // a copy of what a search multiplies
};

}  // namespace

std::unique_ptr<Store> make_exact_store(Metric metric, int64_t dim, std::vector<float> vectors) {
  return std::make_unique<ExactStore>(metric, dim, std::move(vectors));
}

std::unique_ptr<Store> view_exact_store(Metric metric, int64_t dim,
                                        std::span<const std::byte> vectors, bool unit_length) {
  return std::make_unique<ExactStore>(metric, dim, vectors, unit_length);
}

}  // namespace contexture::retriever::internal
