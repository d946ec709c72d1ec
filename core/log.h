// Log lines: to stderr, and to a file when asked. Thread-safe. Never throws; a broken pattern is
// logged as it stands.
//   log::info("{} documents in {:.1f} s", n, seconds);
// A line is "12:34:56 I [rank0] text"; colour only on a terminal (and never with NO_COLOR set).
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include "core/format.h"

namespace contexture::log {

enum class Level { debug, info, warn, error, off };

Level level_from_name(std::string_view name);  // UsageError with the nearest name
void set_level(Level level);                   // default info
void set_prefix(const std::string& prefix);    // "[rank0] "
void add_file(
    const std::filesystem::path& path);  // appends from now on; UserError if it can't be opened
void remove_file();                      // stops writing to that file

void write(Level level, std::string_view text);
bool enabled(Level level);

template <typename... Args>
void write_formatted(Level level, std::string_view pattern, const Args&... args) noexcept {
  try {
    if (!enabled(level)) return;
    if constexpr (sizeof...(args) == 0) {
      write(level, pattern);  // no arguments: braces in the text mean nothing
    } else {
      std::string text;
      try {
        text = format(pattern, args...);
      } catch (...) {
        text = std::string(pattern) + " [arguments do not fit]";
      }
      write(level, text);
    }
  } catch (...) {  // a log line must never end a run
  }
}

template <typename... Args>
void debug(std::string_view pattern, const Args&... args) {
  write_formatted(Level::debug, pattern, args...);
}
template <typename... Args>
void info(std::string_view pattern, const Args&... args) {
  write_formatted(Level::info, pattern, args...);
}
template <typename... Args>
void warn(std::string_view pattern, const Args&... args) {
  write_formatted(Level::warn, pattern, args...);
}
template <typename... Args>
void error(std::string_view pattern, const Args&... args) {
  write_formatted(Level::error, pattern, args...);
}

}  // namespace contexture::log
