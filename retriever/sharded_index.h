// An index cut into shards, each an index of its own with its card, and a list of them: searched
// together, the result is that of the whole (every shard gives its k best, the k best of these are
// the k best of all). Shards may be cut anew at will (docs/formats/index.md).
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "retriever/index.h"

namespace contexture::retriever {

// What a list of shards names.
struct ShardList {
  std::filesystem::path path;
  std::vector<std::filesystem::path> shards;
  int64_t count = -1;  // documents in all; -1: path is itself the one shard
  static ShardList read(const std::filesystem::path& path);
};

class ShardedIndex {
 public:
  // `path` is one index, or a list of shards (ending in .shards.json). Throws DataError naming the
  // shard when one is missing, damaged, of another metric, dimension or encoder, or when an id is
  // in two of them.
  static ShardedIndex load(const std::filesystem::path& path, bool mapped = false);
  // Shards [begin, end) of a list alone.
  static ShardedIndex load(const ShardList& list, int64_t begin, int64_t end, bool mapped);
  // At least one. names: the shards' files, for where().
  explicit ShardedIndex(std::vector<Index> shards, std::vector<std::string> names = {});

  int64_t size() const { return first_row_.back(); }
  int64_t dim() const { return shards_.front().dim(); }
  const IndexOptions& options() const { return shards_.front().options(); }
  const std::vector<Index>& shards() const { return shards_; }

  // Rows count through the shards in their order.
  const std::string& id(int64_t row) const;
  std::string where(int64_t row) const;  // "b.faiss (row 12)": its shard, and the row in that one
  std::optional<int64_t> find(const std::string& id) const;
  std::vector<float> vector(int64_t row) const;
  std::vector<Ranking> search(std::span<const float> queries, int64_t k) const;
  void set_search(const std::string& parameters);
  void require_encoder(std::string_view hash) const { shards_.front().require_encoder(hash); }

 private:
  std::pair<size_t, int64_t> place(int64_t row) const;  // shard, row within
  std::vector<Index> shards_;
  std::vector<std::string> names_;  // [shards]
  std::vector<int64_t> first_row_;  // [shards + 1]
};

// DataError naming the id and both its places when one is twice in all of `sources` together. An id
// names one document: which of two vectors was meant nobody could say.
void require_distinct_ids(const std::vector<const ShardedIndex*>& sources);
// The message. a, b: as where() says.
std::string twice_message(std::string_view id, const std::string& a, const std::string& b);

// Everything in `sources` (indexes or lists of shards), as one index at `path` (num_shards 1) or as
// shards and their list `path`, which then ends in .shards.json. factory empty: the first source's.
// Ids keep their order. Throws UserError when the sources' metrics, dimensions or encoders differ,
// DataError as require_distinct_ids() does.
void write_merged(const std::vector<const ShardedIndex*>& sources, const std::string& factory,
                  int64_t num_shards, const std::filesystem::path& path);

// Builds n vectors as shards of consecutive rows and writes them with their list.
void build_shards(const IndexOptions& options, int64_t dim, std::vector<std::string> ids,
                  std::span<const float> vectors, int64_t num_shards,
                  const std::filesystem::path& path);

bool is_shard_list(const std::filesystem::path& path);

}  // namespace contexture::retriever
