// Small pictures built byte by byte, for what no encoder at hand writes.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/image.h"

namespace contexture::data::fixtures {

using Buffer = std::vector<std::byte>;

inline Buffer bytes_of(std::string_view text) {
  Buffer bytes;
  for (const char c : text) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}
inline void put(Buffer& bytes, uint64_t value, int width, bool big_endian = true) {
  for (int i = 0; i < width; ++i) {
    bytes.push_back(static_cast<std::byte>(value >> (8 * (big_endian ? width - 1 - i : i))));
  }
}
inline void put(Buffer& bytes, const Buffer& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

inline uint32_t crc32(const Buffer& bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const std::byte b : bytes) {
    crc ^= static_cast<uint32_t>(b);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320U : 0U);
  }
  return ~crc;
}
inline Buffer chunk(std::string_view type, const Buffer& body) {
  Buffer checked = bytes_of(type), all;
  put(checked, body);
  put(all, body.size(), 4);
  put(all, checked);
  put(all, crc32(checked), 4);
  return all;
}

// A PNG of raw samples, row after row, with stored (uncompressed) deflate blocks.
struct Png {
  int64_t height = 0, width = 0;
  int depth = 8, color_type = 2;
  std::vector<uint8_t> samples;
  std::vector<uint8_t> palette{}, transparency{};

  Buffer bytes() const {
    Buffer header, all = bytes_of("\x89PNG\r\n\x1a\n");
    put(header, static_cast<uint64_t>(width), 4);
    put(header, static_cast<uint64_t>(height), 4);
    put(header, static_cast<uint64_t>(depth), 1);
    put(header, static_cast<uint64_t>(color_type), 1);
    put(header, 0, 3);
    put(all, chunk("IHDR", header));
    const auto raw_chunk = [&](const char* type, const std::vector<uint8_t>& raw) {
      Buffer body;
      for (const uint8_t b : raw) put(body, b, 1);
      if (!body.empty()) put(all, chunk(type, body));
    };
    raw_chunk("PLTE", palette);
    raw_chunk("tRNS", transparency);
    Buffer rows;
    const size_t row =
        height > 0 && height < 1000 ? samples.size() / static_cast<size_t>(height) : 0;
    for (size_t at = 0; row > 0 && at < samples.size(); at += row) {
      put(rows, 0, 1);  // no filter
      for (size_t i = 0; i < row; ++i) put(rows, samples[at + i], 1);
    }
    uint32_t a = 1, b = 0;
    for (const std::byte x : rows) {
      a = (a + static_cast<uint32_t>(x)) % 65521;
      b = (b + a) % 65521;
    }
    Buffer zlib;
    put(zlib, 0x7801, 2);
    put(zlib, 1, 1);
    put(zlib, rows.size(), 2, false);
    put(zlib, ~rows.size() & 0xFFFF, 2, false);
    put(zlib, rows);
    put(zlib, b << 16 | a, 4);
    put(all, chunk("IDAT", zlib));
    put(all, chunk("IEND", {}));
    return all;
  }
};

// "II" TIFF block with the one tag, as EXIF carries it.
inline Buffer orientation_block(int orientation) {
  Buffer block = bytes_of("II*");
  put(block, 0, 1);
  put(block, 8, 4, false);
  put(block, 1, 2, false);
  put(block, 274, 2, false);
  put(block, 3, 2, false);
  put(block, 1, 4, false);
  put(block, static_cast<uint64_t>(orientation), 4, false);
  put(block, 0, 4, false);
  return block;
}

// Puts an APP1 segment right after the start marker.
inline Buffer with_exif(const Buffer& jpeg, int orientation, const Buffer& thumbnail = {}) {
  Buffer body = bytes_of(std::string_view("Exif\0\0", 6));
  put(body, orientation_block(orientation));
  put(body, thumbnail);
  Buffer all(jpeg.begin(), jpeg.begin() + 2);
  put(all, 0xFFE1, 2);
  put(all, body.size() + 2, 2);
  put(all, body);
  all.insert(all.end(), jpeg.begin() + 2, jpeg.end());
  return all;
}

inline Buffer png_with_exif(const Buffer& png, int orientation) {
  constexpr size_t kAfterHeader = 8 + 25;
  Buffer all(png.begin(), png.begin() + kAfterHeader);
  put(all, chunk("eXIf", orientation_block(orientation)));
  all.insert(all.end(), png.begin() + kAfterHeader, png.end());
  return all;
}

