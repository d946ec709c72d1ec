#include "eval/tensorboard.h"

#include <unistd.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/hash.h"

namespace contexture::eval {
namespace {

// Protobuf wire types, and the field numbers of tensorflow.Event and what it holds.
constexpr uint32_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;
constexpr uint32_t kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5;
constexpr uint32_t kSummaryValue = 1, kValueTag = 1, kValueSimple = 2, kValueImage = 4;
constexpr uint32_t kImageHeight = 1, kImageWidth = 2, kImageColorspace = 3, kImagePng = 4;
constexpr uint64_t kRgb = 3;

template <typename Int>
void put_little_endian(std::string& out, Int value) {
  for (size_t i = 0; i < sizeof(Int); ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

void put_varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

void put_key(std::string& out, uint32_t field, uint32_t wire_type) {
  put_varint(out, field << 3 | wire_type);
}

void put_number(std::string& out, uint32_t field, uint64_t value) {
  put_key(out, field, kVarint);
  put_varint(out, value);
}

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out.append(bytes);
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string event_header(double wall_time_s) {
  std::string event;
  put_key(event, kEventWallTime, kFixed64);
  put_little_endian(event, std::bit_cast<uint64_t>(wall_time_s < 0 ? now_s() : wall_time_s));
  return event;
}

// value: the Summary.Value message without its tag.
std::string summary_event(std::string_view tag, int64_t step, const std::string& value,
                          double wall_time_s) {
  std::string tagged;
  put_bytes(tagged, kValueTag, tag);
  tagged += value;
  std::string summary;
  put_bytes(summary, kSummaryValue, tagged);
  std::string event = event_header(wall_time_s);
  put_number(event, kEventStep, static_cast<uint64_t>(step));
  put_bytes(event, kEventSummary, summary);
  return event;
}

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

}  // namespace

std::string tensorboard_record(std::string_view bytes) {
  std::string record;
  put_little_endian(record, static_cast<uint64_t>(bytes.size()));
  put_little_endian(record, masked_crc(record));
  record.append(bytes);
  put_little_endian(record, masked_crc(bytes));
  return record;
}

TensorBoardWriter::TensorBoardWriter(const std::string& dir) {
  // Two writers of one process within one second still get files of their own.
  static std::atomic<int> count{0};
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  path_ = dir + "/events.out.tfevents." + std::to_string(static_cast<int64_t>(now_s())) + "." +
          host_name() + "." + std::to_string(getpid()) + "." + std::to_string(count++);
  file_.open(path_, std::ios::binary | std::ios::trunc);
  std::string event = event_header(-1.0);
  put_bytes(event, kEventFileVersion, "brain.Event:2");
  append(event);
}

void TensorBoardWriter::scalar(std::string_view tag, int64_t step, float value,
                               double wall_time_s) {
  std::string message;
  put_key(message, kValueSimple, kFixed32);
  put_little_endian(message, std::bit_cast<uint32_t>(value));
  append(summary_event(tag, step, message, wall_time_s));
}

void TensorBoardWriter::image(std::string_view tag, int64_t step, int height, int width,
                              std::span<const std::byte> png, double wall_time_s) {
  std::string picture;
  put_number(picture, kImageHeight, static_cast<uint64_t>(height));
  put_number(picture, kImageWidth, static_cast<uint64_t>(width));
  put_number(picture, kImageColorspace, kRgb);
  put_bytes(picture, kImagePng, {reinterpret_cast<const char*>(png.data()), png.size()});
  std::string message;
  put_bytes(message, kValueImage, picture);
  append(summary_event(tag, step, message, wall_time_s));
}

void TensorBoardWriter::append(std::string_view event) {
  const std::string record = tensorboard_record(event);
  file_.write(record.data(), static_cast<std::streamsize>(record.size()));
  file_.flush();
  CONTEXTURE_REQUIRE(file_.good(), path_, ": cannot write TensorBoard events; is the disk full or ",
                     "the folder not writable?");
}

}  // namespace contexture::eval
