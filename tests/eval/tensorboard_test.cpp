#include "eval/tensorboard.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/json.h"
#include "data/image.h"

namespace contexture::eval {
namespace {

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

// The payloads of a well-formed event file; checks every length and checksum.
std::vector<std::string> payloads(const std::string& path) {
  const std::string file = read_file(path);
  std::string_view rest = file;
  std::vector<std::string> out;
  while (!rest.empty()) {
    if (rest.size() < 16) {
      ADD_FAILURE() << "the file ends inside a record";
      break;
    }
    const size_t length = little_endian(rest.substr(0, 8));
    out.emplace_back(rest.substr(12, length));
    EXPECT_EQ(tensorboard_record(out.back()), rest.substr(0, length + 16));
    rest.remove_prefix(length + 16);
  }
  return out;
}

TEST(TensorBoard, ARecordIsFramedWithMaskedChecksums) {
  // "123456789" is the check string of CRC-32C: 0xe3069283, masked by hand here.
  const std::string record = tensorboard_record("123456789");
  ASSERT_EQ(record.size(), 8u + 4u + 9u + 4u);
  EXPECT_EQ(little_endian(record.substr(0, 8)), 9u);
  EXPECT_EQ(record.substr(12, 9), "123456789");
  const uint32_t crc = 0xe3069283u;
  EXPECT_EQ(little_endian(record.substr(21, 4)),
            static_cast<uint32_t>(((crc >> 15) | (crc << 17)) + 0xa282ead8u));
}

TEST(TensorBoard, AScalarEventHasExactlyTheseBytes) {
  const TempDir dir;
  TensorBoardWriter writer(dir.path());
  writer.scalar("loss", 300, 0.5f, /*wall_time_s=*/1.0);
  const auto events = payloads(writer.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].substr(9), std::string("\x1a\x0d") + "brain.Event:2");
  const std::string wall_time("\x09\0\0\0\0\0\0\xf0\x3f", 9), step("\x10\xac\x02", 3);
  const std::string value("\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\0\x3f",
                          15);  // summary { value { tag: "loss" simple_value: 0.5 } }
  EXPECT_EQ(events[1], wall_time + step + value);
}

TEST(TensorBoard, TheFileNameIsOneThatTensorBoardLooksFor) {
  const TempDir dir;
  const TensorBoardWriter a(dir.path()), b(dir.path());
  EXPECT_NE(a.path().find("/events.out.tfevents."), std::string::npos);
  EXPECT_NE(a.path(), b.path());
}

TEST(TensorBoard, AnUnwritableFolderIsNamed) {
  const TempDir dir;
  const std::string file = dir.path() / "file";
  write_file_atomic(file, std::string_view("x"));
  try {
    const TensorBoardWriter writer(file + "/below");
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find(file), std::string::npos);
  }
}

std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  char digits[3];
  for (const std::byte b : bytes) {
    std::snprintf(digits, sizeof digits, "%02x", std::to_integer<unsigned>(b));
    out += digits;
  }
  return out;
}

std::string float_hex(float value) { return hex(std::as_bytes(std::span(&value, 1))); }

TEST(TensorBoard, TheStockReaderReadsBackWhatWasWritten) {
  const char* python = std::getenv("CONTEXTURE_TEST_PYTHON");
  if (python == nullptr || *python == '\0') {
    GTEST_SKIP() << "CONTEXTURE_TEST_PYTHON is not set: no Python with the tensorboard package";
  }
  const TempDir dir;
  const data::Image picture{2, 3, std::vector<uint8_t>(18, 200)};
  const auto png = data::encode_png(picture);
  {
    TensorBoardWriter writer(dir.path());
    writer.scalar("train/loss", 1, 0.1f, 1700000000.25);
    writer.scalar("train/loss", int64_t{1} << 40, -3.5e-20f, 1700000001.5);
    writer.scalar("eval/em.retrieved", 2, 75.8f, 1700000002.0);
    writer.image("samples/query", 2, picture.height, picture.width, png, 1700000003.0);
  }
  const std::string command =
      concat("'", python, "' '", CONTEXTURE_SOURCE_DIR,
             "/tests/eval/tensorboard_stock_reader.py' '", dir.path().string(), "' 2>/dev/null");
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
  ASSERT_EQ(pclose(pipe), 0) << command;
  const Json expected = {
      {"file_version", 2.0},
      {"scalars",
       {{"train/loss",
         {{1700000000.25, 1, float_hex(0.1f)},
          {1700000001.5, int64_t{1} << 40, float_hex(-3.5e-20f)}}},
        {"eval/em.retrieved", Json::array({{1700000002.0, 2, float_hex(75.8f)}})}}},
      {"images", {{"samples/query", Json::array({{2, 3, 2, hex(png)}})}}}};
  EXPECT_EQ(parse_json(output, "reader"), expected);
}

}  // namespace
}  // namespace contexture::eval
