#include "data/internal/image_header.h"

#include <algorithm>
#include <string>

namespace contexture::data::internal {
namespace {

constexpr std::string_view kExifPrefix("Exif\0\0", 6);

void read_png(Bytes bytes, ImageHeader& header) {
  constexpr uint64_t kSignature = 8;
  if (!has_text(bytes, 12, "IHDR") || !holds(bytes, 16, 13)) {
    header.damage = "the PNG header is cut short";
    return;
  }
  header.width = static_cast<int64_t>(read_uint(bytes, 16, 4, true));
  header.height = static_cast<int64_t>(read_uint(bytes, 20, 4, true));
  header.bit_depth = static_cast<int>(read_uint(bytes, 24, 1, true));
  const uint64_t color_type = read_uint(bytes, 25, 1, true);
  for (uint64_t at = kSignature; holds(bytes, at, 12);) {
    const uint64_t length = read_uint(bytes, at, 4, true);
    if (!holds(bytes, at + 8, length + 4)) break;
    if (has_text(bytes, at + 4, "IEND")) return;
    if (has_text(bytes, at + 4, "eXIf"))
      header.orientation = exif_orientation(bytes.subspan(at + 8, length));
    if (has_text(bytes, at + 4, "tRNS") && (color_type == 0 || color_type == 2)) {
      const uint64_t channels = color_type == 0 ? 1 : 3;
      header.has_key = length >= 2 * channels;
      for (uint64_t c = 0; c < channels; ++c) {
        header.key[c] = static_cast<uint16_t>(read_uint(bytes, at + 8 + 2 * c, 2, true));
      }
    }
    at += 12 + length;
  }
  header.damage = "the PNG is cut off (no IEND chunk)";
}

bool is_frame(uint64_t marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

// The next marker at or after `at` within entropy-coded data; bytes.size() when there is none.
uint64_t skip_scan(Bytes bytes, uint64_t at) {
  for (; at + 1 < bytes.size(); ++at) {
    if (bytes[at] != std::byte{0xFF}) continue;
    const auto next = static_cast<uint64_t>(bytes[at + 1]);
    if (next != 0 && next != 0xFF && !(next >= 0xD0 && next <= 0xD7)) return at;
  }
  return bytes.size();
}

void read_jpeg(Bytes bytes, ImageHeader& header) {
  uint64_t at = 2;
  while (holds(bytes, at, 2)) {
    if (bytes[at] != std::byte{0xFF}) {
      at = skip_scan(bytes, at);  // stray bytes between segments: decoders skip them too
      continue;
    }
    const uint64_t marker = read_uint(bytes, at + 1, 1, true);
    if (marker == 0xFF) {
      ++at;
      continue;
    }
    at += 2;
    if (marker == 0xD9) {
      if (header.width == 0) header.damage = "the JPEG ends before its picture";
      return;
    }
    if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8)) continue;
    const uint64_t length = read_uint(bytes, at, 2, true);
    if (length < 2 || !holds(bytes, at, length)) break;
    if (is_frame(marker) && length >= 8) {
      header.height = static_cast<int64_t>(read_uint(bytes, at + 3, 2, true));
      header.width = static_cast<int64_t>(read_uint(bytes, at + 5, 2, true));
    }
    if (marker == 0xE1 && length >= 8 && has_text(bytes, at + 2, kExifPrefix)) {
      header.orientation = exif_orientation(bytes.subspan(at + 8, length - 8));
    }
    at += length;
    if (marker == 0xDA) at = skip_scan(bytes, at);
  }
  header.damage = "the JPEG is cut off (no end-of-image marker)";
}

void read_webp(Bytes bytes, ImageHeader& header) {
  const uint64_t riff = read_uint(bytes, 4, 4, false);
  if (!holds(bytes, 8, riff))
    header.damage = "the WebP is cut off (fewer bytes than its header says)";
  const uint64_t end = std::min<uint64_t>(bytes.size(), 8 + riff);
  for (uint64_t at = 12; at + 8 <= end;) {
    const uint64_t length = read_uint(bytes, at + 4, 4, false);
    if (has_text(bytes, at, "VP8X") && holds(bytes, at + 8, 10)) {
      header.width = static_cast<int64_t>(read_uint(bytes, at + 12, 3, false)) + 1;
      header.height = static_cast<int64_t>(read_uint(bytes, at + 15, 3, false)) + 1;
    } else if (has_text(bytes, at, "VP8L") && holds(bytes, at + 8, 5) && header.width == 0) {
      const uint64_t bits = read_uint(bytes, at + 9, 4, false);
      header.width = static_cast<int64_t>(bits & 0x3FFF) + 1;
      header.height = static_cast<int64_t>((bits >> 14) & 0x3FFF) + 1;
    } else if (has_text(bytes, at, "VP8 ") && holds(bytes, at + 8, 10) && header.width == 0) {
      header.width = static_cast<int64_t>(read_uint(bytes, at + 14, 2, false) & 0x3FFF);
      header.height = static_cast<int64_t>(read_uint(bytes, at + 16, 2, false) & 0x3FFF);
    } else if (has_text(bytes, at, "EXIF") && holds(bytes, at + 8, length)) {
      Bytes exif = bytes.subspan(at + 8, length);
      if (has_text(exif, 0, kExifPrefix)) exif = exif.subspan(kExifPrefix.size());
      header.orientation = exif_orientation(exif);
    }
    at += 8 + length + (length & 1);
  }
}

void read_bmp(Bytes bytes, ImageHeader& header) {
  const uint64_t info = read_uint(bytes, 14, 4, false);
  if (!holds(bytes, 14, info) || info < 12) {
    header.damage = "the BMP header is cut short";
    return;
  }
  const bool core = info == 12;
  const auto width = core ? static_cast<int64_t>(read_uint(bytes, 18, 2, false))
                          : static_cast<int32_t>(read_uint(bytes, 18, 4, false));
  const auto height = core ? static_cast<int64_t>(read_uint(bytes, 20, 2, false))
                           : static_cast<int32_t>(read_uint(bytes, 22, 4, false));
  header.width = width;
  header.height = height < 0 ? -static_cast<int64_t>(height) : height;
  const uint64_t bits = read_uint(bytes, core ? 24 : 28, 2, false);
  const uint64_t compression = core ? 0 : read_uint(bytes, 30, 4, false);
  if (header.width <= 0 || (compression != 0 && compression != 3)) return;
  // At most 2^31 * 2^5 bits a row and 2^31 rows: the product stays below 2^64 only after the row is
  // known to fit.
  const uint64_t row =
      (static_cast<uint64_t>(header.width) * std::min<uint64_t>(bits, 32) + 31) / 32 * 4;
  const uint64_t start = read_uint(bytes, 10, 4, false);
  const uint64_t present = bytes.size() > start ? bytes.size() - start : 0;
  if (row > 0 && static_cast<uint64_t>(header.height) > present / row) {
    header.damage = "the BMP is cut off (fewer rows than its header says)";
  }
}

struct TiffEntry {
  uint64_t tag = 0, type = 0, count = 0;
  uint64_t at = 0;  // where its values start
};

struct Tiff {
  Bytes bytes;
  bool big = false;

