// Runs the built binary as a user would: arguments in; exit code, stdout and stderr out.
#pragma once
#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/json.h"

namespace contexture::cli {

using Arguments = std::vector<std::string>;

struct Result {
  int code = -1;   // exit code, or -1 when a signal ended it
  int signal = 0;  // that signal
  std::string out, err;
  Json json() const {
    return parse_json(out, "stdout");
  }  // throws unless stdout is one JSON value and nothing else
};

// A started process. The destructor kills it if it still runs.
class Process {
 public:
  explicit Process(const Arguments& arguments);
  ~Process();
  // Polls until `seen` holds; false when the process ends first or 100 s have passed.
  bool wait_until(const std::function<bool()>& seen) const;
  void send(int signal) const;
  pid_t pid() const { return pid_; }
  Result wait();

 private:
  bool ended() const;
  TempDir dir_;
  pid_t pid_ = -1;
};

Result run_program(const Arguments& arguments);

// train with configs/tiny.json into `run`, on one thread, plus further arguments.
Arguments tiny_training(const std::filesystem::path& run, const Arguments& more = {});

// "step loss contrastive" of every step in metrics.jsonl, as written: equal text is equal bits.
std::vector<std::string> losses(const std::filesystem::path& run);
int64_t last_step(const std::filesystem::path& run);  // 0 when there is none yet
int64_t newest_checkpoint(
    const std::filesystem::path& run);  // the step of the last complete one; 0: none

}  // namespace contexture::cli
