// Writes TensorBoard event files: scalars and pictures. The few wire fields are written by hand,
// since a protobuf library would collide with the one inside sentencepiece
// (docs/formats/metrics.md has the layout).
//
// One writer owns one file and is used from one thread. Every record is flushed, so a killed run
// loses nothing that it logged; opening a new writer starts a new file beside the old ones, which
// TensorBoard reads as one run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace contexture::eval {

class TensorBoardWriter {
 public:
  // Makes dir if needed and starts events.out.tfevents.<unix>.<host>.<pid>.<n> in it. UserError,
  // naming the file, if that or any later write fails.
  explicit TensorBoardWriter(const std::string& dir);

  // wall_time_s: seconds since 1970; below 0 means now.
  void scalar(std::string_view tag, int64_t step, float value, double wall_time_s = -1.0);

  // png: an encoded picture of height x width pixels with three channels.
  void image(std::string_view tag, int64_t step, int height, int width,
             std::span<const std::byte> png, double wall_time_s = -1.0);

  const std::string& path() const { return path_; }

 private:
  void append(std::string_view event);

  std::string path_;
  std::ofstream file_;
};

// One framed record: u64 length, masked CRC32C of the length, bytes, masked CRC32C of the bytes.
std::string tensorboard_record(std::string_view bytes);

}  // namespace contexture::eval