// One 8 x 8 JPEG of one colour, with 1 (gray), 3 (YCbCr) or 4 components, stored as given.
inline Buffer flat_jpeg(const std::vector<int>& components, bool adobe) {
  Buffer all;
  put(all, 0xFFD8, 2);
  if (adobe) {
    put(all, 0xFFEE, 2);
    put(all, 14, 2);
    put(all, bytes_of("Adobe"));
    put(all, 100, 2);
    put(all, 0, 5);  // flags, and transform 0: plain CMYK
  }
  put(all, 0xFFDB, 2);
  put(all, 67, 2);
  put(all, 0, 1);
  for (int i = 0; i < 64; ++i) put(all, 8, 1);  // quantiser 8: the DC is value - 128
  const size_t n = components.size();
  put(all, 0xFFC0, 2);
  put(all, 8 + 3 * n, 2);
  put(all, 8, 1);
  put(all, 8, 2);
  put(all, 8, 2);
  put(all, n, 1);
  for (size_t c = 0; c < n; ++c) put(all, (c + 1) << 16 | 0x1100, 3);
  // DC codes: categories 0..8 as four bits each; AC codes: end-of-block as one bit.
  put(all, 0xFFC4, 2);
  put(all, 2 + 17 + 9, 2);
  put(all, 0x00, 1);
  for (int length = 1; length <= 16; ++length) put(all, length == 4 ? 9 : 0, 1);
  for (int category = 0; category <= 8; ++category) put(all, static_cast<uint64_t>(category), 1);
  put(all, 0xFFC4, 2);
  put(all, 2 + 17 + 1, 2);
  put(all, 0x10, 1);
  for (int length = 1; length <= 16; ++length) put(all, length == 1 ? 1 : 0, 1);
  put(all, 0, 1);
  put(all, 0xFFDA, 2);
  put(all, 6 + 2 * n, 2);
  put(all, n, 1);
  for (size_t c = 0; c < n; ++c) put(all, (c + 1) << 8, 2);
  put(all, 0x003F00, 3);
  std::string bits;
  const auto append = [&](int value, int count) {
    for (int i = count - 1; i >= 0; --i) bits.push_back(value >> i & 1 ? '1' : '0');
  };
  for (const int component : components) {
    const int dc = component - 128;
    int category = 0;
    while (std::abs(dc) >> category) ++category;
    append(category, 4);
    append(dc >= 0 ? dc : dc + (1 << category) - 1, category);
    append(0, 1);
  }
  while (bits.size() % 8) bits.push_back('1');
  for (size_t at = 0; at < bits.size(); at += 8) {
    const auto byte = static_cast<uint64_t>(std::stoi(bits.substr(at, 8), nullptr, 2));
    put(all, byte, 1);
    if (byte == 0xFF) put(all, 0, 1);
  }
  put(all, 0xFFD9, 2);
  return all;
}

// Uncompressed RGB in one strip; the directory stands before the pixels.
inline Buffer tiff(const Image& image, int orientation) {
  struct Entry {
    uint64_t tag, type, count, value;
  };
  const auto width = static_cast<uint64_t>(image.width),
             height = static_cast<uint64_t>(image.height);
  constexpr uint64_t kEntries = 10, kBits = 8 + 2 + kEntries * 12 + 4, kPixels = kBits + 6;
  const std::vector<Entry> entries = {{256, 4, 1, width},
                                      {257, 4, 1, height},
                                      {258, 3, 3, kBits},
                                      {259, 3, 1, 1},
                                      {262, 3, 1, 2},
                                      {273, 4, 1, kPixels},
                                      {274, 3, 1, static_cast<uint64_t>(orientation)},
                                      {277, 3, 1, 3},
                                      {278, 4, 1, height},
                                      {279, 4, 1, image.rgb.size()}};
  Buffer all = bytes_of("II*");
  put(all, 0, 1);
  put(all, 8, 4, false);
  put(all, entries.size(), 2, false);
  for (const Entry& e : entries) {
    put(all, e.tag, 2, false);
    put(all, e.type, 2, false);
    put(all, e.count, 4, false);
    put(all, e.value, 4, false);
  }
  put(all, 0, 4, false);
  for (int i = 0; i < 3; ++i) put(all, 8, 2, false);
  for (const uint8_t sample : image.rgb) put(all, sample, 1);
  return all;
}

inline Buffer bmp(const Image& image) {
  Buffer all = bytes_of("BM");
  put(all, 54 + image.rgb.size(), 4, false);
  put(all, 0, 4);
  put(all, 54, 4, false);
  put(all, 40, 4, false);
  put(all, static_cast<uint64_t>(image.width), 4, false);
  put(all, static_cast<uint64_t>(image.height), 4, false);
  put(all, 1, 2, false);
  put(all, 24, 2, false);
  put(all, 0, 4);
  put(all, image.rgb.size(), 4, false);
  put(all, 0, 8);
  put(all, 0, 8);
  for (int y = image.height - 1; y >= 0; --y) {
    for (int x = 0; x < image.width; ++x) {
      for (int c = 2; c >= 0; --c)
        put(all, image.rgb[static_cast<size_t>((y * image.width + x) * 3 + c)], 1);
    }
  }
  return all;
}

}  // namespace contexture::data::fixtures