  static int width_of(uint64_t type) { return type == 3 ? 2 : type == 4 ? 4 : type == 1 ? 1 : 0; }
  uint64_t value(const TiffEntry& entry, uint64_t i) const {
    const int width = width_of(entry.type);
    return width == 0 || i >= entry.count
               ? 0
               : read_uint(bytes, entry.at + i * static_cast<uint64_t>(width), width, big);
  }
  template <class Visit>
  bool for_each_entry(Visit&& visit) const {
    const uint64_t directory = read_uint(bytes, 4, 4, big);
    if (directory < 8 || !holds(bytes, directory, 2)) return false;
    const uint64_t count = read_uint(bytes, directory, 2, big);
    if (!holds(bytes, directory + 2, count * 12)) return false;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t at = directory + 2 + i * 12;
      TiffEntry entry{read_uint(bytes, at, 2, big), read_uint(bytes, at + 2, 2, big),
                      read_uint(bytes, at + 4, 4, big), at + 8};
      const auto width = static_cast<uint64_t>(width_of(entry.type));
      if (entry.count * width > 4) entry.at = read_uint(bytes, at + 8, 4, big);
      visit(entry);
    }
    return true;
  }
};

void read_tiff(Bytes bytes, ImageHeader& header) {
  const Tiff tiff{bytes, has_text(bytes, 0, "MM")};
  TiffEntry offsets, sizes;
  const bool whole = tiff.for_each_entry([&](const TiffEntry& entry) {
    if (entry.tag == 256) header.width = static_cast<int64_t>(tiff.value(entry, 0));
    if (entry.tag == 257) header.height = static_cast<int64_t>(tiff.value(entry, 0));
    if (entry.tag == 273 || entry.tag == 324) offsets = entry;  // strips or tiles
    if (entry.tag == 279 || entry.tag == 325) sizes = entry;
  });
  if (!whole) {
    header.damage = "the TIFF is cut off (its directory lies beyond the end)";
    return;
  }
  if (offsets.count != sizes.count || offsets.count == 0) {
    header.damage = "the TIFF does not say where its pixels are";
    return;
  }
  for (uint64_t i = 0; i < std::min<uint64_t>(offsets.count, bytes.size()); ++i) {
    if (!holds(bytes, tiff.value(offsets, i), tiff.value(sizes, i))) {
      header.damage = "the TIFF is cut off (pixels beyond the end)";
      return;
    }
  }
}

}  // namespace

