#include "core/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/rng.h"
#include "expect_error.h"

namespace contexture {
namespace {

const std::string kGolden = CONTEXTURE_SOURCE_DIR "/tests/golden/reference.safetensors";

// A file's bytes: header length, header, then `num_data` bytes.
std::string file_of(const std::string& header, size_t num_data) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  bytes += header;
  for (size_t i = 0; i < num_data; ++i) bytes += static_cast<char>(i);
  return bytes;
}

std::string refusal_of_bytes(const std::string& bytes) {
  return message_of<DataError>([&] { SafetensorsReader(as_bytes(bytes), "f"); });
}

std::string refusal(const std::string& header, size_t num_data) {
  return refusal_of_bytes(file_of(header, num_data));
}

#define EXPECT_SAYS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "it says: " << (text)

TEST(SafetensorsReader, ReadsAFileOfTheReferenceWriter) {
  const SafetensorsReader reader(kGolden);
  EXPECT_EQ(reader.names().size(), 22u);
  EXPECT_EQ(reader.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));

  const TensorView& f32 = reader.get("a.float32");
  EXPECT_EQ(f32.dtype, DType::F32);
  EXPECT_EQ(f32.shape, (std::vector<int64_t>{2, 3}));
  float values[6];
  ASSERT_EQ(f32.bytes.size(), sizeof values);
  std::memcpy(values, f32.bytes.data(), sizeof values);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(values[i], static_cast<float>(i));

  const TensorView& bf16 = reader.get("b.bfloat16");
  EXPECT_EQ(bf16.dtype, DType::BF16);
  uint16_t half[4];
  std::memcpy(half, bf16.bytes.data(), sizeof half);
  EXPECT_EQ(half[0], 0x3f80);  // 1.0

  EXPECT_TRUE(reader.get("z.scalar").shape.empty());
  EXPECT_EQ(reader.get("z.scalar").bytes.size(), 4u);
  EXPECT_EQ(reader.get("c.empty").shape, (std::vector<int64_t>{3, 0, 2}));
  EXPECT_TRUE(reader.get("c.empty").bytes.empty());
  double nan = 0;
  std::memcpy(&nan, reader.get("é\"\\").bytes.data(), 8);
  EXPECT_TRUE(std::isnan(nan));
}

TEST(SafetensorsWriter, WritesTheReferenceWritersBytes) {
  const SafetensorsReader reader(kGolden);
  SafetensorsWriter writer(reader.metadata());
  std::vector<std::string> names = reader.names();
  Stream(1, "order").shuffle(names);
  for (const std::string& name : names) {
    const TensorView& view = reader.get(name);
    writer.add(name, view.dtype, view.shape, view.bytes);
  }
  const TempDir folder;
  const WrittenFile written = writer.write(folder.path() / "f.safetensors");
  const std::string bytes = read_file(folder.path() / "f.safetensors");
  EXPECT_EQ(bytes, read_file(kGolden));
  EXPECT_EQ(written.num_bytes, bytes.size());
  EXPECT_EQ(written.crc32c, crc32c(bytes));
}

TEST(SafetensorsWriter, AnEmptyFileRoundTrips) {
  const TempDir folder;
  SafetensorsWriter().write(folder.path() / "f");
  EXPECT_EQ(read_file(folder.path() / "f"), file_of("{}      ", 0));
  EXPECT_TRUE(SafetensorsReader(folder.path() / "f").names().empty());
}

TEST(SafetensorsWriter, RoundTripsSubByteTypesAndEveryDtypeName) {
  const std::string data(64, 'x');
  SafetensorsWriter writer;
  for (int i = 0; i <= static_cast<int>(DType::U64); ++i) {
    const auto dtype = static_cast<DType>(i);
    const size_t num_bytes = static_cast<size_t>(dtype_bits(dtype));  // 8 elements
    writer.add(std::string(dtype_name(dtype)), dtype, {8},
               as_bytes(std::string_view(data).substr(0, num_bytes)));
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_from_name("f32"), std::nullopt);
  const TempDir folder;
  writer.write(folder.path() / "f");
  const SafetensorsReader reader(folder.path() / "f");
  EXPECT_EQ(reader.names().front(), "U64");
  EXPECT_EQ(reader.get("F6_E2M3").bytes.size(), 6u);
  EXPECT_EQ(reader.get("F4").bytes.size(), 4u);
}

TEST(SafetensorsWriter, RefusesBadNamesAndWrongSizes) {
  const std::string data(16, 'x');
  SafetensorsWriter writer;
  writer.add("a", DType::F32, {4}, as_bytes(data));
  EXPECT_SAYS(message_of<UserError>([&] { writer.add("a", DType::F32, {4}, as_bytes(data)); }),
              "'a'");
  EXPECT_THROW(writer.add("__metadata__", DType::F32, {4}, as_bytes(data)), UserError);
  EXPECT_THROW(writer.add("b", DType::F32, {3}, as_bytes(data)), Bug);
  EXPECT_THROW(writer.add("b", DType::F32, {-4}, as_bytes(data)), Bug);
  writer.add("\xff", DType::F32, {4}, as_bytes(data));
  const TempDir folder;
  EXPECT_SAYS(message_of<UserError>([&] { writer.write(folder.path() / "f"); }), "UTF-8");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsReader, SuggestsTheNearestNameForAMissingTensor) {
  EXPECT_SAYS(message_of<DataError>([] { SafetensorsReader(kGolden).get("z.scaler"); }),
              "Did you mean 'z.scalar'?");
}

