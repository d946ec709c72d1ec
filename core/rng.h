// Counter-based random numbers: any draw is a pure function of (seed, stream name, indices,
// position), so results do not depend on threads, ranks or order. Philox4x32-10 (Salmon et al.,
// SC'11). The mapping from names to streams is part of what makes runs repeatable: changing it
// changes every run.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace contexture {

using PhiloxKey = std::array<uint32_t, 2>;
using PhiloxCounter = std::array<uint32_t, 4>;

// Ten rounds of Philox4x32; stateless.
std::array<uint32_t, 4> philox(PhiloxKey key, PhiloxCounter counter);

// Where a named stream lives. Its block i (four words) is philox(key, {low(i), high(i), high[0],
// high[1]}): kernels that need element-wise draws use this directly.
struct StreamKey {
  PhiloxKey key{};
  std::array<uint32_t, 2> high{};
};
StreamKey stream_key(uint64_t seed, std::string_view name, uint64_t a = 0, uint64_t b = 0,
                     uint64_t c = 0);

// Sequential draws from one named stream. Cheap to make (about half a microsecond) and to copy; one
// thread.
class Stream {
 public:
  Stream(uint64_t seed, std::string_view name, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0);

  uint32_t next_u32();
  uint64_t next_u64();
  double uniform();            // [0, 1), 53 bits
  double normal();             // mean 0, deviation 1 (Box-Muller)
  uint64_t below(uint64_t n);  // [0, n), unbiased; Bug if n is 0

  // Fisher-Yates over anything with size() and operator[].
  template <typename Range>
  void shuffle(Range& range) {
    using std::swap;
    for (size_t i = range.size(); i > 1; --i) swap(range[i - 1], range[below(i)]);
  }

 private:
  StreamKey stream_;
  uint64_t block_ = 0;  // next block to compute
  std::array<uint32_t, 4> words_{};
  int used_ = 4;  // words of the current block already given out
  double spare_normal_ = 0.0;
  bool has_spare_normal_ = false;
};

// A random permutation of 0..n-1 that is computed, not stored (a keyed Feistel network with cycle
// walking). Every element is equally likely at every place; for tiny n not every permutation can
// occur.
class Permutation {
 public:
  Permutation(uint64_t n, uint64_t seed, uint64_t epoch);
  uint64_t operator()(uint64_t i) const;  // Bug unless i < n

 private:
  uint64_t n_;
  StreamKey stream_;
  int left_bits_;
  int right_bits_;
};
uint64_t permutation_at(uint64_t n, uint64_t seed, uint64_t epoch, uint64_t i);

}  // namespace contexture
