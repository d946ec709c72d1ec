// Bounds-checked little- and big-endian reads for the picture headers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace contexture::data::internal {

using Bytes = std::span<const std::byte>;

inline bool holds(Bytes bytes, uint64_t at, uint64_t count) {
  return at <= bytes.size() && count <= bytes.size() - at;
}

// 0 where the bytes end: callers check holds() wherever 0 would mean something.
inline uint64_t read_uint(Bytes bytes, uint64_t at, int width, bool big_endian) {
  if (!holds(bytes, at, static_cast<uint64_t>(width))) return 0;
  uint64_t value = 0;
  for (int i = 0; i < width; ++i) {
    const int shift = 8 * (big_endian ? width - 1 - i : i);
    value |= static_cast<uint64_t>(bytes[at + static_cast<uint64_t>(i)]) << shift;
  }
  return value;
}

inline bool has_text(Bytes bytes, uint64_t at, std::string_view text) {
  return holds(bytes, at, text.size()) &&
         std::memcmp(bytes.data() + at, text.data(), text.size()) == 0;
}

}  // namespace contexture::data::internal