TEST(SafetensorsReader, ChecksTheHeaderLength) {
  EXPECT_SAYS(refusal_of_bytes(""), "0 bytes are no safetensors file");
  EXPECT_SAYS(refusal_of_bytes("1234567"), "7 bytes are no safetensors file");
  EXPECT_SAYS(refusal_of_bytes(file_of("{}", 0).substr(0, 9)), "cut short");
  EXPECT_SAYS(refusal_of_bytes(std::string(8, '\xff')), "over the limit");
  std::string over_limit(16, '{');
  const uint64_t length = 100'000'001;
  std::memcpy(over_limit.data(), &length, 8);
  EXPECT_SAYS(refusal_of_bytes(over_limit), "over the limit of 100000000");
}

TEST(SafetensorsReader, ChecksTheHeaderText) {
  EXPECT_SAYS(refusal("", 0), "starting with '{'");
  EXPECT_SAYS(refusal(" {}", 0), "starting with '{'");
  EXPECT_SAYS(refusal("[]", 0), "starting with '{'");
  EXPECT_SAYS(refusal("{", 0), "not valid JSON");
  EXPECT_SAYS(refusal("{} x", 0), "not valid JSON");
  EXPECT_SAYS(refusal(std::string("{}\0", 3), 0), "raw NUL");
  EXPECT_SAYS(refusal("{\"a\":" + std::string(300, '[') + std::string(300, ']') + "}", 0),
              "deeper than");
  EXPECT_SAYS(
      refusal(
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
          1),
      "occurs twice");
  EXPECT_EQ(refusal("{}   ", 0), "no error");
}

TEST(SafetensorsReader, ChecksEveryEntry) {
  EXPECT_SAYS(refusal(R"({"a":1})", 0), "tensor \"a\"");
  EXPECT_SAYS(refusal(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1), "'dtype' is missing");
  EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1), "'shape' is missing");
  EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[1]}})", 1), "'data_offsets' is missing");
  EXPECT_SAYS(refusal(R"({"a":{"dtype":"U7","shape":[1],"data_offsets":[0,1]}})", 1),
              "unknown dtype 'U7'");
  EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1),
              "negative extent");
  EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1),
              "'shape' must be");
  EXPECT_SAYS(
      refusal(R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})", 1),
      "'shape' must be");
  EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1), "[begin, end]");
  EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})", 1),
              "'data_offsets' must be");
  EXPECT_SAYS(refusal(R"({"__metadata__":{"a":1}})", 0), "must be a string");
  EXPECT_SAYS(refusal(R"({"__metadata__":["a"]})", 0), "__metadata__ must be an object");
}

TEST(SafetensorsReader, ChecksProductsForOverflow) {
  EXPECT_SAYS(
      refusal(R"({"a":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
      "overflows");
  EXPECT_SAYS(
      refusal(R"({"a":{"dtype":"F64","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", 0),
      "overflows");
  // 2^61 elements: the product fits, eight times it is 2^64 = 0 without the check.
  EXPECT_SAYS(
      refusal(R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0),
      "overflows");
  EXPECT_SAYS(refusal(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1),
              "whole bytes");
}

TEST(SafetensorsReader, ChecksSizesAgainstRanges) {
  EXPECT_SAYS(refusal(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
              "takes 8 bytes but data_offsets are [0, 4]");
  EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[5,4]}})", 8),
              "data_offsets are [5, 4]");
  EXPECT_SAYS(
      refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,0]}})", 8),
      "data_offsets are");
}

TEST(SafetensorsReader, ChecksContiguity) {
  EXPECT_SAYS(refusal(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3),
              "leaving a hole");
  EXPECT_SAYS(
      refusal(
          R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
          3),
      "inside the one before");
  EXPECT_SAYS(
      refusal(
          R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
          2),
      "inside the one before");
}

TEST(SafetensorsReader, ChecksCoverage) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  EXPECT_SAYS(refusal(header, 1), "cut short");
  EXPECT_SAYS(refusal(header, 3), "extra bytes at its end");
  EXPECT_EQ(refusal(header, 2), "no error");
}

TEST(SafetensorsReader, AcceptsAnyOrderAndEmptyTensorsBetweenOthers) {
  const std::string bytes = file_of(
      R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},"e":{"dtype":"F32","shape":[0,5],"data_offsets":[2,2]}})",
      3);
  const SafetensorsReader reader(as_bytes(bytes), "f");
  EXPECT_EQ(reader.names(), (std::vector<std::string>{"b", "e", "a"}));
  EXPECT_EQ(static_cast<int>(reader.get("a").bytes[0]), 2);
}

TEST(SafetensorsReader, TellsAGitLfsPointer) {
  EXPECT_SAYS(
      refusal_of_bytes("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"),
      "git lfs pull");
}

TEST(SafetensorsReader, EveryTruncationOfAFileIsRefused) {
  const std::string bytes = read_file(kGolden);
  for (size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_NE(refusal_of_bytes(bytes.substr(0, size)), "no error") << size;
  }
}

TEST(SafetensorsReader, EveryFlippedHeaderByteIsRefusedOrReadWithinBounds) {
  const std::string golden = read_file(kGolden);
  uint64_t header_size = 0;
  std::memcpy(&header_size, golden.data(), 8);
  for (size_t i = 0; i < 8 + header_size; ++i) {
    for (const char flip : {'\x01', '\x20', '\x7f'}) {
      std::string bytes = golden;
      bytes[i] = static_cast<char>(bytes[i] ^ flip);
      try {
        const SafetensorsReader reader(as_bytes(bytes), "f");
        const auto all = as_bytes(bytes);
        for (const std::string& name : reader.names()) {
          const auto view = reader.get(name).bytes;
          ASSERT_GE(view.data(), all.data());
          ASSERT_LE(view.data() + view.size(), all.data() + all.size());
        }
      } catch (const DataError&) {
      }
    }
  }
}

}  // namespace
}  // namespace contexture
