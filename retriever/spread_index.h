// An index searched by the ranks of a world together: each loads some of its shards, and the k best
// of what they find are those of the whole, whatever the number of ranks (retriever/rank_search.h).
// Rank 0 asks; without a world the one process does all.
#pragma once
#include <memory>

#include "retriever/rank_search.h"
#include "retriever/sharded_index.h"

namespace contexture::retriever {

struct NamedHit {
  std::string id;
  double score = 0.0;  // as Hit's
};

class SpreadIndex {
 public:
  // path: as for ShardedIndex::load(); rank r of n loads the r-th n-th of the shards, none where
  // there are fewer shards than ranks. Throws what that throws on the rank that finds it, and
  // DataError on rank 0 where the ranks' shards don't belong together or an id is in shards of two
  // ranks. Collective.
  static SpreadIndex load(const std::filesystem::path& path, bool mapped,
                          std::shared_ptr<parallel::Communicator> world);

  int64_t size() const { return size_; }  // of all ranks together
  int64_t dim() const { return dim_; }
  void set_search(const std::string& parameters);
  void require_encoder(std::string_view hash) const;  // as Index does; rank 0 knows
  // The stored vector of a document on all ranks; nothing where none has it. Collective.
  std::optional<std::vector<float>> vector_of(const std::string& id) const;

  // On rank 0: [n] the k best of each query, best first. The other ranks meanwhile are in assist(),
  // until rank 0 calls release().
  std::vector<std::vector<NamedHit>> search(std::span<const float> queries, int64_t k) const;
  void assist() const;
  void release() const;

 private:
  SpreadIndex() = default;
  // Nothing where no rank asks any more. queries: on rank 0.
  std::optional<std::vector<std::vector<NamedHit>>> search_together(std::span<const float> queries,
                                                                    int64_t k) const;

  std::shared_ptr<parallel::Communicator> world_;
  std::optional<ShardedIndex> mine_;
  int64_t size_ = 0, dim_ = 0, first_row_ = 0;  // first_row_: of mine_, among all
  std::string encoder_hash_;
};

}  // namespace contexture::retriever
