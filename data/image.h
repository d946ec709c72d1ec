// Pictures as bytes: decoding, resizing, encoding. The only user of OpenCV.
// Every picture is 8-bit RGB, rows top to bottom, already turned upright (EXIF orientation
// applied). All functions are safe to call from any thread; none lets an OpenCV exception escape.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace contexture::data {

struct Image {
  int height = 0;
  int width = 0;
  std::vector<uint8_t> rgb;  // [height][width][3]
  bool operator==(const Image&) const = default;
};

struct ImageOptions {
  int64_t max_pixels = 64'000'000;  // checked from the header, before any allocation
  std::array<uint8_t, 3> background{255, 255, 255};  // shows through where a picture is transparent
  // What the picture will be shrunk to, in pixels a side: a JPEG may then be decoded at 1/2, 1/4 or
  // 1/8 of its size, which is far quicker, while both sides keep at least twice that many. 0:
  // always whole.
  int shrunk_to = 0;
};

struct ImageInfo {
  std::string format;  // "png", "jpeg", "webp", "bmp" or "tiff"
  int64_t height = 0;  // as stored, before the orientation is applied
  int64_t width = 0;
};

// What the header says, without decoding. Throws DataError naming `source` when the bytes are none
// of the formats above or the header is cut short.
ImageInfo probe_image(std::span<const std::byte> bytes, const std::string& source = "image");

// Decodes PNG, JPEG (gray, RGB, CMYK), WebP, BMP and TIFF; 16-bit is reduced to 8, palettes and
// gray become RGB, transparency is blended over options.background. Throws DataError naming
// `source` for unknown formats, pictures over max_pixels, truncated and damaged files.
Image decode_image(std::span<const std::byte> bytes, const ImageOptions& options = {},
                   const std::string& source = "image");

// Reads and decodes a file. Throws DataError when it can't be read or decoded.
Image load_image(const std::string& path, const ImageOptions& options = {});

// Shrinking averages over the covered area (no aliasing), growing is bilinear. Aspect is not kept.
Image resize(const Image& image, int height, int width);

// Fits the picture inside height x width, centred, aspect kept, the rest filled with `background`.
Image resize_padded(const Image& image, int height, int width,
                    std::array<uint8_t, 3> background = {255, 255, 255});

std::vector<std::byte> encode_png(const Image& image);
std::vector<std::byte> encode_jpeg(const Image& image, int quality = 92);

}  // namespace contexture::data
