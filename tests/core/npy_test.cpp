#include "core/npy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "expect_error.h"

namespace contexture {
namespace {

std::string file_with(const std::string& dictionary, size_t data_bytes) {
  std::string text = "\x93NUMPY";
  text += '\x01';
  text += '\0';
  text += static_cast<char>(dictionary.size() & 0xff);
  text += static_cast<char>(dictionary.size() >> 8);
  return text + dictionary + std::string(data_bytes, '\0');
}

std::string refusal(const std::string& bytes) {
  return message_of<DataError>([&] { parse_npy_header(bytes, bytes.size(), "v.npy"); });
}

TEST(Npy, WhatIsWrittenIsReadBack) {
  const TempDir folder;
  const std::vector<float> values = {0, -0.0f, 1, -2.5f, 65504, 6e-8f, 0.33325195f, 1e-4f};
  for (const DType dtype : {DType::F32, DType::F16}) {
    const auto path = folder.path() / "v.npy";
    NpyWriter writer(path, dtype, 4, 2);
    writer.write(std::span(values).first(6));
    writer.write(std::span(values).last(2));
    writer.commit();
    const NpyMatrix matrix(path);
    EXPECT_EQ(matrix.rows(), 4);
    EXPECT_EQ(matrix.dim(), 2);
    EXPECT_EQ(matrix.dtype(), dtype);
    std::vector<float> back(6);
    matrix.read(1, back);
    for (size_t i = 0; i < back.size(); ++i) {
      // Half of float16's last place at 1e-4 and of its smallest number at 6e-8.
      EXPECT_NEAR(back[i], values[i + 2], dtype == DType::F32 ? 0 : 4e-8) << i;
    }
    EXPECT_EQ(matrix.floats().size(), dtype == DType::F32 ? 8u : 0u);
  }
}

// The bytes that numpy.save writes for a 1 x 2 float32 array.
TEST(Npy, TheHeaderIsNumPysOwn) {
  const TempDir folder;
  NpyWriter writer(folder.path() / "v.npy", DType::F32, 1, 2);
  writer.write(std::vector<float>{1, 2});
  writer.commit();
  const std::string text = read_file(folder.path() / "v.npy");
  std::string head("\x93NUMPY\x01\x00\x76\x00", 10);
  head += "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }";
  EXPECT_EQ(text.substr(0, head.size()), head);
  EXPECT_EQ(text.size(), 128u + 8u);
  EXPECT_EQ(text[127], '\n');
}

TEST(Npy, EveryHalfGoesToFloatAndBack) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if ((half & 0x7fff) > 0x7c00) continue;  // NaN
    ASSERT_EQ(float_to_half(half_to_float(half)), half) << bits;
  }
  EXPECT_EQ(half_to_float(0x3c01), 1.0f + 0x1p-10f);
  EXPECT_EQ(half_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(float_to_half(1.0f + 0x1p-11f), 0x3c00) << "a tie goes to the even one";
  EXPECT_EQ(float_to_half(1.0f + 3 * 0x1p-11f), 0x3c02);
  EXPECT_EQ(float_to_half(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_TRUE(std::isnan(half_to_float(float_to_half(std::nanf("")))));
}

TEST(Npy, BadFilesAreRefusedWithTheReason) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";
  EXPECT_EQ(refusal(file_with(good, 24)), "no error");
  EXPECT_NE(refusal(file_with(good, 23)).find("cut short"), std::string::npos);
  EXPECT_NE(refusal(file_with(good, 25)).find("cut short or damaged"), std::string::npos);
  EXPECT_NE(refusal(file_with(good, 24).substr(0, 40)).find("cut short"), std::string::npos);
  EXPECT_NE(refusal("not an array").find("numpy.save"), std::string::npos);
  EXPECT_NE(refusal("version https://git-lfs.github.com/spec/v1\n").find("LFS"), std::string::npos);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return refusal(file_with(text.replace(text.find(from), from.size(), to), 24));
  };
  EXPECT_NE(with("<f4", "<f8").find("astype"), std::string::npos);
  EXPECT_NE(with("<f4", ">f4").find("float32"), std::string::npos);
  EXPECT_NE(with("False", "True").find("ascontiguousarray"), std::string::npos);
  EXPECT_NE(with("(2, 3)", "(6,)").find("1 dimensions"), std::string::npos);
  EXPECT_NE(with("(2, 3)", "(-2, 3)").find("no list of sizes"), std::string::npos);
  EXPECT_NE(with("'shape'", "'other'").find("'other'"), std::string::npos);
  EXPECT_NE(with("{'descr'", "('descr'").find("no dictionary"), std::string::npos);
  // Products that wrap to what the file has, and a size beyond 64 bits.
  EXPECT_NE(with("(2, 3)", "(4611686018427387910, 4)").find("do not fit"), std::string::npos);
  EXPECT_NE(with("(2, 3)", "(99999999999999999999, 3)").find("no list of sizes"),
            std::string::npos);
  EXPECT_NE(with("(2, 3)", "(2, 0)").find("do not fit"), std::string::npos);
}

TEST(Npy, ANumberBeyondFloat16IsNotSilentlyInfinite) {
  const TempDir folder;
  NpyWriter writer(folder.path() / "v.npy", DType::F16, 1, 1);
  EXPECT_NE(message_of<UserError>([&] { writer.write(std::vector<float>{1e5f}); }).find("float16"),
            std::string::npos);
}

}  // namespace
}  // namespace contexture
