// Checksums: SHA-256 to identify content, CRC-32C to notice damage.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace contexture {

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  // The digest of all updates so far; the object must not be used afterwards.
  std::array<uint8_t, 32> finish();
  std::string finish_hex();  // 64 lower-case letters

 private:
  void compress(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_{};
  uint64_t num_bytes_ = 0;
};

std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view text);
std::string sha256_hex_of_file(
    const std::filesystem::path& path);  // streamed; UserError if unreadable

// CRC-32C (Castagnoli). Pass the former result as `crc` to go on: crc32c(b, crc32c(a)) == crc32c(a
// + b).
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);
uint32_t crc32c(std::string_view text, uint32_t crc = 0);

}  // namespace contexture
