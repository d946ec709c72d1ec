// Where an index keeps its vectors and finds candidates. Index checks, normalises, scores and ranks
// around it; a store sees checked vectors only (already of length 1 under cosine).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "retriever/index.h"

namespace contexture::retriever::internal {

using Sink = std::function<void(std::span<const std::byte>)>;

class Store {
 public:
  virtual ~Store() = default;

  virtual int64_t size() const = 0;
  // The vector of `row`, [dim]: a pointer into the store, or `buffer` filled.
  virtual const float* vector(int64_t row, float* buffer) const = 0;
  virtual void add(std::span<const float> vectors) = 0;
  virtual void replace(std::span<const int64_t> rows, std::span<const float> vectors) = 0;
  // Rows to score for each of the n queries, distinct, at least min(k, size()) of them, in any
  // order.
  virtual std::vector<std::vector<int64_t>> candidates(std::span<const float> queries,
                                                       int64_t k) const = 0;
  virtual void set_search(const std::string& parameters) = 0;
  // As Index::search_on(); a store that is searched by FAISS stays where it is.
  virtual void search_on(at::Device /*device*/, int64_t /*score_bytes*/) {}
  virtual void write(const Sink& sink) const = 0;  // a FAISS file
};

// "Flat": the vectors themselves, once. Candidates are exact: every row whose float score is within
// twice the rounding bound of the k-th best, so the true k best are among them.
std::unique_ptr<Store> make_exact_store(Metric metric, int64_t dim, std::vector<float> vectors);
// The same over floats that stay where they are (at any address), until it is changed. unit_length:
// none is longer than 1.0001.
std::unique_ptr<Store> view_exact_store(Metric metric, int64_t dim,
                                        std::span<const std::byte> vectors, bool unit_length);

// Any other factory string. Throws UserError naming it when FAISS refuses it or can't give vectors
// back.
std::unique_ptr<Store> make_faiss_store(const IndexOptions& options, int64_t dim,
                                        std::span<const float> vectors);
// mapped: inverted lists stay in `bytes`, which must then outlive the store; it can't be changed or
// written.
std::unique_ptr<Store> read_faiss_store(const IndexOptions& options, int64_t dim, int64_t count,
                                        std::string_view bytes, const std::string& source,
                                        bool mapped);

// How many vectors the factory needs to be trained at all, and a factory that `num_vectors` would
// do for. UserError when FAISS does not know the string.
struct TrainingNeed {
  int64_t min_vectors = 0;
  int64_t num_lists = 0;     // of the inverted file; 0 when there is none
  int64_t well_vectors = 0;  // below this clusters are poor: 39 a centroid, as FAISS asks for
};
TrainingNeed training_need(const std::string& factory, Metric metric, int64_t dim);

// "IDMap," and "IDMap2," fall away: ids are ours. "Flat" is what remains of "IDMap,Flat".
std::string without_id_map(const std::string& factory);

}  // namespace contexture::retriever::internal
