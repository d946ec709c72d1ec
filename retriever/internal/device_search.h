// The vectors of an exact index on a device, and candidates found there: a matrix product with each
// block of rows, and the best of it by top-k.
// N rows, E numbers a vector, Q queries, R rows of a block, F rows fetched for a query.
//
// Why the k best are among the candidates. A float product is off by at most half a query's slack
// (inner_product_slack(): true of fp32 additions in any order, and products are kept in fp32: TF32
// is off here whatever the process allows). So at least k rows truly reach the k-th best float
// score less half a slack, and whatever truly reaches that has a float score of at least the k-th
// best less a slack: the bar. Top-k fetches F = 2k + 64 rows. Where one of these lies below the
// bar, all that reach it were fetched. Where none does (ties, duplicates), the query is multiplied
// again and every row that reaches its bar is taken; that product may be rounded otherwise: the
// argument holds for each product by itself.
#pragma once
#include <ATen/ATen.h>

#include <functional>
#include <span>
#include <vector>

#include "parallel/device.h"

namespace contexture::retriever::internal {

class DeviceSearch {
 public:
  // Copies `vectors` [num_rows, dim] to the device; squared_lengths [num_rows] scores by minus the
  // squared distance, null by the inner product. score_bytes: what the scores of a block may take,
  // with the marks and numbers of those that reach a bar; the lists of best rows as much again
  // (those of one query, 80 bytes for each of its 2k + 64, always have room).
  DeviceSearch(at::Device device, int64_t score_bytes, int64_t dim, int64_t num_rows,
               const float* vectors, const float* squared_lengths);

  int64_t score_bytes() const { return score_bytes_; }
  at::Device device() const { return vectors_NE_.device(); }

  // Copies some rows of what the constructor copied again. Not while another thread searches.
  void update(std::span<const int64_t> rows, const float* vectors, const float* squared_lengths);

  // For each of the num_queries queries, of that slack, the rows that reach its bar, in any order,
  // to rows_of: at least min(k, N). Waits for the device.
  void candidates(const float* queries, int64_t num_queries, int64_t k, const double* slacks,
                  std::vector<int64_t>* rows_of) const;

 private:
  void copy_rows(int64_t first, int64_t count, const float* vectors, const float* squared_lengths);
  // The calling thread's stream comes after the last change, and keeps the memory.
  void enter() const;
  // visit(score_QR, first row of the block), in the order of the rows. bytes: of a score and what
  // is made of it.
  using Visit = std::function<void(const at::Tensor& score_QR, int64_t first)>;
  void for_each_block(const at::Tensor& query_QE, int64_t bytes, const Visit& visit) const;
  std::pair<at::Tensor, at::Tensor> fetch_best(const at::Tensor& query_QE, int64_t fetched) const;
  void candidates_at_once(const at::Tensor& query_QE, int64_t fetched, int64_t k,
                          const double* slacks, std::vector<int64_t>* rows_of) const;

  int64_t score_bytes_;
  at::Tensor vectors_NE_, squared_lengths_N_;  // the second undefined for inner products
  parallel::StreamMark ready_;
};

}  // namespace contexture::retriever::internal
