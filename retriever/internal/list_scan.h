// Search in an inverted file of whole vectors ("IVF1024,Flat") by inner product: the lists that a
// batch's queries probe are each read once, by all threads, and multiplied with the queries that
// probe them. FAISS reads a list once for each query, and gives one query one thread.
#pragma once
#include <faiss/IndexIVF.h>

#include <memory>
#include <span>
#include <vector>

#include "retriever/internal/store.h"

namespace contexture::retriever::internal {

class ListScan {
 public:
  // Null unless `ivf` stores whole vectors, compares by inner product and finds its lists by a flat
  // index. unit_length: no vector is longer than 1.0001, so that none need be read. ivf must
  // outlive this, unchanged.
  static std::unique_ptr<ListScan> make(const faiss::IndexIVF* ivf, bool unit_length);

  // For each of the n queries, every row of the probed lists whose float score is within twice the
  // rounding bound of the k-th best. The ivf->nprobe nearest lists are probed, by scores in double;
  // more where they hold fewer than k rows.
  std::vector<std::vector<int64_t>> candidates(std::span<const float> queries, int64_t k) const;

 private:
  explicit ListScan(const faiss::IndexIVF& ivf) : ivf_(ivf) {}
  // The lists to read for each query, nearest first.
  std::vector<std::vector<int64_t>> probes(std::span<const float> queries, int64_t k) const;
  std::vector<int64_t> nearest(std::span<const float> query, const std::vector<int64_t>& lists,
                               int64_t wanted, int64_t* rows) const;

  const faiss::IndexIVF& ivf_;
  std::unique_ptr<Store> centroids_;
  double longest_ = 1.0001;
};

}  // namespace contexture::retriever::internal
