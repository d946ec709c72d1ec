#include "retriever/internal/flat_file.h"

#include <bit>
#include <cstring>

#include "core/error.h"

namespace contexture::retriever::internal {
namespace {

static_assert(std::endian::native == std::endian::little, "FAISS files are little-endian");

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T take(std::string_view bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

constexpr int64_t kFiller = int64_t{1} << 20;  // what FAISS writes there

}  // namespace

FaissHeader parse_faiss_header(std::string_view bytes) {
  CONTEXTURE_INVARIANT(bytes.size() >= kFaissHeaderBytes);
  FaissHeader header;
  header.tag = bytes.substr(0, 4);
  header.dim = take<int32_t>(bytes, 4);
  header.count = take<int64_t>(bytes, 8);
  header.trained = bytes[32] != 0;
  header.metric = take<int32_t>(bytes, 33);
  return header;
}

void write_flat_file(Metric metric, int64_t dim, int64_t count, std::span<const std::byte> vectors,
                     const Sink& sink) {
  std::string head = metric == Metric::kL2 ? "IxF2" : "IxFI";
  append(head, static_cast<int32_t>(dim));
  append(head, count);
  append(head, kFiller);
  append(head, kFiller);
  append(head, uint8_t{1});
  append(head, int32_t{metric == Metric::kL2 ? 1 : 0});
  append(head, static_cast<uint64_t>(vectors.size() / sizeof(float)));
  sink(std::as_bytes(std::span(head)));
  sink(vectors);
}

std::span<const std::byte> flat_file_vectors(int64_t dim, int64_t count, std::string_view bytes,
                                             const std::string& source) {
  constexpr size_t kBody = kFaissHeaderBytes + sizeof(uint64_t);
  // dim <= 2^16 and count <= 2^40 by the card's checks, so the product fits.
  const uint64_t num_floats = static_cast<uint64_t>(dim) * static_cast<uint64_t>(count);
  const uint64_t expected = kBody + num_floats * sizeof(float);
  CONTEXTURE_DATA_REQUIRE(bytes.size() == expected, source, ": ", count, " flat vectors of ", dim,
                          " floats take ", expected, " bytes, but the file has ", bytes.size(),
                          ". It is damaged or not a flat index: build it again.");
  const uint64_t stated = take<uint64_t>(bytes, kFaissHeaderBytes);
  CONTEXTURE_DATA_REQUIRE(stated == num_floats, source, ": its list of floats says it holds ",
                          stated, ", but ", count, " vectors of ", dim, " make ", num_floats,
                          ". It is damaged: build it again.");
  return std::as_bytes(std::span(bytes)).subspan(kBody);
}

}  // namespace contexture::retriever::internal
