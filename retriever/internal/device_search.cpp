#include "retriever/internal/device_search.h"

#include <ATen/Context.h>

#include <algorithm>

#include "retriever/internal/shortlist.h"

namespace contexture::retriever::internal {
namespace {

// Of a place in a query's list, while the best so far and those of a block become one list: two
// lists of scores and rows (24), both together (24), what is kept of them (20), and to spare.
constexpr int64_t kPlaceBytes = 80;

at::Tensor over(const float* data, at::IntArrayRef sizes) {
  return at::from_blob(const_cast<float*>(data), sizes, at::kFloat);
}

}  // namespace

DeviceSearch::DeviceSearch(at::Device device, int64_t score_bytes, int64_t dim, int64_t num_rows,
                           const float* vectors, const float* squared_lengths)
    : score_bytes_(score_bytes) {
  const at::TensorOptions there = at::TensorOptions().dtype(at::kFloat).device(device);
  vectors_NE_ = at::empty({num_rows, dim}, there);
  if (squared_lengths != nullptr) squared_lengths_N_ = at::empty({num_rows}, there);
  copy_rows(0, num_rows, vectors, squared_lengths);
  ready_ = parallel::StreamMark(device);
}

void DeviceSearch::update(std::span<const int64_t> rows, const float* vectors,
                          const float* squared_lengths) {
  enter();
  for (size_t i = 0; i < rows.size();) {
    size_t end = i + 1;  // of the run of rows that follow each other
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
    copy_rows(rows[i], static_cast<int64_t>(end - i), vectors, squared_lengths);
    i = end;
  }
  ready_ = parallel::StreamMark(device());
}

// Not through pinned memory, of which a corpus would take as much as it has.
void DeviceSearch::copy_rows(int64_t first, int64_t count, const float* vectors,
                             const float* squared_lengths) {
  const int64_t dim = vectors_NE_.size(1);
  vectors_NE_.narrow(0, first, count).copy_(over(vectors + first * dim, {count, dim}));
  if (squared_lengths != nullptr)
    squared_lengths_N_.narrow(0, first, count).copy_(over(squared_lengths + first, {count}));
}

void DeviceSearch::enter() const {
  ready_.pass();
  parallel::used_here(vectors_NE_);
  if (squared_lengths_N_.defined()) parallel::used_here(squared_lengths_N_);
}

void DeviceSearch::for_each_block(const at::Tensor& query_QE, int64_t bytes,
                                  const Visit& visit) const {
  const int64_t size = vectors_NE_.size(0);
  const int64_t most = std::max<int64_t>(1, score_bytes_ / (query_QE.size(0) * bytes));
  for (int64_t first = 0; first < size; first += most) {
    const int64_t count = std::min(most, size - first);
    at::Tensor score_QR = query_QE.mm(vectors_NE_.narrow(0, first, count).t());
    // Minus the squared distance, but for the query's own length.
    if (squared_lengths_N_.defined())
      score_QR.mul_(2).sub_(squared_lengths_N_.narrow(0, first, count));
    visit(score_QR, first);
  }
}

std::pair<at::Tensor, at::Tensor> DeviceSearch::fetch_best(const at::Tensor& query_QE,
                                                           int64_t fetched) const {
  const auto top = [](const at::Tensor& scores, int64_t most) {
    return scores.topk(std::min(most, scores.size(1)), 1, /*largest=*/true, /*sorted=*/false);
  };
  at::Tensor score_QF, row_QF;
  for_each_block(query_QE, sizeof(float), [&](const at::Tensor& score_QR, int64_t first) {
    const auto [score, row] = top(score_QR, fetched);
    row.add_(first);
    if (!score_QF.defined()) {
      score_QF = score;
      row_QF = row;
      return;
    }
    const at::Tensor all = at::cat({score_QF, score}, 1);
    const auto [best, kept] = top(all, fetched);
    row_QF = at::cat({row_QF, row}, 1).gather(1, kept);
    score_QF = best;
  });
  return {score_QF.to(at::kCPU), row_QF.to(at::kCPU)};
}

void DeviceSearch::candidates(const float* queries, int64_t num_queries, int64_t k,
                              const double* slacks, std::vector<int64_t>* rows_of) const {
  const int64_t size = vectors_NE_.size(0), dim = vectors_NE_.size(1);
  const int64_t fetched = k >= size ? size : std::min(size, 2 * k + 64);
  const int64_t most = std::max<int64_t>(1, score_bytes_ / (kPlaceBytes * fetched));
  const at::NoTF32Guard fp32;
  enter();
  for (int64_t first = 0; first < num_queries; first += most) {
    const int64_t count = std::min(most, num_queries - first);
    candidates_at_once(parallel::to_device(over(queries + first * dim, {count, dim}), device()),
                       fetched, k, slacks + first, rows_of + first);
  }
}

void DeviceSearch::candidates_at_once(const at::Tensor& query_QE, int64_t fetched, int64_t k,
                                      const double* slacks, std::vector<int64_t>* rows_of) const {
  const auto [score_QF, row_QF] = fetch_best(query_QE, fetched);
  const auto scores = score_QF.accessor<float, 2>();
  const auto rows = row_QF.accessor<int64_t, 2>();
  std::vector<int64_t> unsure;  // queries whose every fetched row reaches the bar, and their bars
  std::vector<float> bars;
  for (int64_t q = 0; q < query_QE.size(0); ++q) {
    Shortlist list;
    for (int64_t f = 0; f < fetched; ++f) list.items.emplace_back(scores[q][f], rows[q][f]);
    list.prune(k, slacks[q]);
    if (fetched < vectors_NE_.size(0) && static_cast<int64_t>(list.items.size()) == fetched) {
      unsure.push_back(q);
      bars.push_back(list.bar);
      continue;
    }
    for (const auto& [score, row] : list.items) rows_of[q].push_back(row);
  }
  if (unsure.empty()) return;
  const at::Tensor some_QE =
      query_QE.index_select(0, parallel::to_device(at::tensor(unsure, at::kLong), device()));
  const at::Tensor bar_Q1 =
      parallel::to_device(at::tensor(bars, at::kFloat), device()).unsqueeze(1);
  constexpr int64_t kBytes = 32;  // a score, its mark, the two numbers of its place, and to spare
  for_each_block(some_QE, kBytes, [&](const at::Tensor& score_QR, int64_t first) {
    const at::Tensor reach = score_QR.ge(bar_Q1).nonzero().to(at::kCPU);
    const auto places = reach.accessor<int64_t, 2>();
    for (int64_t i = 0; i < reach.size(0); ++i)
      rows_of[unsure[static_cast<size_t>(places[i][0])]].push_back(first + places[i][1]);
  });
}

}  // namespace contexture::retriever::internal
