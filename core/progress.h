// Progress with rate and time left: a bar on a terminal, otherwise a plain line every few seconds.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace contexture {

struct ProgressOptions {
  std::string unit = "it";                      // "images" gives "12.3 images/s"
  double line_every_s = 10.0;                   // without a terminal
  std::optional<bool> terminal;                 // default: whether stderr is one
  std::function<void(std::string_view)> write;  // default: to stderr
  std::function<double()> clock_s;              // default: a steady clock
};

// Thread-safe. The destructor finishes the bar. total 0 means unknown: no bar and no time left.
class Progress {
 public:
  Progress(std::string label, int64_t total, ProgressOptions options = {});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t n = 1);
  void update(int64_t done, std::string_view note = {});  // note: "loss 1.23", shown at the end
  void start_at(int64_t done);  // a resumed job: work done before does not count for the rate
  void finish();                // prints the last state once

 private:
  void show(bool last);
  std::string line(double now_s) const;

  const std::string label_;
  const int64_t total_;
  ProgressOptions options_;
  std::mutex mutex_;
  std::string note_;
  int64_t done_ = 0;
  int64_t start_done_ = 0;
  double start_s_ = 0.0;
  double shown_s_ = 0.0;
  bool terminal_ = false;
  bool finished_ = false;
};

// "1:02:03" or "02:03".
std::string duration_text(double seconds);

// True while a bar occupies the terminal's last line; the log clears it before it writes.
bool progress_bar_visible();

}  // namespace contexture
