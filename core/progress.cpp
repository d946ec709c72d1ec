#include "core/progress.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <utility>

#include "core/format.h"

namespace contexture {
namespace {

constexpr double kBarEvery_s = 0.1;  // faster than this only costs time
constexpr int kBarCells = 24;

std::atomic<int> bars_visible{0};

std::string rate_text(double per_s) {
  if (per_s >= 100) return format("{:.0f}", per_s);
  if (per_s >= 1) return format("{:.1f}", per_s);
  return format("{:.3f}", per_s);
}

}  // namespace

bool progress_bar_visible() { return bars_visible.load(std::memory_order_relaxed) > 0; }

std::string duration_text(double seconds) {
  if (!(seconds < 3.6e8)) return "?";  // also NaN
  const auto total = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (total < 3600) return format("{:02}:{:02}", total / 60, total % 60);
  return format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

Progress::Progress(std::string label, int64_t total, ProgressOptions options)
    : label_(std::move(label)), total_(total), options_(std::move(options)) {
  if (!options_.write) {
    options_.write = [](std::string_view text) {
      std::fwrite(text.data(), 1, text.size(), stderr);
      std::fflush(stderr);
    };
  }
  if (!options_.clock_s) {
    options_.clock_s = [] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
          .count();
    };
  }
  terminal_ = options_.terminal.value_or(::isatty(STDERR_FILENO) == 1);
  start_s_ = shown_s_ = options_.clock_s();
  if (terminal_) bars_visible.fetch_add(1);
}

Progress::~Progress() {
  try {
    finish();
  } catch (...) {  // a failing terminal must not end the program from a destructor
  }
}

void Progress::start_at(int64_t done) {
  const std::lock_guard lock(mutex_);
  done_ = start_done_ = done;
}

void Progress::advance(int64_t n) {
  const std::lock_guard lock(mutex_);
  done_ += n;
  show(/*last=*/false);
}

void Progress::update(int64_t done, std::string_view note) {
  const std::lock_guard lock(mutex_);
  done_ = done;
  note_ = note;
  show(/*last=*/false);
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  finished_ = true;
  if (terminal_) bars_visible.fetch_sub(1);
  show(/*last=*/true);
}

void Progress::show(bool last) {
  const double now_s = options_.clock_s();
  if (!last && now_s - shown_s_ < (terminal_ ? kBarEvery_s : options_.line_every_s)) return;
  shown_s_ = now_s;
  const std::string text = line(now_s);
  if (terminal_) {
    options_.write("\r" + text + "\x1b[K" + (last ? "\n" : ""));
  } else {
    options_.write(text + "\n");
  }
}

std::string Progress::line(double now_s) const {
  const double elapsed_s = now_s - start_s_;
  const int64_t done_here = done_ - start_done_;
  const double per_s = elapsed_s > 0 ? static_cast<double>(done_here) / elapsed_s : 0.0;
  std::string text = label_ + ": ";
  if (total_ > 0) {
    const double fraction =
        std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
    if (terminal_) {
      const int full = static_cast<int>(fraction * kBarCells);
      text += "[" + std::string(static_cast<size_t>(full), '=') +
              std::string(static_cast<size_t>(kBarCells - full), ' ') + "] ";
    }
    text += format("{}/{} {} ({:.0f}%)", done_, total_, options_.unit, 100.0 * fraction);
  } else {
    text += format("{} {}", done_, options_.unit);
  }
  if (per_s > 0) text += format(", {} {}/s", rate_text(per_s), options_.unit);
  text += ", " + duration_text(elapsed_s);
  if (total_ > done_ && per_s > 0) {
    text += ", " + duration_text(static_cast<double>(total_ - done_) / per_s) + " left";
  }
  if (!note_.empty()) text += ", " + note_;
  return text;
}

}  // namespace contexture
