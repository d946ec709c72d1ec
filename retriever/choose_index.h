// Which index for how many vectors, how much memory and what recall; and how good an index is
// beside the exact answer.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "retriever/index.h"

namespace contexture::retriever {

struct IndexChoice {
  std::string factory;
  int64_t bytes = 0;      // that searching will take, ids included (64 bytes each are reckoned)
  std::string explained;  // one sentence a line: what was weighed, and why this one
};

// memory_bytes: what searching may take. recall: of the exact first ten that are to be found, in
// (0, 1]; 1 asks for the exact index. Throws UserError with the least memory that would do when
// nothing fits.
IndexChoice choose_index(int64_t count, int64_t dim, uint64_t memory_bytes, double recall);

// "16G", "500M", "1.5T", "4096": bytes, in powers of 1024. Throws UsageError.
uint64_t parse_bytes(const std::string& text);

// The exact best k of `vectors` [n, dim] for each query; rows of `vectors`. Needs the memory of
// 100,000 vectors more.
std::vector<Ranking> exact_search(Metric metric, int64_t dim, std::span<const float> vectors,
                                  std::span<const float> queries, int64_t k);

// How many of the exact nearest ten an index finds, asked with up to 256 of its own vectors (each
// without itself).
class RecallProbe {
 public:
  // vectors: what the index was built from, by its rows.
  RecallProbe(Metric metric, int64_t dim, std::span<const float> vectors);
  template <typename AnyIndex>
  double measure(const AnyIndex& index) const {
    return overlap(without_self(index.search(queries_, kFound + 1)), exact_);
  }

 private:
  static constexpr int64_t kFound = 10;
  std::vector<Ranking> without_self(std::vector<Ranking> rankings) const;
  std::vector<int64_t> rows_;
  std::vector<float> queries_;
  std::vector<Ranking> exact_;
};

// Raises nprobe (or efSearch) by doubling until the recall is reached or the index has no more to
// give, and keeps it. Returns the recall measured. An index without such a setting is measured as
// it is.
double tune_search(Index& index, const RecallProbe& probe, double recall);

}  // namespace contexture::retriever
