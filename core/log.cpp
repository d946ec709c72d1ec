#include "core/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "core/did_you_mean.h"
#include "core/error.h"
#include "core/progress.h"

namespace contexture::log {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"debug", "info", "warn", "error", "off"};

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warn:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
    case Level::off:
      break;
  }
  return spdlog::level::off;
}

// stderr, in colour on a terminal, clearing a progress bar's line first.
class StderrSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  StderrSink()
      : terminal_(::isatty(STDERR_FILENO) == 1), colour_(terminal_ && !std::getenv("NO_COLOR")) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    std::string line;
    if (terminal_ && progress_bar_visible()) line += "\r\x1b[K";
    const char* colour = !colour_                               ? nullptr
                         : message.level == spdlog::level::err  ? "\x1b[31m"
                         : message.level == spdlog::level::warn ? "\x1b[33m"
                                                                : nullptr;
    if (colour != nullptr) line += colour;
    line.append(text.data(), text.size());
    if (colour != nullptr) line += "\x1b[0m";
    std::fwrite(line.data(), 1, line.size(),
                stderr);  // one call: lines of several processes don't mix
  }
  void flush_() override { std::fflush(stderr); }

 private:
  const bool terminal_;
  const bool colour_;
};

// spdlog's sinks lock themselves; its list of sinks and its pattern don't, so this lock guards
// those.
class Logger {
 public:
  Logger() : spdlog_("contexture", std::make_shared<StderrSink>()) {
    spdlog_.set_level(spdlog::level::info);
    spdlog_.flush_on(spdlog::level::info);
    spdlog_.set_error_handler([](const std::string&) {});  // a full disk must not end a run
    apply_pattern();
  }

  void set_prefix(const std::string& prefix) {
    const std::lock_guard lock(mutex_);
    prefix_.clear();
    for (const char c : prefix) prefix_ += c == '%' ? std::string("%%") : std::string(1, c);
    apply_pattern();
  }

  void add_file(const std::filesystem::path& path) {
    std::shared_ptr<spdlog::sinks::sink> sink;
    try {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
    } catch (const spdlog::spdlog_ex& error) {
      throw UserError(concat("cannot log to ", path.string(), ": ", error.what()));
    }
    const std::lock_guard lock(mutex_);
    spdlog_.sinks().resize(1);
    spdlog_.sinks().push_back(std::move(sink));
    apply_pattern();
  }

  void remove_file() {
    const std::lock_guard lock(mutex_);
    spdlog_.sinks().resize(1);
  }

  void set_level(Level level) { spdlog_.set_level(to_spdlog(level)); }
  bool enabled(Level level) const { return spdlog_.should_log(to_spdlog(level)); }

  void write(Level level, std::string_view text) {
    const std::lock_guard lock(mutex_);
    spdlog_.log(to_spdlog(level), spdlog::string_view_t(text.data(), text.size()));
  }

 private:
  void apply_pattern() { spdlog_.set_pattern("%H:%M:%S %L " + prefix_ + "%v"); }

  std::mutex mutex_;
  spdlog::logger spdlog_;
  std::string prefix_;
};

Logger& logger() {
  static Logger* const instance =
      new Logger;  // never destroyed: destructors of others may still log
  return *instance;
}

}  // namespace

Level level_from_name(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Level>(i);
  }
  const std::vector<std::string> names(kNames.begin(), kNames.end());
  throw UsageError(concat("unknown log level '", name, "': use debug, info, warn, error or off.",
                          did_you_mean_hint(name, names)));
}

void set_level(Level level) { logger().set_level(level); }
void set_prefix(const std::string& prefix) { logger().set_prefix(prefix); }
void add_file(const std::filesystem::path& path) { logger().add_file(path); }
void remove_file() { logger().remove_file(); }
bool enabled(Level level) { return logger().enabled(level); }
void write(Level level, std::string_view text) { logger().write(level, text); }

}  // namespace contexture::log