int exif_orientation(Bytes exif) {
  if (!has_text(exif, 0, "II") && !has_text(exif, 0, "MM")) return 1;
  const Tiff tiff{exif, has_text(exif, 0, "MM")};
  uint64_t orientation = 1;
  tiff.for_each_entry([&](const TiffEntry& entry) {
    if (entry.tag == 274) orientation = tiff.value(entry, 0);
  });
  return orientation >= 1 && orientation <= 8 ? static_cast<int>(orientation) : 1;
}

const char* format_name(Format format) {
  switch (format) {
    case Format::kPng:
      return "png";
    case Format::kJpeg:
      return "jpeg";
    case Format::kWebp:
      return "webp";
    case Format::kBmp:
      return "bmp";
    case Format::kTiff:
      return "tiff";
    case Format::kUnknown:
      break;
  }
  return "unknown";
}

ImageHeader read_header(Bytes bytes) {
  ImageHeader header;
  if (has_text(bytes, 0, "\x89PNG\r\n\x1a\n")) {
    header.format = Format::kPng;
    read_png(bytes, header);
  } else if (has_text(bytes, 0, "\xFF\xD8\xFF")) {
    header.format = Format::kJpeg;
    read_jpeg(bytes, header);
  } else if (has_text(bytes, 0, "RIFF") && has_text(bytes, 8, "WEBP")) {
    header.format = Format::kWebp;
    read_webp(bytes, header);
  } else if (has_text(bytes, 0, "BM")) {
    header.format = Format::kBmp;
    read_bmp(bytes, header);
  } else if (has_text(bytes, 0, std::string_view("II*\0", 4)) ||
             has_text(bytes, 0, std::string_view("MM\0*", 4))) {
    header.format = Format::kTiff;
    read_tiff(bytes, header);
  }
  if (header.format != Format::kUnknown && header.damage.empty() &&
      (header.width <= 0 || header.height <= 0)) {
    header.damage = "its header gives no size";
  }
  return header;
}

}  // namespace contexture::data::internal
