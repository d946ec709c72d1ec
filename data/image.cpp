#include "data/image.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>

#include "core/error.h"
#include "core/files.h"
#include "data/internal/image_header.h"
#include "data/internal/opencv.h"

namespace contexture::data {
namespace {

using internal::Bytes;
using internal::Format;
using internal::ImageHeader;

ImageHeader checked_header(Bytes bytes, const std::string& source) {
  const ImageHeader header = internal::read_header(bytes);
  CONTEXTURE_DATA_REQUIRE(header.format != Format::kUnknown, source,
                          ": no picture that can be read (", bytes.size(),
                          " bytes). PNG, JPEG, WebP, BMP and TIFF are; convert it.");
  return header;
}

// Turns a stored picture upright, by the EXIF meaning of 1..8.
cv::Mat upright(cv::Mat stored, int orientation) {
  cv::Mat turned = std::move(stored);
  if (orientation >= 5) cv::transpose(turned, turned);
  // After the transposition of 5..8 what remains is a mirroring.
  const bool flip_horizontal =
      orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
  const bool flip_vertical =
      orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
  if (flip_horizontal) cv::flip(turned, turned, 1);
  if (flip_vertical) cv::flip(turned, turned, 0);
  return turned;
}

// PNG's transparent colour, which OpenCV leaves opaque. `mat` is as decoded, gray or BGR, 8 or 16
// bits.
cv::Mat key_mask(const cv::Mat& mat, const ImageHeader& header) {
  const int scale = header.bit_depth < 8 ? 255 / ((1 << header.bit_depth) - 1) : 1;
  const double k0 = header.key[0] * scale, k1 = header.key[1] * scale, k2 = header.key[2] * scale;
  const cv::Scalar key = mat.channels() == 1 ? cv::Scalar(k0) : cv::Scalar(k2, k1, k0);
  cv::Mat mask;
  cv::inRange(mat, key, key, mask);
  return mask;
}

// The divisor, 1, 2, 4 or 8, at which a JPEG may be decoded.
int reduction(const ImageHeader& header, int shrunk_to) {
  if (header.format != Format::kJpeg || shrunk_to <= 0) return 1;
  int divisor = 1;
  while (divisor < 8 && std::min(header.width, header.height) >= int64_t{4} * divisor * shrunk_to)
    divisor *= 2;
  return divisor;
}

int reading_flags(const ImageHeader& header, int divisor) {
  if (divisor > 1) {
    return (divisor == 2   ? cv::IMREAD_REDUCED_COLOR_2
            : divisor == 4 ? cv::IMREAD_REDUCED_COLOR_4
                           : cv::IMREAD_REDUCED_COLOR_8) |
           cv::IMREAD_IGNORE_ORIENTATION;
  }
  // A BMP's fourth byte is padding more often than transparency.
  return header.format == Format::kBmp ? cv::IMREAD_COLOR | cv::IMREAD_IGNORE_ORIENTATION
                                       : cv::IMREAD_UNCHANGED;
}

cv::Mat to_bytes(const cv::Mat& mat, const std::string& source) {
  if (mat.depth() == CV_8U) return mat;
  CONTEXTURE_DATA_REQUIRE(
      mat.depth() == CV_16U, source,
      ": its samples are neither 8- nor 16-bit whole numbers. Convert it to 8-bit RGB.");
  cv::Mat bytes;
  mat.convertTo(bytes, CV_8U, 1.0 / 257.0);  // 65535 / 257 = 255
  return bytes;
}

cv::Mat blend(const cv::Mat& bgra, const std::array<uint8_t, 3>& background) {
  cv::Mat rgb(bgra.rows, bgra.cols, CV_8UC3);
  for (int y = 0; y < bgra.rows; ++y) {
    const auto* from = bgra.ptr<cv::Vec4b>(y);
    auto* to = rgb.ptr<cv::Vec3b>(y);
    for (int x = 0; x < bgra.cols; ++x) {
      const int alpha = from[x][3];
      for (int c = 0; c < 3; ++c) {
        const int mixed =
            from[x][2 - c] * alpha + background[static_cast<size_t>(c)] * (255 - alpha);
        to[x][c] = static_cast<uint8_t>((mixed + 127) / 255);
      }
    }
  }
  return rgb;
}

cv::Mat to_rgb(const cv::Mat& decoded, const ImageHeader& header, const ImageOptions& options,
               const std::string& source) {
  const bool keyed = header.has_key && decoded.channels() != 4;
  const cv::Mat transparent = keyed ? key_mask(decoded, header) : cv::Mat();
  const cv::Mat bytes = to_bytes(decoded, source);
  cv::Mat rgb;
  switch (bytes.channels()) {
    case 1:
      cv::cvtColor(bytes, rgb, cv::COLOR_GRAY2RGB);
      break;
    case 3:
      cv::cvtColor(bytes, rgb, cv::COLOR_BGR2RGB);
      break;
    case 4:
      rgb = blend(bytes, options.background);
      break;
    default:
      throw DataError(concat(source, ": ", bytes.channels(), " channels; 1, 3 or 4 can be read."));
  }
  if (keyed) {
    rgb.setTo(cv::Scalar(options.background[0], options.background[1], options.background[2]),
              transparent);
  }
  return rgb;
}

}  // namespace

ImageInfo probe_image(std::span<const std::byte> bytes, const std::string& source) {
  const ImageHeader header = checked_header(bytes, source);
  CONTEXTURE_DATA_REQUIRE(header.width > 0 && header.height > 0, source, ": ", header.damage, ".");
  return {internal::format_name(header.format), header.height, header.width};
}

Image decode_image(std::span<const std::byte> bytes, const ImageOptions& options,
                   const std::string& source) {
  internal::use_one_thread();
  const ImageHeader header = checked_header(bytes, source);
  // The limit first: a bomb is often cut short too, and its size is the better message.
  CONTEXTURE_DATA_REQUIRE(header.width <= 0 || header.height <= options.max_pixels / header.width,
                          source, ": ", header.width, " x ", header.height,
                          " pixels are over the limit of ", options.max_pixels,
                          ". Shrink the picture, or raise max_pixels.");
  CONTEXTURE_DATA_REQUIRE(header.damage.empty(), source, ": ", header.damage, ".");
  try {
    const cv::Mat raw(1, static_cast<int>(bytes.size()), CV_8U,
                      const_cast<void*>(static_cast<const void*>(bytes.data())));
    const int divisor = reduction(header, options.shrunk_to);
    const cv::Mat decoded = cv::imdecode(raw, reading_flags(header, divisor));
    CONTEXTURE_DATA_REQUIRE(!decoded.empty(), source, ": the ",
                            internal::format_name(header.format),
                            " data is damaged and can't be decoded.");
    // OpenCV turns TIFFs upright itself, and only those.
    const bool as_stored = decoded.rows == (header.height + divisor - 1) / divisor &&
                           decoded.cols == (header.width + divisor - 1) / divisor;
    const bool turned = decoded.rows == header.width && decoded.cols == header.height;
    CONTEXTURE_DATA_REQUIRE(as_stored || (turned && header.format == Format::kTiff), source,
                            ": decodes to ", decoded.cols, " x ", decoded.rows,
                            " pixels, but its header says ", header.width, " x ", header.height,
                            ".");
    return internal::from_mat(
        upright(to_rgb(decoded, header, options, source), header.orientation));
  } catch (const cv::Exception& error) {
    throw DataError(concat(source, ": can't be decoded (", error.err, ")."));
  } catch (const std::bad_alloc&) {
    throw DataError(concat(source, ": not enough memory to decode ", header.width, " x ",
                           header.height, " pixels."));
  }
}

Image load_image(const std::string& path, const ImageOptions& options) {
  std::string bytes;
  try {
    bytes = read_file(path, uint64_t{1} << 30);
  } catch (const UserError& error) {
    throw DataError(error.what());
  }
  return decode_image(as_bytes(bytes), options, path);
}

Image resize(const Image& image, int height, int width) {
  internal::use_one_thread();
  CONTEXTURE_REQUIRE(height > 0 && width > 0 && image.height > 0 && image.width > 0,
                     "can't resize ", image.width, " x ", image.height, " pixels to ", width, " x ",
                     height, ".");
  if (image.height == height && image.width == width) return image;
  cv::Mat mat = internal::view(image);
  const cv::Size shrunk(std::min(width, image.width), std::min(height, image.height));
  // OpenCV's area filter is one only when no side grows: shrink first, then grow.
  if (shrunk != mat.size()) {
    cv::Mat smaller;
    cv::resize(mat, smaller, shrunk, 0, 0, cv::INTER_AREA);
    mat = smaller;
  }
  if (mat.size() != cv::Size(width, height)) {
    cv::Mat larger;
    cv::resize(mat, larger, cv::Size(width, height), 0, 0, cv::INTER_LINEAR);
    mat = larger;
  }
  return internal::from_mat(mat);
}

Image resize_padded(const Image& image, int height, int width, std::array<uint8_t, 3> background) {
  CONTEXTURE_REQUIRE(image.height > 0 && image.width > 0, "can't resize an empty picture.");
  const double scale = std::min(static_cast<double>(height) / image.height,
                                static_cast<double>(width) / image.width);
  const int inner_h = std::clamp(static_cast<int>(std::lround(image.height * scale)), 1, height);
  const int inner_w = std::clamp(static_cast<int>(std::lround(image.width * scale)), 1, width);
  const Image inner = resize(image, inner_h, inner_w);
  if (inner_h == height && inner_w == width) return inner;
  Image padded = internal::empty_image(height, width);
  cv::Mat target = internal::view(padded);
  target.setTo(cv::Scalar(background[0], background[1], background[2]));
  const cv::Rect place((width - inner_w) / 2, (height - inner_h) / 2, inner_w, inner_h);
  internal::view(inner).copyTo(target(place));
  return padded;
}

namespace {

std::vector<std::byte> encode(const Image& image, const char* extension,
                              const std::vector<int>& parameters) {
  CONTEXTURE_REQUIRE(image.height > 0 && image.width > 0, "can't write an empty picture.");
  cv::Mat bgr;
  cv::cvtColor(internal::view(image), bgr, cv::COLOR_RGB2BGR);
  std::vector<uint8_t> bytes;
  CONTEXTURE_INVARIANT(cv::imencode(extension, bgr, bytes, parameters), "can't encode as ",
                       extension);
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

}  // namespace

std::vector<std::byte> encode_png(const Image& image) { return encode(image, ".png", {}); }

std::vector<std::byte> encode_jpeg(const Image& image, int quality) {
  return encode(image, ".jpg", {cv::IMWRITE_JPEG_QUALITY, quality});
}

}  // namespace contexture::data
