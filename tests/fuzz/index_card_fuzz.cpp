// Any card is refused with a DataError or reads back the same; any header is refused or fits its
// card; a flat index file gives exactly the vectors that the card and its length allow. The first
// byte says how much of the input is the card; the rest is the index file.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "retriever/card.h"
#include "retriever/internal/flat_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace contexture;
  using namespace contexture::retriever;
  if (size < 2) return 0;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t card_bytes = (static_cast<size_t>(data[0]) << 8 | data[1]) % (size - 1);
  input.remove_prefix(2);
  const std::string_view index = input.substr(std::min(card_bytes, input.size()));
  IndexCard card;
  card.built_factory = "Flat";
  try {
    card = parse_card(input.substr(0, card_bytes), "card");
    if (card_text(parse_card(card_text(card), "again")) != card_text(card)) std::abort();
  } catch (const DataError&) {
    card.dim = 1 + data[0] % 8;  // look at the index all the same
    card.count = data[1];
    card.options.metric = Metric::kL2;
  }
  try {
    check_index_header(index.substr(0, 64), index.size(), card, "index");
    const auto vectors = internal::flat_file_vectors(card.dim, card.count, index, "index");
    if (vectors.size() > index.size()) std::abort();
  } catch (const DataError&) {
  }
  return 0;
}
