#include "data/image.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <thread>

#include "core/error.h"
#include "core/files.h"
#include "image_fixtures.h"

namespace contexture::data {
namespace {

using fixtures::bytes_of;
using fixtures::flat_jpeg;
using fixtures::Png;

std::string failure(std::span<const std::byte> bytes, const ImageOptions& options = {}) {
  try {
    decode_image(bytes, options, "pic");
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

std::array<int, 3> pixel(const Image& image, int y, int x) {
  const uint8_t* p = &image.rgb[static_cast<size_t>((y * image.width + x) * 3)];
  return {p[0], p[1], p[2]};
}

Image three_by_two() {
  // Six colours far apart, in 16-pixel blocks so that JPEG keeps them: 3 blocks wide, 2 high.
  const std::array<std::array<uint8_t, 3>, 6> colors = {
      {{250, 0, 0}, {0, 250, 0}, {0, 0, 250}, {250, 250, 0}, {0, 250, 250}, {20, 20, 20}}};
  Image image{32, 48, std::vector<uint8_t>(32 * 48 * 3)};
  for (int y = 0; y < 32; ++y) {
    for (int x = 0; x < 48; ++x) {
      const auto& color = colors[static_cast<size_t>(y / 16 * 3 + x / 16)];
      std::copy(color.begin(), color.end(), &image.rgb[static_cast<size_t>((y * 48 + x) * 3)]);
    }
  }
  return image;
}

// Which of the six blocks is at block (row, column).
int block(const Image& image, int row, int column) {
  const auto p = pixel(image, row * 16 + 8, column * 16 + 8);
  const Image original = three_by_two();
  for (int i = 0; i < 6; ++i) {
    const auto q = pixel(original, i / 3 * 16 + 8, i % 3 * 16 + 8);
    if (std::abs(p[0] - q[0]) + std::abs(p[1] - q[1]) + std::abs(p[2] - q[2]) < 60)
      return i;  // JPEG's loss
  }
  return -1;
}

std::vector<int> blocks(const Image& image) {
  std::vector<int> found;
  for (int r = 0; r < image.height / 16; ++r) {
    for (int c = 0; c < image.width / 16; ++c) found.push_back(block(image, r, c));
  }
  return found;
}

// What the stored 0 1 2 / 3 4 5 must look like when shown, by the EXIF standard.
const std::map<int, std::vector<int>> kUpright = {{1, {0, 1, 2, 3, 4, 5}}, {2, {2, 1, 0, 5, 4, 3}},
                                                  {3, {5, 4, 3, 2, 1, 0}}, {4, {3, 4, 5, 0, 1, 2}},
                                                  {5, {0, 3, 1, 4, 2, 5}}, {6, {3, 0, 4, 1, 5, 2}},
                                                  {7, {5, 2, 4, 1, 3, 0}}, {8, {2, 5, 1, 4, 0, 3}}};

TEST(DecodeImage, TurnsJpegsUprightForAllEightOrientations) {
  for (const auto& [orientation, expected] : kUpright) {
    const auto jpeg = fixtures::with_exif(encode_jpeg(three_by_two()), orientation);
    const Image image = decode_image(jpeg);
    EXPECT_EQ(image.height, orientation >= 5 ? 48 : 32);
    EXPECT_EQ(blocks(image), expected) << "orientation " << orientation;
  }
}

// Found by fuzzing: a segment too short for its own marker was read past its end, up to 2^64 bytes.
TEST(DecodeImage, ReadsNoOrientationPastTheEndOfAShortExifSegment) {
  auto jpeg = fixtures::with_exif(encode_jpeg(three_by_two()), 6);
  ASSERT_EQ(jpeg[3], std::byte{0xE1});
  jpeg[4] = std::byte{0};
  jpeg[5] = std::byte{7};  // "Exif" and one zero; what was the rest lies between the segments now
  EXPECT_EQ(blocks(decode_image(jpeg)), kUpright.at(1));
}

TEST(DecodeImage, TurnsPngsUprightForAllEightOrientations) {
  for (const auto& [orientation, expected] : kUpright) {
    const auto png = fixtures::png_with_exif(encode_png(three_by_two()), orientation);
    EXPECT_EQ(blocks(decode_image(png)), expected) << "orientation " << orientation;
  }
}

TEST(DecodeImage, TurnsTiffsUprightForAllEightOrientations) {
  for (const auto& [orientation, expected] : kUpright) {
    const auto tiff = fixtures::tiff(three_by_two(), orientation);
    const Image image = decode_image(tiff);
    EXPECT_EQ(image.height, orientation >= 5 ? 48 : 32);
    EXPECT_EQ(blocks(image), expected) << "orientation " << orientation;
  }
}

TEST(DecodeImage, KeepsPngPixelsExactly) {
  const Image image = three_by_two();
  EXPECT_EQ(decode_image(encode_png(image)), image);
}

TEST(DecodeImage, ReadsCmykJpegsAsRgbWithAndWithoutTheAdobeMarker) {
  // Stored inverted, as Adobe does: red is C 0, M 255, Y 255, K 0, inverted 255, 0, 0, 255.
  for (const bool adobe : {true, false}) {
    const Image image = decode_image(flat_jpeg({254, 1, 1, 255}, adobe));
    const auto p = pixel(image, 3, 3);
    EXPECT_NEAR(p[0], 254, 2) << adobe;  // 2: rounding of the 8-bit conversion
    EXPECT_NEAR(p[1], 1, 2) << adobe;
    EXPECT_NEAR(p[2], 1, 2) << adobe;
  }
}

TEST(DecodeImage, ReadsGrayJpegsAsRgb) {
  const auto p = pixel(decode_image(flat_jpeg({77}, false)), 0, 0);
  EXPECT_EQ(p, (std::array<int, 3>{77, 77, 77}));
}

TEST(DecodeImage, DecodesAJpegSmallerWhereItWillBeShrunk) {
  Image image{95, 130, std::vector<uint8_t>(95 * 130 * 3)};
  for (size_t i = 0; i < image.rgb.size(); ++i)
    image.rgb[i] = static_cast<uint8_t>(i / 3 % 130 + i / 390);
  const auto jpeg = encode_jpeg(image);
  const auto size = [&](std::span<const std::byte> bytes, int shrunk_to) {
    ImageOptions options;
    options.shrunk_to = shrunk_to;
    const Image decoded = decode_image(bytes, options);
    return std::pair(decoded.height, decoded.width);
  };
  EXPECT_EQ(size(jpeg, 24), std::pair(95, 130));  // 95 / 2 is under twice 24
  EXPECT_EQ(size(jpeg, 23), std::pair(48, 65));
  EXPECT_EQ(size(jpeg, 8), std::pair(24, 33));
  EXPECT_EQ(size(jpeg, 1), std::pair(12, 17));
  EXPECT_EQ(size(encode_png(image), 8), std::pair(95, 130));
  ImageOptions options;
  options.shrunk_to = 23;
  const Image quick = resize(decode_image(jpeg, options), 23, 23),
              whole = resize(decode_image(jpeg), 23, 23);
  for (size_t i = 0; i < quick.rgb.size(); ++i)
    EXPECT_NEAR(quick.rgb[i], whole.rgb[i], 4);  // a level or two of each rounding
}

TEST(DecodeImage, ReducesSixteenBitsToEight) {
  // 0x8000 / 257 = 127.5 rounds to even or up: either is within half a step.
  const auto p =
      pixel(decode_image(Png{1, 1, 16, 2, {0xFF, 0xFF, 0x80, 0x00, 0x00, 0xFF}}.bytes()), 0, 0);
  EXPECT_EQ(p[0], 255);
  EXPECT_NEAR(p[1], 127.5, 0.5);
  EXPECT_EQ(p[2], 1);
}

TEST(DecodeImage, BlendsAlphaOverTheStatedBackground) {
  const auto png = Png{1, 2, 8, 6, {200, 100, 0, 0, 200, 100, 0, 51}}.bytes();
  const Image white = decode_image(png);
  EXPECT_EQ(pixel(white, 0, 0), (std::array<int, 3>{255, 255, 255}));
  EXPECT_EQ(pixel(white, 0, 1), (std::array<int, 3>{244, 224, 204}));  // 255 + 0.2 * (c - 255)
  const Image blue = decode_image(png, {.background = {0, 0, 100}});
  EXPECT_EQ(pixel(blue, 0, 0), (std::array<int, 3>{0, 0, 100}));
  EXPECT_EQ(pixel(blue, 0, 1), (std::array<int, 3>{40, 20, 80}));
}

TEST(DecodeImage, BlendsGrayWithAlphaPalettesAndColourKeys) {
  EXPECT_EQ(pixel(decode_image(Png{1, 1, 8, 4, {10, 0}}.bytes()), 0, 0),
            (std::array<int, 3>{255, 255, 255}));
  Png palette{1, 2, 8, 3, {0, 1}};
  palette.palette = {9, 8, 7, 50, 60, 70};
  EXPECT_EQ(pixel(decode_image(palette.bytes()), 0, 0), (std::array<int, 3>{9, 8, 7}));
  palette.transparency = {0};
  EXPECT_EQ(pixel(decode_image(palette.bytes()), 0, 0), (std::array<int, 3>{255, 255, 255}));
  EXPECT_EQ(pixel(decode_image(palette.bytes()), 0, 1), (std::array<int, 3>{50, 60, 70}));
  Png key{1, 2, 8, 2, {1, 2, 3, 4, 5, 6}};
  key.transparency = {0, 1, 0, 2, 0, 3};
  EXPECT_EQ(pixel(decode_image(key.bytes()), 0, 0), (std::array<int, 3>{255, 255, 255}));
  EXPECT_EQ(pixel(decode_image(key.bytes()), 0, 1), (std::array<int, 3>{4, 5, 6}));
  Png gray_key{1, 2, 8, 0, {30, 31}};
  gray_key.transparency = {0, 30};
  EXPECT_EQ(pixel(decode_image(gray_key.bytes()), 0, 0), (std::array<int, 3>{255, 255, 255}));
  EXPECT_EQ(pixel(decode_image(gray_key.bytes()), 0, 1), (std::array<int, 3>{31, 31, 31}));
}

TEST(DecodeImage, RejectsEveryTruncationOfAJpegAndAPng) {
  const Image image = three_by_two();
  for (const auto& whole :
       {encode_jpeg(image), encode_png(image), fixtures::tiff(image, 1), fixtures::bmp(image)}) {
    ASSERT_EQ(failure(whole), "");
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_NE(failure(std::span(whole).first(size)), "") << size << " of " << whole.size();
    }
  }
}

TEST(DecodeImage, IsNotFooledByAThumbnailsEndMarker) {
  // The EXIF block carries a whole JPEG, end marker included; the outer one is cut in its scan.
  auto jpeg = fixtures::with_exif(encode_jpeg(three_by_two()), 1, encode_jpeg(three_by_two()));
  ASSERT_EQ(failure(jpeg), "");
  jpeg.resize(jpeg.size() - 10);
  EXPECT_NE(failure(jpeg).find("cut off"), std::string::npos) << failure(jpeg);
}

TEST(DecodeImage, RefusesHugeClaimsFromTheHeaderAlone) {
  Png bomb{60000, 60000, 8, 2, {}};
  const std::string message = failure(bomb.bytes());
  EXPECT_NE(message.find("60000 x 60000"), std::string::npos) << message;
  EXPECT_NE(message.find("max_pixels"), std::string::npos) << message;
  bool survived = false;
  std::thread([&] { survived = !failure(bomb.bytes()).empty(); }).join();
  EXPECT_TRUE(survived);
}

TEST(DecodeImage, RefusesSizesThatOverflow) {
  for (const auto& [width, height] :
       {std::pair{0x7FFFFFFF, 0x7FFFFFFF}, {0, 10}, {10, 0}, {-1, 10}}) {
    Png bomb{height, width, 8, 2, {}};
    EXPECT_NE(failure(bomb.bytes()), "") << width;
  }
}

TEST(DecodeImage, NamesTheSourceOfDamagedData) {
  auto png = encode_png(three_by_two());
  png[60] ^= std::byte{0xFF};  // inside the pixel data: its checksum no longer fits
  EXPECT_EQ(failure(png).rfind("pic: ", 0), 0U) << failure(png);
  EXPECT_NE(failure(bytes_of("version https://git-lfs.github.com/spec/v1")).find("no picture"),
            std::string::npos);
  EXPECT_NE(failure({}).find("no picture"), std::string::npos);
}

TEST(ProbeImage, ReadsFormatAndSizeWithoutDecoding) {
  const ImageInfo info = probe_image(encode_jpeg(three_by_two()));
  EXPECT_EQ(info.format, "jpeg");
  EXPECT_EQ(info.height, 32);
  EXPECT_EQ(info.width, 48);
}

TEST(Resize, AveragesWhenItShrinks) {
  Image checker{64, 64, std::vector<uint8_t>(64 * 64 * 3)};
  for (int y = 0; y < 64; ++y) {
    for (int x = 0; x < 64; ++x) {
      for (int c = 0; c < 3; ++c)
        checker.rgb[static_cast<size_t>((y * 64 + x) * 3 + c)] = (x + y) % 2 ? 255 : 0;
    }
  }
  for (const uint8_t value : resize(checker, 16, 16).rgb)
    EXPECT_NEAR(value, 127.5, 1.0);  // rounding
  for (const uint8_t value : resize(checker, 16, 128).rgb)
    EXPECT_NEAR(value, 127.5, 1.0);  // one side grows
}

TEST(Resize, PadsToKeepTheAspect) {
  const Image padded = resize_padded(three_by_two(), 48, 48, {1, 2, 3});
  EXPECT_EQ(pixel(padded, 0, 0), (std::array<int, 3>{1, 2, 3}));
  EXPECT_EQ(pixel(padded, 24, 0)[0], 250 * 0 + pixel(three_by_two(), 16, 0)[0]);
  EXPECT_EQ(pixel(padded, 47, 47), (std::array<int, 3>{1, 2, 3}));
}

TEST(LoadImage, NamesAMissingFile) {
  EXPECT_THROW(load_image("/nonexistent/picture.png"), DataError);
}

}  // namespace
}  // namespace contexture::data
