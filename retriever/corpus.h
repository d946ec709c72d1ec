// The documents that an index retrieves from: one dense row number per document, looked up either
// way. Rows are given in reading order and never move, so row r of an index built from ids() is
// document r. Reading from several threads is safe; add() and edit() need the corpus to themselves.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/records.h"

namespace contexture::retriever {

class Corpus {
 public:
  Corpus() = default;
  // Takes the documents over. Throws DataError naming an id that occurs twice.
  explicit Corpus(data::Corpus documents);
  // `source` as data::read_corpus takes it: a .jsonl file, a tar, or a brace list of tars.
  static Corpus load(const std::string& source, data::BadRecords& bad);

  int64_t size() const { return static_cast<int64_t>(corpus_.documents.size()); }
  const data::Document& document(int64_t row) const;         // Bug when row is out of range
  std::optional<int64_t> find(const std::string& id) const;  // exact bytes: "07" is not "7"
  int64_t row_of(const std::string& id) const;               // DataError with the nearest known id
  std::vector<std::string> ids() const;                      // [size()], in row order

  // The encoded bytes of the document's picture; empty when it has none.
  std::vector<std::byte> image(int64_t row) const;
  const std::shared_ptr<data::ImageSource>& images() const { return corpus_.images; }

  // Appends and returns the new row. Throws DataError naming an empty or known id.
  int64_t add(data::Document document);

  // Puts `document` in place of the one at `row`, in memory only, and returns the former one, so
  // that an edit can be taken back. The id must stay; throws DataError naming both ids otherwise.
  data::Document edit(int64_t row, data::Document document);

 private:
  data::Corpus corpus_;
};

}  // namespace contexture::retriever
