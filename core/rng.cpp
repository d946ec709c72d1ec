#include "core/rng.h"

#include <bit>
#include <cmath>
#include <numbers>
#include <string>

#include "core/error.h"
#include "core/hash.h"

namespace contexture {

std::array<uint32_t, 4> philox(PhiloxKey key, PhiloxCounter counter) {
  // Constants of Random123's philox.h.
  constexpr uint64_t kMultiply0 = 0xD2511F53, kMultiply1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiply0 * counter[0];
    const uint64_t product1 = kMultiply1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

StreamKey stream_key(uint64_t seed, std::string_view name, uint64_t a, uint64_t b, uint64_t c) {
  // Fixed-width numbers first, so that no two argument lists give the same bytes.
  std::string bytes;
  for (const uint64_t value : {seed, a, b, c}) {
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i));
  }
  bytes += name;
  Sha256 hash;
  hash.update(bytes);
  const auto digest = hash.finish();
  const auto word = [&](size_t i) {
    return uint32_t{digest[4 * i]} | uint32_t{digest[4 * i + 1]} << 8 |
           uint32_t{digest[4 * i + 2]} << 16 | uint32_t{digest[4 * i + 3]} << 24;
  };
  return {{word(0), word(1)}, {word(2), word(3)}};
}

Stream::Stream(uint64_t seed, std::string_view name, uint64_t a, uint64_t b, uint64_t c)
    : stream_(stream_key(seed, name, a, b, c)) {}

uint32_t Stream::next_u32() {
  if (used_ == 4) {
    words_ =
        philox(stream_.key, {static_cast<uint32_t>(block_), static_cast<uint32_t>(block_ >> 32),
                             stream_.high[0], stream_.high[1]});
    ++block_;
    used_ = 0;
  }
  return words_[static_cast<size_t>(used_++)];
}

uint64_t Stream::next_u64() {
  const uint64_t low = next_u32();
  return low | uint64_t{next_u32()} << 32;
}

double Stream::uniform() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }

double Stream::normal() {
  if (has_spare_normal_) {
    has_spare_normal_ = false;
    return spare_normal_;
  }
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));  // 1 - u is in (0, 1]
  const double angle = 2.0 * std::numbers::pi * uniform();
  spare_normal_ = radius * std::sin(angle);
  has_spare_normal_ = true;
  return radius * std::cos(angle);
}

uint64_t Stream::below(uint64_t n) {
  CONTEXTURE_INVARIANT(n > 0, "no number is below 0");
  // Lemire, "Fast random integer generation in an interval" (2019): the products whose low half is
  // under 2^64 mod n are the surplus ones.
  unsigned __int128 product = static_cast<unsigned __int128>(next_u64()) * n;
  if (static_cast<uint64_t>(product) < n) {
    const uint64_t surplus = (0 - n) % n;
    while (static_cast<uint64_t>(product) < surplus) {
      product = static_cast<unsigned __int128>(next_u64()) * n;
    }
  }
  return static_cast<uint64_t>(product >> 64);
}

Permutation::Permutation(uint64_t n, uint64_t seed, uint64_t epoch)
    : n_(n), stream_(stream_key(seed, "permutation", epoch)) {
  // The network permutes 2^bits numbers, fewer than twice n: so a walk takes two steps on average
  // at most.
  const int bits = n <= 1 ? 0 : std::bit_width(n - 1);
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
}

uint64_t Permutation::operator()(uint64_t i) const {
  CONTEXTURE_INVARIANT(i < n_, "place ", i, " of a permutation of ", n_);
  const uint64_t left_mask = (uint64_t{1} << left_bits_) - 1;
  const uint64_t right_mask = (uint64_t{1} << right_bits_) - 1;
  const auto mixed = [&](uint64_t half, uint32_t round) {
    const auto words =
        philox(stream_.key, {static_cast<uint32_t>(half), round, stream_.high[0], stream_.high[1]});
    return uint64_t{words[0]};  // halves have 32 bits at most
  };
  do {
    uint64_t left = i >> right_bits_;
    uint64_t right = i & right_mask;
    for (uint32_t round = 0; round < 8; round += 2) {
      left ^= mixed(right, round) & left_mask;
      right ^= mixed(left, round + 1) & right_mask;
    }
    i = left << right_bits_ | right;
  } while (i >= n_);  // walk the cycle back into range; it returns to i at the latest
  return i;
}

uint64_t permutation_at(uint64_t n, uint64_t seed, uint64_t epoch, uint64_t i) {
  return Permutation(n, seed, epoch)(i);
}

}  // namespace contexture
