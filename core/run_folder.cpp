#include "core/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"

namespace contexture {
namespace {

namespace fs = std::filesystem;

std::string line_of(const Json& record) {
  return record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

bool has_content(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && fs::file_size(path, ignored) > 0;
}

void write_all(int fd, std::string_view text, const fs::path& path) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    CONTEXTURE_REQUIRE(n >= 0, "cannot write ", path.string(), ": ", errno_text(errno));
    text.remove_prefix(static_cast<size_t>(n));
  }
}

// What remains of a metrics file when a run goes on after `resume_step`.
std::string kept_records(std::string_view text, const std::string& source, int64_t resume_step) {
  std::string kept;
  int dropped = 0;
  for (int line = 1; !text.empty(); ++line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) {
      log::warn("{}:{}: dropped an unfinished last line", source, line);
      break;
    }
    const std::string_view record_text = text.substr(0, end);
    text.remove_prefix(end + 1);
    JsonOptions options;
    options.first_line = line;
    const Json record = parse_json(record_text, source, options);
    const auto step = record.find("step");
    if (step != record.end() && step->is_number() &&
        step->get<double>() > static_cast<double>(resume_step)) {
      ++dropped;
      continue;
    }
    kept += record_text;
    kept += '\n';
  }
  if (dropped > 0) log::info("{}: dropped {} records after step {}", source, dropped, resume_step);
  return kept;
}

}  // namespace

MetricsLog::MetricsLog(const fs::path& path, std::optional<int64_t> resume_step) : path_(path) {
  if (has_content(path)) {
    CONTEXTURE_REQUIRE(
        resume_step.has_value(), path.string(),
        " already has records of another run. Resume that run, or choose another run.dir.");
    const std::string text = read_file(path);
    const std::string kept = kept_records(text, path.string(), *resume_step);
    if (kept.size() != text.size()) write_file_atomic(path, kept);
  }
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  CONTEXTURE_REQUIRE(fd_ >= 0, "cannot open ", path.string(), ": ", errno_text(errno));
}

MetricsLog::~MetricsLog() { ::close(fd_); }

void MetricsLog::append(const Json& record) {
  CONTEXTURE_INVARIANT(record.is_object(), "a metrics record must be an object");
  const std::string line = line_of(record);
  const std::lock_guard lock(mutex_);
  write_all(fd_, line, path_);
}

void MetricsLog::sync() {
  const std::lock_guard lock(mutex_);
  CONTEXTURE_REQUIRE(::fsync(fd_) == 0, "cannot sync ", path_.string(), ": ", errno_text(errno));
}

RunFolder::RunFolder(const fs::path& path, bool resume) : path_(path) {
  make_folders(path_);
  const fs::path lock_path = path_ / ".lock";
  lock_fd_ = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  CONTEXTURE_REQUIRE(lock_fd_ >= 0, "cannot open ", lock_path.string(), ": ", errno_text(errno));
  try {
    if (::flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
      const int error_number = errno;
      CONTEXTURE_REQUIRE(error_number == EWOULDBLOCK, "cannot lock ", lock_path.string(), ": ",
                         errno_text(error_number));
      char holder[64] = {};
      const ssize_t n = ::pread(lock_fd_, holder, sizeof holder - 1, 0);
      throw UserError(concat("the run folder ", path_.string(), " is in use by another process (",
                             n > 0 ? holder : "unknown",
                             "). Wait for it or stop it, or choose another run.dir."));
    }
    const std::string self = concat("pid ", ::getpid());
    if (::ftruncate(lock_fd_, 0) == 0) write_all(lock_fd_, self, lock_path);

    std::error_code ignored;
    const bool has_run =
        has_content(metrics_path()) || (fs::is_directory(checkpoints_path(), ignored) &&
                                        !fs::is_empty(checkpoints_path(), ignored));
    CONTEXTURE_REQUIRE(
        resume || !has_run, path_.string(),
        " already holds a run. Go on with it (--resume), or choose another run.dir.");
  } catch (...) {
    ::close(lock_fd_);
    throw;
  }
}

RunFolder::~RunFolder() { ::close(lock_fd_); }

void RunFolder::write_config(const Json& resolved) const {
  write_file_atomic(file("config.resolved.json"), resolved.dump(2) + "\n");
}

}  // namespace contexture
