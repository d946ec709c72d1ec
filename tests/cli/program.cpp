#include "program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <regex>
#include <thread>

#include "core/error.h"

namespace contexture::cli {
namespace fs = std::filesystem;

Process::Process(const Arguments& arguments) {
  const std::string out = dir_.path() / "out", err = dir_.path() / "err";
  std::vector<std::string> words{CONTEXTURE_BINARY};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = ::fork();
  CONTEXTURE_INVARIANT(pid_ >= 0, "fork: ", errno_text(errno));
  if (pid_ == 0) {  // only async-signal-safe calls from here to exec
    const int in_fd = ::open("/dev/null", O_RDONLY);
    const int out_fd = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int err_fd = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (::dup2(in_fd, 0) < 0 || ::dup2(out_fd, 1) < 0 || ::dup2(err_fd, 2) < 0) ::_exit(126);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
}

Process::~Process() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool Process::ended() const {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid_;
}

bool Process::wait_until(const std::function<bool()>& seen) const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(100);
  while (!seen()) {
    if (ended() || std::chrono::steady_clock::now() > deadline) return seen();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

void Process::send(int signal) const { ::kill(pid_, signal); }

Result Process::wait() {
  int status = 0;
  CONTEXTURE_INVARIANT(::waitpid(pid_, &status, 0) == pid_, "waitpid: ", errno_text(errno));
  pid_ = -1;
  Result result;
  if (WIFEXITED(status)) result.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.out = read_file(dir_.path() / "out");
  result.err = read_file(dir_.path() / "err");
  return result;
}

Result run_program(const Arguments& arguments) { return Process(arguments).wait(); }

Arguments tiny_training(const fs::path& run, const Arguments& more) {
  const std::string source = CONTEXTURE_SOURCE_DIR;
  Arguments out{"train",
                "--config",
                source + "/configs/tiny.json",
                "--set",
                "data.root=" + source + "/tests/fixtures/flags",
                "--set",
                "run.dir=" + run.string(),
                "--set",
                "run.threads=1"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

std::vector<std::string> losses(const fs::path& run) {
  std::vector<std::string> out;
  std::ifstream file(run / "metrics.jsonl");
  const std::regex step(R"re("step":(\d+))re"), loss(R"re("loss":([^,}]+))re"),
      contrastive(R"re("contrastive":([^,}]+))re");
  for (std::string line; std::getline(file, line);) {
    std::smatch s, l, c;
    if (!std::regex_search(line, l, loss) || !std::regex_search(line, s, step) ||
        !std::regex_search(line, c, contrastive))
      continue;
    out.push_back(s[1].str() + " " + l[1].str() + " " + c[1].str());
  }
  return out;
}

int64_t last_step(const fs::path& run) {
  const std::vector<std::string> all = losses(run);
  return all.empty() ? 0 : std::stoll(all.back());
}

int64_t newest_checkpoint(const fs::path& run) {
  int64_t newest = 0;
  std::error_code none;  // there may be no folder yet
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", none)) {
    const std::string name = entry.path().filename().string();  // step-00000004
    if (fs::exists(entry.path() / "manifest.json"))
      newest = std::max<int64_t>(newest, std::stoll(name.substr(5)));
  }
  return newest;
}

}  // namespace contexture::cli
