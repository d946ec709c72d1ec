// Saving and loading: the FAISS file, the ids, and the card that vouches for both.
#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/json.h"
#include "retriever/card.h"
#include "retriever/index.h"
#include "retriever/internal/flat_file.h"
#include "retriever/internal/score.h"
#include "retriever/internal/state.h"

namespace contexture::retriever {
namespace {

namespace fs = std::filesystem;

fs::path ids_path(const fs::path& path) { return path.string() + ".ids.jsonl"; }
fs::path card_path(const fs::path& path) { return path.string() + ".card.json"; }

// Writes what `produce` gives to its sink, all or nothing.
template <typename Produce>
CardFile write_file(const fs::path& path, const Produce& produce) {
  AtomicFile file(path);
  Sha256 hash;
  produce([&](std::span<const std::byte> bytes) {
    hash.update(bytes);
    file.write(bytes);
  });
  CardFile written{static_cast<int64_t>(file.num_bytes()), hash.finish_hex()};
  file.commit();
  return written;
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Refuses a file that is not the one the card was written for.
void check_file(std::string_view bytes, const CardFile& stated, const fs::path& path,
                bool checksum = true) {
  CONTEXTURE_DATA_REQUIRE(
      bytes.size() == static_cast<uint64_t>(stated.bytes), path.string(), " has ", bytes.size(),
      " bytes, its card says ", stated.bytes,
      ": it is cut short, or was replaced without its card. Copy both again, or build it again.");
  if (!checksum) return;
  const std::string found = sha256_hex(std::as_bytes(std::span(bytes)));
  CONTEXTURE_DATA_REQUIRE(
      found == stated.sha256, path.string(), " has SHA-256 ", found, ", its card says ",
      stated.sha256,
      ": it is damaged, or was replaced without its card. Copy both again, or build it again.");
}

// Nothing to unescape: a quoted line of printable ASCII. Most ids are so, and a million of them are
// read at every load.
bool is_plain_string(std::string_view line) {
  if (line.size() < 2 || line.front() != '"' || line.back() != '"') return false;
  line = line.substr(1, line.size() - 2);
  return std::all_of(line.begin(), line.end(),
                     [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; });
}

std::vector<std::string> parse_ids(std::string_view text, int64_t count,
                                   const std::string& source) {
  std::vector<std::string> ids;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (const std::string_view line = text.substr(0, end); is_plain_string(line)) {
      ids.emplace_back(line.substr(1, line.size() - 2));
    } else {
      const Json id = parse_json(line, concat(source, ":", ids.size() + 1));
      CONTEXTURE_DATA_REQUIRE(id.is_string(), source, ":", ids.size() + 1,
                              ": an id must be a JSON string.");
      ids.push_back(id.get<std::string>());
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  CONTEXTURE_DATA_REQUIRE(static_cast<int64_t>(ids.size()) == count, source, " holds ", ids.size(),
                          " ids, the card says ", count, ". Build the index again.");
  return ids;
}

}  // namespace

void Index::save(const fs::path& path) const {
  IndexCard card;
  card.options = state_->options;
  card.built_factory = state_->built_factory;
  card.normalised = state_->normalised;
  card.dim = state_->dim;
  card.count = size();
  card.index = write_file(path, [&](const auto& sink) { state_->store->write(sink); });
  card.ids = write_file(ids_path(path), [&](const auto& sink) {
    std::string lines;
    for (const std::string& id : state_->ids) {
      lines += Json(id).dump();
      lines += '\n';
      if (lines.size() < (size_t{1} << 20)) continue;
      sink(as_bytes(lines));
      lines.clear();
    }
    sink(as_bytes(lines));
  });
  write_file_atomic(card_path(path), card_text(card));
}

Index Index::load(const fs::path& path, bool mapped) {
  CONTEXTURE_DATA_REQUIRE(fs::exists(path), path.string(), ": there is no such index.");
  CONTEXTURE_DATA_REQUIRE(fs::exists(card_path(path)), path.string(), " has no card beside it (",
                          card_path(path).filename().string(),
                          "), so nothing says which encoder and metric it was made with. Build it "
                          "with 'contexture index build'.");
  MappedFile file(path);
  const std::string_view bytes = text_of(file);
  constexpr uint64_t kMaxCardBytes = 1 << 20;
  const IndexCard card =
      parse_card(read_file(card_path(path), kMaxCardBytes), card_path(path).string());
  check_index_header(bytes.substr(0, 64), bytes.size(), card, path.string());
  check_file(bytes, card.index, path, /*checksum=*/!mapped);
  const MappedFile ids_file(ids_path(path));
  check_file(text_of(ids_file), card.ids, ids_path(path));

  auto state = std::make_unique<State>();
  state->options = card.options;
  state->built_factory = card.built_factory;
  state->dim = card.dim;
  state->normalised = card.normalised;
  state->add_ids(parse_ids(text_of(ids_file), card.count, ids_path(path).string()));
  IndexOptions built = card.options;
  built.factory = card.built_factory;
  if (card.built_factory == "Flat") {
    const auto vectors = internal::flat_file_vectors(card.dim, card.count, bytes, path.string());
    if (mapped) {
      state->store = internal::view_exact_store(built.metric, card.dim, vectors, card.normalised);
    } else {
      std::vector<float> owned(vectors.size() / sizeof(float));
      if (!owned.empty()) std::memcpy(owned.data(), vectors.data(), vectors.size());
      internal::check_vectors(owned, card.dim, built.metric,
                              state->namer(path.string() + ": the vector"));
      state->store = internal::make_exact_store(built.metric, card.dim, std::move(owned));
    }
  } else {
    state->store =
        internal::read_faiss_store(built, card.dim, card.count, bytes, path.string(), mapped);
  }
  if (mapped) state->file.emplace(std::move(file));
  return Index(std::move(state));
}

}  // namespace contexture::retriever
