// Measured traces, kept from one run of the program to the next: the times of the same blocks on
// the same machine are not measured twice. A file each below the cache folder, contexture/traces.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "parallel/trace.h"

namespace contexture::train {

std::string processor_name();  // its model, as Linux knows it

class TraceCache {
 public:
  // untimed: what is to be measured; with the processor, the number of threads, this program's file
  // and LibTorch's version it decides where the measured trace lies.
  explicit TraceCache(const parallel::Trace& untimed);
  // Null where nothing was kept, or something that is no trace of these blocks (it says so). Says
  // which file was used.
  std::optional<parallel::Trace> read() const;
  void write(const parallel::Trace& timed) const;  // warns where the folder cannot be written
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace contexture::train
