#include "eval/internal/picture_table.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/files.h"
#include "data/image.h"

namespace contexture::eval {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxEmbeddedBytes = 160 * 1024;  // larger pictures are embedded smaller
constexpr int kSmallerSide = 320;                 // pixels: twice what a sample card shows

std::string_view mime_of(std::string_view bytes) {
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return "image/png";
  if (bytes.starts_with("\xff\xd8\xff")) return "image/jpeg";
  if (bytes.starts_with("GIF8")) return "image/gif";
  if (bytes.starts_with("RIFF") && bytes.substr(0, 12).ends_with("WEBP")) return "image/webp";
  return {};
}

std::string data_uri(std::string_view mime, std::span<const std::byte> bytes) {
  return concat("data:", mime, ";base64,", base64(bytes));
}

bool is_picture_uri(std::string_view uri) {
  for (const std::string_view mime : {"image/png", "image/jpeg", "image/gif", "image/webp"}) {
    const std::string start = concat("data:", mime, ";base64,");
    if (!uri.starts_with(start)) continue;
    return std::all_of(uri.begin() + static_cast<ptrdiff_t>(start.size()), uri.end(), [](char c) {
      return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
             c == '+' || c == '/' || c == '=';
    });
  }
  return false;
}

std::string smaller(std::span<const std::byte> bytes, const std::string& name) {
  const data::Image image = data::decode_image(bytes, {}, name);
  const double ratio =
      std::min(1.0, static_cast<double>(kSmallerSide) / std::max(image.height, image.width));
  const int height = std::max(1, static_cast<int>(image.height * ratio));
  const int width = std::max(1, static_cast<int>(image.width * ratio));
  return data_uri("image/jpeg", data::encode_jpeg(data::resize(image, height, width), 85));
}

}  // namespace

std::string base64(std::span<const std::byte> bytes) {
  constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t word = 0;
    for (size_t j = 0; j < count; ++j) {
      word |= std::to_integer<uint32_t>(bytes[i + j]) << (16 - 8 * j);
    }
    for (size_t j = 0; j < 4; ++j) {
      out.push_back(j <= count ? kLetters[word >> (18 - 6 * j) & 63] : '=');
    }
  }
  return out;
}

int PictureTable::add(const std::string& name) {
  if (name.empty()) return -1;
  if (const auto known = by_name_.find(name); known != by_name_.end()) return known->second;
  int number = -1;
  try {
    std::string uri = uri_of(name);
    const auto [place, is_new] = by_uri_.try_emplace(uri, static_cast<int>(uris_.size()));
    if (is_new) uris_.push_back(std::move(uri));
    number = place->second;
  } catch (const UserError& error) {
    if (num_refused_++ == 0) first_refusal_ = error.what();
  }
  by_name_.emplace(name, number);
  return number;
}

std::string PictureTable::uri_of(const std::string& name) const {
  if (name.starts_with("data:")) {
    CONTEXTURE_DATA_REQUIRE(is_picture_uri(name), name.substr(0, 40),
                            "...: not a base64 PNG, JPEG, GIF or WebP");
    return name;
  }
  std::error_code error;
  const fs::path root = fs::weakly_canonical(root_, error);
  const fs::path path = fs::weakly_canonical(root / name, error);
  const auto diverges = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
  CONTEXTURE_DATA_REQUIRE(!error && diverges.first == root.end(), name,
                          ": a picture must lie in the run folder");
  const std::string bytes = read_file(path, /*max_bytes=*/uint64_t{1} << 28);
  const std::string_view mime = mime_of(bytes);
  CONTEXTURE_DATA_REQUIRE(!mime.empty(), name, ": not a PNG, JPEG, GIF or WebP file");
  if (bytes.size() > kMaxEmbeddedBytes) return smaller(as_bytes(bytes), name);
  return data_uri(mime, as_bytes(bytes));
}

}  // namespace contexture::eval
