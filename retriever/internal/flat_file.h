// The FAISS file of a flat index (tags IxFI, IxF2), read and written here because it is the one
// people have most of: every size is checked against the file before anything is allocated.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "retriever/internal/store.h"

namespace contexture::retriever::internal {

// The first bytes of any FAISS index file: tag, dimension, count, two fillers, trained, metric.
struct FaissHeader {
  std::string tag;  // four letters
  int32_t dim = 0;
  int64_t count = 0;
  bool trained = false;
  int32_t metric = 0;  // 0 inner product, 1 L2
};
inline constexpr size_t kFaissHeaderBytes = 37;
FaissHeader parse_faiss_header(std::string_view bytes);  // at least kFaissHeaderBytes

// vectors: count x dim floats, at any address.
void write_flat_file(Metric metric, int64_t dim, int64_t count, std::span<const std::byte> vectors,
                     const Sink& sink);

// Where the floats of a flat file lie, at an address that floats may not have. Throws DataError
// naming `source` and both sizes unless `bytes` is exactly a flat file of count x dim floats.
std::span<const std::byte> flat_file_vectors(int64_t dim, int64_t count, std::string_view bytes,
                                             const std::string& source);

}  // namespace contexture::retriever::internal
