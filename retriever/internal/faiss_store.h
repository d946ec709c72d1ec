// A FAISS index of any factory string, taken apart far enough to search it one way for every query.
// Only the files beside this one see it.
#pragma once
#include <faiss/Index.h>
#include <faiss/IndexHNSW.h>
#include <faiss/IndexIVF.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/IndexRefine.h>

#include <memory>
#include <string>

#include "retriever/internal/list_scan.h"
#include "retriever/internal/store.h"

namespace contexture::retriever::internal {

// The parts of an index, outermost first; those that it lacks are null. Points into the index.
struct FaissParts {
  explicit FaissParts(faiss::Index* index);

  faiss::IndexRefine* refine = nullptr;
  faiss::IndexPreTransform* transform = nullptr;
  faiss::Index* core = nullptr;    // what is left: inverted file, graph, codes
  faiss::IndexIVF* ivf = nullptr;  // core, when it is an inverted file
};

faiss::MetricType faiss_metric(Metric metric);

// An untrained index; UserError naming the string when FAISS does not know it.
std::unique_ptr<faiss::Index> make_faiss_index(const std::string& factory, Metric metric,
                                               int64_t dim);

class FaissStore : public Store {
 public:
  // Takes a trained index whose vectors are all in. UserError when it can't give them back.
  // mapped: its lists can only be read.
  FaissStore(const IndexOptions& options, std::unique_ptr<faiss::Index> index, bool mapped = false);

  int64_t size() const override { return index_->ntotal; }
  const float* vector(int64_t row, float* buffer) const override;
  void add(std::span<const float> vectors) override;
  void replace(std::span<const int64_t> rows, std::span<const float> vectors) override;
  std::vector<std::vector<int64_t>> candidates(std::span<const float> queries,
                                               int64_t k) const override;
  void set_search(const std::string& parameters) override;
  void write(const Sink& sink) const override;

 private:
  void require_changeable() const;
  void prepare_scan();
  std::vector<int64_t> search_one(const float* query, int64_t wanted, int64_t k) const;

  IndexOptions options_;
  std::unique_ptr<faiss::Index> index_;
  FaissParts parts_;
  bool mapped_;
  std::unique_ptr<ListScan> scan_;  // null where FAISS searches
};

}  // namespace contexture::retriever::internal
