#include "core/hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/files.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace contexture {
namespace {

// FIPS 180-4, section 4.2.2.
constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t load_big_endian(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

}  // namespace

void Sha256::compress(const uint8_t* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) w[i] = load_big_endian(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<uint32_t, 8> mixed = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += mixed[i];
}

void Sha256::update(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  const size_t buffered = num_bytes_ % 64;
  num_bytes_ += left;
  if (buffered > 0) {
    const size_t n = std::min(left, 64 - buffered);
    std::copy_n(data, n, block_.begin() + static_cast<std::ptrdiff_t>(buffered));
    data += n;
    left -= n;
    if (buffered + n < 64) return;
    compress(block_.data());
  }
  for (; left >= 64; data += 64, left -= 64) compress(data);
  std::copy_n(data, left, block_.begin());
}

void Sha256::update(std::string_view text) { update(as_bytes(text)); }

std::array<uint8_t, 32> Sha256::finish() {
  const uint64_t num_bits = num_bytes_ * 8;
  size_t used = num_bytes_ % 64;
  block_[used++] = 0x80;
  if (used > 56) {
    std::fill(block_.begin() + static_cast<std::ptrdiff_t>(used), block_.end(), uint8_t{0});
    compress(block_.data());
    used = 0;
  }
  std::fill(block_.begin() + static_cast<std::ptrdiff_t>(used), block_.end(), uint8_t{0});
  for (size_t i = 0; i < 8; ++i) block_[63 - i] = static_cast<uint8_t>(num_bits >> (8 * i));
  compress(block_.data());

  std::array<uint8_t, 32> digest;
  for (size_t i = 0; i < 32; ++i)
    digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

std::string Sha256::finish_hex() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const uint8_t byte : finish()) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish_hex();
}

std::string sha256_hex(std::string_view text) { return sha256_hex(as_bytes(text)); }

std::string sha256_hex_of_file(const std::filesystem::path& path) {
  return sha256_hex(MappedFile(path).bytes());
}

namespace {

constexpr auto kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}();

uint32_t crc_by_table(const uint8_t* data, size_t size, uint32_t crc) {
  for (size_t i = 0; i < size; ++i) crc = kCrcTable[(crc ^ data[i]) & 255] ^ (crc >> 8);
  return crc;
}

#if defined(__x86_64__)
// The processor's own instruction: 8 bytes at a time.
__attribute__((target("sse4.2"))) uint32_t crc_by_instruction(const uint8_t* data, size_t size,
                                                              uint32_t crc) {
  uint64_t wide = crc;
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  return crc_by_table(data, size, static_cast<uint32_t>(wide));
}
#endif

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return ~crc_by_instruction(data, bytes.size(), ~crc);
#endif
  return ~crc_by_table(data, bytes.size(), ~crc);
}

uint32_t crc32c(std::string_view text, uint32_t crc) { return crc32c(as_bytes(text), crc); }

}  // namespace contexture
