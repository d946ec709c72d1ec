#include "core/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "core/error.h"

namespace contexture {
namespace {

// The three philox4x32-10 lines of Random123's kat_vectors.
TEST(Philox, GivesTheKnownAnswersOfRandom123) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox({0, 0}, {0, 0, 0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Runs stay repeatable across versions only while these stand.
TEST(Stream, NeverChangesItsDraws) {
  Stream stream(1, "golden", 2, 3, 4);
  const StreamKey key = stream_key(1, "golden", 2, 3, 4);
  const auto block = philox(key.key, {0, 0, key.high[0], key.high[1]});
  EXPECT_EQ(stream.next_u32(), block[0]);
  EXPECT_EQ(stream.next_u32(), block[1]);
  EXPECT_EQ(stream.next_u64(), block[2] | uint64_t{block[3]} << 32);
  const auto second = philox(key.key, {1, 0, key.high[0], key.high[1]});
  EXPECT_EQ(stream.next_u32(), second[0]);
  // Words 0 and 3 of SHA-256 over the four numbers (8 bytes each, little-endian) and the name.
  EXPECT_EQ(key.key[0], 0x74687179u);
  EXPECT_EQ(key.high[1], 0x960abdefu);
}

TEST(Stream, DiffersInEveryArgument) {
  std::set<uint64_t> firsts;
  firsts.insert(Stream(1, "a").next_u64());
  firsts.insert(Stream(2, "a").next_u64());
  firsts.insert(Stream(1, "b").next_u64());
  firsts.insert(Stream(1, "a", 1).next_u64());
  firsts.insert(Stream(1, "a", 0, 1).next_u64());
  firsts.insert(Stream(1, "a", 0, 0, 1).next_u64());
  firsts.insert(Stream(1, "").next_u64());
  EXPECT_EQ(firsts.size(), 7u);
  EXPECT_EQ(Stream(1, "a").next_u64(), Stream(1, "a").next_u64());
}

TEST(Stream, UniformFillsTheUnitInterval) {
  Stream stream(3, "uniform");
  double sum = 0, low = 1, high = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = stream.uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    low = std::min(low, u);
    high = std::max(high, u);
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);  // 5 deviations of the mean, sqrt(1/12/100000)
  EXPECT_LT(low, 1e-3);
  EXPECT_GT(high, 1 - 1e-3);
}

TEST(Stream, NormalHasTheMomentsOfANormal) {
  Stream stream(3, "normal");
  constexpr int kDraws = 100000;
  double sum = 0, squares = 0, fourths = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = stream.normal();
    sum += x;
    squares += x * x;
    fourths += x * x * x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0.0, 0.016);      // 5 deviations: sqrt(1/n)
  EXPECT_NEAR(squares / kDraws, 1.0, 0.023);  // sqrt(2/n)
  EXPECT_NEAR(fourths / kDraws, 3.0, 0.16);   // sqrt(96/n)
}

TEST(Stream, BelowIsUniformAndInRange) {
  Stream stream(5, "below");
  std::array<int, 7> counts{};
  constexpr int kDraws = 70000;
  for (int i = 0; i < kDraws; ++i) ++counts.at(stream.below(7));
  for (const int count : counts) EXPECT_NEAR(count, 10000, 463);  // 5 deviations: sqrt(n p (1 - p))
  EXPECT_EQ(stream.below(1), 0u);
  EXPECT_LT(stream.below(UINT64_MAX), UINT64_MAX);
  EXPECT_THROW(stream.below(0), Bug);
}

TEST(Stream, ShuffleGivesEveryOrderEquallyOften) {
  std::map<std::vector<int>, int> counts;
  Stream stream(9, "shuffle");
  for (int i = 0; i < 6000; ++i) {
    std::vector<int> items = {0, 1, 2};
    stream.shuffle(items);
    ++counts[items];
  }
  EXPECT_EQ(counts.size(), 6u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 145);  // 5 deviations
}

TEST(Permutation, VisitsEveryElementOnce) {
  for (const uint64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 100, 255, 256, 257, 1000, 4097}) {
    const Permutation permutation(n, 42, 0);
    std::vector<bool> seen(n);
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t value = permutation(i);
      ASSERT_LT(value, n);
      ASSERT_FALSE(seen[value]) << n;
      seen[value] = true;
    }
  }
}

TEST(Permutation, ChangesWithSeedAndEpochOnly) {
  const auto order = [](uint64_t seed, uint64_t epoch) {
    std::vector<uint64_t> values;
    for (uint64_t i = 0; i < 50; ++i) values.push_back(permutation_at(50, seed, epoch, i));
    return values;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
}

TEST(Permutation, PutsEveryElementEverywhereEquallyOften) {
  constexpr uint64_t kN = 11;
  constexpr int kEpochs = 11000;
  std::array<std::array<int, kN>, kN> counts{};
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const Permutation permutation(kN, 7, static_cast<uint64_t>(epoch));
    for (uint64_t i = 0; i < kN; ++i) ++counts[i][permutation(i)];
  }
  for (const auto& row : counts) {
    for (const int count : row) EXPECT_NEAR(count, 1000, 181);  // 6 deviations, of 121 cells
  }
}

TEST(Permutation, WorksAtTheLargestSizes) {
  const Permutation permutation(UINT64_MAX, 1, 1);
  EXPECT_NE(permutation(0), permutation(UINT64_MAX - 1));
  EXPECT_LT(Permutation((uint64_t{1} << 40) + 1, 1, 1)(uint64_t{1} << 40), (uint64_t{1} << 40) + 1);
  EXPECT_THROW(Permutation(0, 1, 1)(0), Bug);
  EXPECT_THROW(Permutation(5, 1, 1)(5), Bug);
}

}  // namespace
}  // namespace contexture
