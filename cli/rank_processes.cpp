#include "cli/rank_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "core/format.h"
#include "core/signals.h"

extern char** environ;

namespace contexture::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLostPeer = 4, kRequeue = 75;
constexpr size_t kLongestLine = 1 << 16;  // a longer one is passed on in pieces

void say(const std::string& line) {
  const std::string text = "contexture launch: " + line + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

// Lines from a pipe, each passed on to stderr in one write with its prefix.
class LinePump {
 public:
  LinePump(int fd, std::string prefix) : fd_(fd), prefix_(std::move(prefix)) {}
  int fd() const { return fd_; }
  void read_some() {
    char buffer[16384];
    const ssize_t n = ::read(fd_, buffer, sizeof buffer);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) {
      if (!line_.empty()) pass_on(line_);
      line_.clear();
      ::close(fd_);
      fd_ = -1;
      return;
    }
    line_.append(buffer, static_cast<size_t>(n));
    size_t at = 0;
    for (size_t end; (end = line_.find('\n', at)) != std::string::npos; at = end + 1)
      pass_on(line_.substr(at, end - at));
    line_.erase(0, at);
    if (line_.size() < kLongestLine) return;
    pass_on(line_);
    line_.clear();
  }

 private:
  void pass_on(const std::string& line) const {
    const std::string text = prefix_ + line + "\n";
    for (size_t at = 0; at < text.size();) {
      const ssize_t n = ::write(STDERR_FILENO, text.data() + at, text.size() - at);
      if (n < 0 && errno != EINTR && errno != EAGAIN) return;
      if (n > 0) at += static_cast<size_t>(n);
    }
  }
  int fd_;
  const std::string prefix_;
  std::string line_;
};

struct Child {
  int rank = 0;
  pid_t pid = -1;
  std::optional<LinePump> lines;
  bool running = true;
};

void check(bool ok, const char* what) {
  CONTEXTURE_REQUIRE(ok, what, ": ", errno_text(errno), ". Too many processes or open files?");
}

Child start(const RankCommand& command) {
  std::vector<std::string> words{"contexture"};
  words.insert(words.end(), command.arguments.begin(), command.arguments.end());
  std::vector<std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string name(*each, std::strcspn(*each, "="));
    if (!command.environment.contains(name)) variables.emplace_back(*each);
  }
  for (const auto& [name, value] : command.environment) variables.push_back(name + "=" + value);
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> out;
    for (std::string& text : texts) out.push_back(text.data());
    out.push_back(nullptr);
    return out;
  };
  const std::vector<char*> argv = pointers(words), envp = pointers(variables);
  int ends[2];
  check(::pipe2(ends, O_CLOEXEC) == 0, "pipe");
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  check(pid >= 0, "fork");
  if (pid == 0) {  // only async-signal-safe calls from here to exec
    // A group of its own: Ctrl-C on the terminal reaches the launcher alone, which passes it on
    // once.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    const int nothing = ::open("/dev/null", O_RDONLY);
    if (::dup2(nothing, STDIN_FILENO) < 0 || ::dup2(ends[1], STDERR_FILENO) < 0) ::_exit(126);
    if (command.rank != 0 && ::dup2(ends[1], STDOUT_FILENO) < 0) ::_exit(126);
    ::execve("/proc/self/exe", argv.data(), envp.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  Child child;
  child.rank = command.rank;
  child.pid = pid;
  child.lines.emplace(ends[0], format("[rank {}] ", command.rank));
  return child;
}

class Node {
 public:
  Node(int world_size, double grace_s) : world_size_(world_size), grace_(grace_s) {}
  ~Node() {
    kill_all(SIGKILL);
    for (const Child& child : children_) {
      if (child.running) ::waitpid(child.pid, nullptr, 0);
    }
  }

  void add(const RankCommand& command) { children_.push_back(start(command)); }

  int run() {
    while (any_running()) {
      pump(100);
      for (Child& child : children_) reap(child);
      if (!passed_on_ && stop_requested()) {
        passed_on_ = true;
        kill_all(stop_signal());
      }
      if (failed_at_ && !killed_ && Clock::now() - *failed_at_ > grace_) {
        killed_ = true;
        for (const Child& child : children_) {
          if (child.running)
            say(format("rank {} still runs {} s after the failure: killed", child.rank,
                       grace_.count()));
        }
        kill_all(SIGKILL);
      }
    }
    while (pump(0)) {
    }
    return failure_ != 0 ? failure_ : saved_ ? kRequeue : 0;
  }

 private:
  bool any_running() const {
    for (const Child& child : children_) {
      if (child.running) return true;
    }
    return false;
  }

  void kill_all(int signal) const {
    for (const Child& child : children_) {
      if (child.running) ::kill(child.pid, signal);
    }
  }

  // False when there was nothing to read.
  bool pump(int timeout_ms) {
    std::vector<pollfd> fds;
    std::vector<LinePump*> pumps;
    for (Child& child : children_) {
      if (child.lines->fd() < 0) continue;
      fds.push_back({child.lines->fd(), POLLIN, 0});
      pumps.push_back(&*child.lines);
    }
    if (::poll(fds.data(), fds.size(), timeout_ms) <= 0) return false;
    for (size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].revents != 0) pumps[i]->read_some();
    }
    return true;
  }

  void reap(Child& child) {
    int status = 0;
    if (!child.running || ::waitpid(child.pid, &status, WNOHANG) != child.pid) return;
    child.running = false;
    const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    const int code = signal != 0 ? kLostPeer : WEXITSTATUS(status);
    if (code == 0) return;
    if (code == kRequeue) {
      saved_ = true;
      return;
    }
    if (!failed_at_) {
      failed_at_ = Clock::now();
      say(format("rank {} of {} {}; the others have {} s to end", child.rank, world_size_,
                 signal != 0 ? format("was killed by signal {} ({})", signal, ::strsignal(signal))
                             : format("failed with exit code {}", code),
                 grace_.count()));
    } else if (signal != 0 && !killed_) {
      say(format("rank {} of {} was killed by signal {} ({})", child.rank, world_size_, signal,
                 ::strsignal(signal)));
    }
    // Those that lost a peer often end before the one with the error does.
    if (failure_ == 0 || failure_ == kLostPeer) failure_ = code;
  }

  const int world_size_;
  const std::chrono::duration<double> grace_;
  std::vector<Child> children_;
  std::optional<Clock::time_point> failed_at_;
  int failure_ = 0;
  bool saved_ = false, passed_on_ = false, killed_ = false;
};

}  // namespace

int run_ranks(const std::vector<RankCommand>& commands, int world_size, double grace_s) {
  Node node(world_size, grace_s);
  for (const RankCommand& command : commands) node.add(command);
  return node.run();
}

}  // namespace contexture::cli
