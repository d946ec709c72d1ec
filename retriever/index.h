// A vector index over documents: factory strings as FAISS users know them, string ids, one exact
// ranking.
//
// The index proposes candidates (all of them within rounding of the k-th best for "Flat", an
// over-fetched list for the others); each (query, stored vector) pair is then scored alone, in
// double, in a fixed order of additions, and ranked by score, then by id. So a ranking depends
// neither on the batch a query came in nor on threads, and ties do not shuffle. Padding never
// leaves: every query gets exactly min(k, size()) hits.
//
// Vectors are float32, row-major [n, dim]. Every one is checked before it is used: a NaN, an
// infinity, a length over 1e18, or under cosine a length of zero throws DataError naming the first
// bad row. Searching from several threads is safe; whatever changes the index needs it to itself.
#pragma once
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace contexture::retriever {

// Stored by name in the card; kCosine normalises stored vectors and queries itself.
enum class Metric { kInnerProduct, kCosine, kL2 };
const char* metric_name(Metric metric);        // "inner_product", "cosine", "l2"
Metric parse_metric(const std::string& name);  // UsageError listing the names

struct IndexOptions {
  std::string factory =
      "Flat";  // "IVF256,Flat", "OPQ16_64,IVF256,PQ16", "HNSW32", "PQ16x4fs,RFlat", ...
  Metric metric = Metric::kCosine;
  uint64_t seed = 1;  // of the clustering; "Flat" and "HNSW" draw nothing from it
  std::string
      search;  // FAISS search parameters, "nprobe=16" or "efSearch=64"; empty: the factory's
  std::string encoder_hash;  // of the weights that made the vectors; checked by require_encoder()
};

struct Hit {
  int64_t row = 0;
  double score = 0.0;  // inner product, cosine, or minus the squared distance: more is better
};
using Ranking = std::vector<Hit>;  // best first

class Index {
 public:
  // ids: [n] distinct, valid UTF-8, not empty; a repeated one is refused by name. With fewer
  // vectors than the factory can be trained on (10 vectors, "IVF1024,Flat") the index is built as
  // "Flat" and a warning names n, the number needed and a factory that would fit; built_factory()
  // tells. Throws UserError naming a factory string that FAISS does not know, or that cannot give
  // vectors back for scoring.
  static Index build(const IndexOptions& options, int64_t dim, std::vector<std::string> ids,
                     std::span<const float> vectors);
  // Reads what save() wrote; nothing is allocated from a size that the card, the file's length and
  // its SHA-256 do not vouch for. Throws DataError with the reason: no card, damaged, cut short, a
  // Git LFS pointer, a newer format version.
  // mapped: vectors (Flat) and inverted lists stay in the file and are read as a search touches
  // them: a load takes milliseconds and several processes share the memory. The file's SHA-256 is
  // then not checked, and an inverted file can't be changed.
  static Index load(const std::filesystem::path& path, bool mapped = false);
  Index(Index&&) noexcept;
  Index& operator=(Index&&) noexcept;
  ~Index();

  int64_t size() const;
  int64_t dim() const;
  const IndexOptions& options() const;
  const std::string& built_factory() const;  // options().factory, or "Flat" after the fall-back
  bool normalised() const;                   // every stored vector has length 1 (to 1e-4)
  const std::string& id(int64_t row) const;
  std::optional<int64_t> find(const std::string& id) const;

  // queries: [n, dim]. Returns [n], each of min(k, size()) hits. k >= 1.
  std::vector<Ranking> search(std::span<const float> queries, int64_t k) const;

  // The vector at `row` as scored: normalised under cosine, decoded where the factory compresses.
  // [dim]
  std::vector<float> vector(int64_t row) const;
  std::vector<float> vectors() const;  // [size(), dim]

  void add(std::vector<std::string> ids, std::span<const float> vectors);
  // New vectors for some rows: an edited document. Throws UserError for factories that can't
  // (HNSW): rebuild.
  void replace(std::span<const int64_t> rows, std::span<const float> vectors);
  // New vectors for all rows, from a newer encoder; the ids stay. "Flat" copies into place, others
  // train again. When it throws, the index is as before.
  void rebuild(std::span<const float> vectors, const std::string& encoder_hash);

  // From now on an exact index (built_factory() "Flat") is searched on the device: a copy of its
  // vectors lies there and follows changes, and candidates come from matrix products and top-k on
  // it, block of rows by block of rows, so that the scores of a block take score_bytes at most.
  // They are scored and ranked here as ever: rankings and scores are the same. Other factories stay
  // on the CPU. A search comes after the last change, whichever streams they were made in.
  void search_on(at::Device device, int64_t score_bytes = int64_t{64} << 20);

  // Changes options().search.
  void set_search(const std::string& parameters);
  // Throws UserError unless the vectors come from this encoder; an index without a recorded hash
  // passes.
  void require_encoder(std::string_view hash) const;

  // Writes `path` (a FAISS file that FAISS itself can read), `path`.ids.jsonl and, last,
  // `path`.card.json. All or nothing for each file: see core/files.h.
  void save(const std::filesystem::path& path) const;

 private:
  struct State;
  explicit Index(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Index::require_encoder() for vectors that the encoder `made_by` made; empty: not known.
void require_encoder(std::string_view made_by, std::string_view hash);

// Mean share of `exact`'s rows that `approximate` has too, 0..1: what an approximate index loses.
// Both [n].
double overlap(const std::vector<Ranking>& approximate, const std::vector<Ranking>& exact);

}  // namespace contexture::retriever
