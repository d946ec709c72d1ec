// The card beside an index file: what the FAISS file does not say about itself
// (docs/formats/index.md).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "retriever/index.h"

namespace contexture::retriever {

inline constexpr int64_t kIndexFormatVersion = 1;
inline constexpr int64_t kMaxDim = 65536;
inline constexpr int64_t kMaxCount = int64_t{1} << 40;

// A file beside the card; its name follows from the card's.
struct CardFile {
  int64_t bytes = 0;
  std::string sha256;  // 64 lower-case letters
};

struct IndexCard {
  IndexOptions options;
  std::string built_factory;
  bool normalised = false;
  int64_t dim = 0;    // 1..kMaxDim
  int64_t count = 0;  // 0..kMaxCount
  CardFile index, ids;
};

std::string card_text(const IndexCard& card);
// Throws DataError naming `source`, the field, what it holds and what is allowed; a version newer
// than ours is refused by saying so.
IndexCard parse_card(std::string_view text, const std::string& source);

// What a FAISS file says in its first bytes. Throws DataError when it does not fit the card: a Git
// LFS pointer, a text file, another dimension, count or metric. `bytes` is the file's beginning (64
// bytes are enough), `file_bytes` its length.
void check_index_header(std::string_view bytes, uint64_t file_bytes, const IndexCard& card,
                        const std::string& source);

}  // namespace contexture::retriever
