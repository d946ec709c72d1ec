#include "data/augment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"

namespace contexture::data {
namespace {

Image flag() {
  Image image{48, 64, std::vector<uint8_t>(48 * 64 * 3, 255)};
  for (int y = 8; y < 40; ++y) {
    for (int x = 0; x < 64; ++x) {
      uint8_t* p = &image.rgb[static_cast<size_t>((y * 64 + x) * 3)];
      p[0] = x < 22 ? 200 : 20;
      p[1] = y < 24 ? 150 : 40;
      p[2] = static_cast<uint8_t>(3 * x);
    }
  }
  return image;
}

// A config with one change always on.
AugmentConfig only(const std::string& key) {
  AugmentConfig config;
  config.for_each([&](const std::string& name, double& value, const char*) {
    if (name == key) value = 1.0;
  });
  return config;
}

std::vector<std::string> probabilities() {
  std::vector<std::string> keys;
  AugmentConfig config;
  config.for_each([&](const std::string& name, double&, const char*) {
    if (name.size() > 2 && name.substr(name.size() - 2) == "_p") keys.push_back(name);
  });
  return keys;
}

TEST(Augment, ChangesNothingByDefault) {
  Stream stream(1, "t");
  EXPECT_EQ(augment(flag(), {}, stream), flag());
}

TEST(Augment, EveryChangeChangesThePictureAndKeepsItsSize) {
  for (const std::string& key : probabilities()) {
    bool changed = false;
    for (uint64_t i = 0; i < 5; ++i) {
      Stream stream(1, "t", i);
      const Image image = augment(flag(), only(key), stream);
      EXPECT_EQ(image.height, 48);
      EXPECT_EQ(image.width, 64);
      changed = changed || image != flag();
    }
    EXPECT_TRUE(changed) << key;
  }
}

TEST(Augment, IsTheSameForTheSameStream) {
  AugmentConfig config;
  config.for_each([](const std::string& name, double& value, const char*) {
    if (name.size() > 2 && name.substr(name.size() - 2) == "_p") value = 0.7;
  });
  for (uint64_t i = 0; i < 10; ++i) {
    Stream a(3, "t", i), b(3, "t", i);
    EXPECT_EQ(augment(flag(), config, a), augment(flag(), config, b));
  }
}

TEST(Augment, ReadsItsStreamTheSameNumberOfTimesWhateverIsOn) {
  Stream off(1, "t");
  augment(flag(), {}, off);
  const uint64_t after = off.next_u64();
  for (const std::string& key : probabilities()) {
    Stream on(1, "t");
    augment(flag(), only(key), on);
    EXPECT_EQ(on.next_u64(), after) << key;
  }
}

TEST(Augment, WorksOnTinyPictures) {
  AugmentConfig config;
  config.for_each([](const std::string& name, double& value, const char*) {
    if (name.size() > 2 && name.substr(name.size() - 2) == "_p") value = 1.0;
  });
  for (uint64_t i = 0; i < 20; ++i) {
    Stream stream(1, "t", i);
    augment(Image{1, 1, {1, 2, 3}}, config, stream);
  }
}

TEST(AugmentConfigTest, RefusesProbabilitiesAboveOne) {
  AugmentConfig config;
  config.noise_p = 1.5;
  EXPECT_THROW(config.validate(), UsageError);
  config.noise_p = 1.0;
  config.noise = -1.0;
  EXPECT_THROW(config.validate(), UsageError);
}

TEST(ApplyIdentity, HasFortyEightDistinctResultsAndAPlainOne) {
  std::set<std::vector<uint8_t>> results;
  for (int code = 0; code < 48; ++code) {
    const Identity identity{static_cast<uint8_t>(code % 6), code / 6 % 2 == 1, code / 12 % 2 == 1,
                            code / 24 == 1};
    const Image image = apply_identity(flag(), identity);
    EXPECT_EQ(identity.is_plain(), image == flag());
    results.insert(image.rgb);
  }
  EXPECT_EQ(results.size(), 48U);
}

TEST(ApplyIdentity, MovesPixelsAsItSays) {
  const Image image{1, 2, {10, 20, 30, 40, 50, 60}};
  EXPECT_EQ(apply_identity(image, {.channels = 5}).rgb,
            (std::vector<uint8_t>{30, 20, 10, 60, 50, 40}));
  EXPECT_EQ(apply_identity(image, {.invert = true}).rgb,
            (std::vector<uint8_t>{245, 235, 225, 215, 205, 195}));
  EXPECT_EQ(apply_identity(image, {.flip_horizontal = true}).rgb,
            (std::vector<uint8_t>{40, 50, 60, 10, 20, 30}));
}

TEST(RandomIdentity, DrawsAllFortyEight) {
  std::map<int, int> counts;
  Stream stream(9, "identity");
  for (int i = 0; i < 4800; ++i) {
    const Identity d = random_identity(stream);
    ++counts[d.channels + 6 * d.invert + 12 * d.flip_horizontal + 24 * d.flip_vertical];
  }
  EXPECT_EQ(counts.size(), 48U);
  for (const auto& [code, n] : counts) EXPECT_NEAR(n, 100, 50) << code;  // five standard deviations
}

TEST(Join, TakesWhatTheSeamHoldsFromThePart) {
  const Image ground{2, 2, std::vector<uint8_t>(12, 1)}, part{2, 2, std::vector<uint8_t>(12, 9)};
  // Pixel centres lie at -0.5 and 0.5.
  EXPECT_EQ(join(ground, part, {Seam::Kind::kHalf, 1.0, 0.0, 0.0, 0.0}).rgb,
            (std::vector<uint8_t>{1, 1, 1, 9, 9, 9, 1, 1, 1, 9, 9, 9}));
  EXPECT_EQ(join(ground, part, {Seam::Kind::kBox, -1.0, -1.0, 0.6, 2.0}).rgb,
            (std::vector<uint8_t>{9, 9, 9, 1, 1, 1, 9, 9, 9, 1, 1, 1}));
  EXPECT_EQ(join(ground, part, {Seam::Kind::kDisc, 0.5, 0.5, 0.9, 0.0}).rgb,
            (std::vector<uint8_t>{1, 1, 1, 1, 1, 1, 1, 1, 1, 9, 9, 9}));
}

TEST(RandomSeam, DrawsEveryKindAndLeavesSomethingOfBothPictures) {
  const Image ground{64, 64, std::vector<uint8_t>(64 * 64 * 3, 0)},
      part{64, 64, std::vector<uint8_t>(64 * 64 * 3, 1)};
  std::map<Seam::Kind, int> kinds;
  Stream stream(3, "seam");
  for (int i = 0; i < 600; ++i) {
    const Seam seam = random_seam(stream);
    ++kinds[seam.kind];
    const Image joined = join(ground, part, seam);
    const auto taken = std::count(joined.rgb.begin(), joined.rgb.end(), 1) / 3;
    EXPECT_GE(taken, 64 * 64 / 32);
    EXPECT_LE(taken, 64 * 64 * 31 / 32);
  }
  EXPECT_EQ(kinds.size(), 3U);
}

}  // namespace
}  // namespace contexture::data
