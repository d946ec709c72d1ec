// What must be known of a picture before OpenCV sees it: size, orientation, and whether the file is
// whole. (OpenCV hands out half-gray pictures for cut-off JPEGs, and allocates before it checks.)
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "data/internal/byte_reader.h"

namespace contexture::data::internal {

enum class Format { kUnknown, kPng, kJpeg, kWebp, kBmp, kTiff };

struct ImageHeader {
  Format format = Format::kUnknown;
  int64_t width = 0;
  int64_t height = 0;
  int orientation = 1;            // EXIF, 1..8; always 1 for TIFF, which OpenCV turns itself
  std::string damage;             // why the file is not whole; empty when it is
  bool has_key = false;           // PNG: one colour is transparent (tRNS of a gray or RGB picture)
  std::array<uint16_t, 3> key{};  // that colour as stored (gray: the first only)
  int bit_depth = 8;              // PNG only
};

// Never throws: unknown or hopeless bytes give kUnknown or a `damage`.
ImageHeader read_header(Bytes bytes);
const char* format_name(Format format);

// Orientation tag of a TIFF-structured EXIF block; 1 when absent or nonsense.
int exif_orientation(Bytes exif);

}  // namespace contexture::data::internal
