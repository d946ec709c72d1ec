// The folder of a run (docs/formats/run-folder.md): resolved config, metrics, and a lock against a
// second writer.
#pragma once
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string_view>

#include "core/json_fwd.h"

namespace contexture {

// Appends one JSON object per line; a line is one write, so a killed process leaves whole lines but
// for the last. Numbers keep full double precision; NaN and infinities become null. Thread-safe.
class MetricsLog {
 public:
  // Without resume_step the file must not exist or be empty. With it, records whose "step" is
  // greater are dropped, as is an unfinished last line; a bad line elsewhere is a DataError naming
  // it.
  MetricsLog(const std::filesystem::path& path, std::optional<int64_t> resume_step);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  void append(const Json& record);  // UserError when the disk is full
  void sync();                      // to the disk; call when a checkpoint is complete

 private:
  std::filesystem::path path_;
  std::mutex mutex_;
  int fd_ = -1;
};

class RunFolder {
 public:
  // Makes the folder and locks it until destruction; the lock dies with the process. UserError when
  // another process holds it, or when `resume` is false and the folder already holds a run (metrics
  // or checkpoints).
  RunFolder(const std::filesystem::path& path, bool resume);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path file(std::string_view name) const { return path_ / name; }
  std::filesystem::path metrics_path() const { return path_ / "metrics.jsonl"; }
  std::filesystem::path checkpoints_path() const { return path_ / "checkpoints"; }

  // config.resolved.json: every setting with its value.
  void write_config(const Json& resolved) const;

 private:
  std::filesystem::path path_;
  int lock_fd_ = -1;
};

}  // namespace contexture
