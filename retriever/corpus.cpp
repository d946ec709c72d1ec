#include "retriever/corpus.h"

#include "core/did_you_mean.h"
#include "core/error.h"

namespace contexture::retriever {

Corpus::Corpus(data::Corpus documents) : corpus_(std::move(documents)) {
  corpus_.index.clear();
  corpus_.index.reserve(corpus_.documents.size());
  for (int64_t row = 0; row < size(); ++row) {
    const std::string& id = corpus_.documents[row].id;
    const auto [known, fresh] = corpus_.index.emplace(id, row);
    CONTEXTURE_DATA_REQUIRE(!id.empty(), "Document ", row,
                            " has an empty id. Give every document one.");
    CONTEXTURE_DATA_REQUIRE(fresh, "Two documents have the id '", id, "': number ", known->second,
                            " and number ", row, " (from 0). Ids name documents: rename one.");
  }
}

Corpus Corpus::load(const std::string& source, data::BadRecords& bad) {
  return Corpus(data::read_corpus(source, bad));
}

const data::Document& Corpus::document(int64_t row) const {
  CONTEXTURE_INVARIANT(row >= 0 && row < size(), "row ", row, " of ", size());
  return corpus_.documents[row];
}

std::optional<int64_t> Corpus::find(const std::string& id) const {
  const auto found = corpus_.index.find(id);
  if (found == corpus_.index.end()) return std::nullopt;
  return found->second;
}

int64_t Corpus::row_of(const std::string& id) const {
  if (const auto row = find(id)) return *row;
  constexpr int64_t kMaxCompared = 100'000;  // comparing takes about a microsecond an id
  throw DataError(concat("No document has the id '", id, "' (", size(), " documents).",
                         size() <= kMaxCompared ? did_you_mean_hint(id, ids()) : ""));
}

std::vector<std::string> Corpus::ids() const {
  std::vector<std::string> ids;
  ids.reserve(corpus_.documents.size());
  for (const data::Document& document : corpus_.documents) ids.push_back(document.id);
  return ids;
}

std::vector<std::byte> Corpus::image(int64_t row) const {
  const data::Document& shown = document(row);
  if (shown.image.empty()) return {};
  CONTEXTURE_INVARIANT(corpus_.images != nullptr, "document '", shown.id,
                       "' names a picture, but the corpus has no source of pictures");
  return corpus_.images->read(shown.image);
}

int64_t Corpus::add(data::Document document) {
  CONTEXTURE_DATA_REQUIRE(!document.id.empty(), "The new document '", document.title,
                          "' has an empty id. Give it one.");
  const int64_t row = size();
  const auto known = find(document.id);
  CONTEXTURE_DATA_REQUIRE(!known, "The corpus already has a document with the id '", document.id,
                          "', at row ", known.value_or(0),
                          ". Edit that one, or choose another id.");
  std::string id = document.id;
  corpus_.documents.push_back(std::move(document));
  corpus_.index.emplace(std::move(id), row);
  return row;
}

data::Document Corpus::edit(int64_t row, data::Document document) {
  CONTEXTURE_INVARIANT(row >= 0 && row < size(), "row ", row, " of ", size());
  data::Document& present = corpus_.documents[row];
  CONTEXTURE_DATA_REQUIRE(document.id == present.id, "An edit of document '", present.id,
                          "' came with the id '", document.id,
                          "'. Ids stay; add a document instead.");
  return std::exchange(present, std::move(document));
}

}  // namespace contexture::retriever
