// Runs one function as several ranks: as threads, or as processes over loopback (this program
// started again with the function's name). A function says what is wrong by throwing.
#pragma once
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/timing.h"
#include "parallel/communicator.h"

namespace contexture::parallel::testing {

// Stops this rank with the line of the check.
#define RANK_CHECK(condition, ...)                                                      \
  do {                                                                                  \
    if (!(condition))                                                                   \
      throw std::runtime_error(                                                         \
          ::contexture::concat("line ", __LINE__, ": " #condition " ", ##__VA_ARGS__)); \
  } while (false)

using Scenario = std::function<void(Communicator&)>;
inline std::map<std::string, Scenario>& scenarios() {
  static std::map<std::string, Scenario> all;
  return all;
}

struct Outcome {
  std::string kind;  // "ok", "first" (DistributedError), "peer" (PeerFailure), "usage", "wrong"
                     // (anything else), "killed"
  std::string text;
};

inline Outcome outcome_of(const std::function<void()>& run) {
  try {
    run();
    return {"ok", ""};
  } catch (const PeerFailure& error) {
    return {"peer", error.what()};
  } catch (const DistributedError& error) {
    return {"first", error.what()};
  } catch (const UsageError& error) {
    return {"usage", error.what()};
  } catch (const std::exception& error) {
    return {"wrong", error.what()};
  }
}

inline std::vector<Outcome> run_threads(const std::string& name, int size, double deadline_s) {
  const auto ranks = make_thread_communicators(size, deadline_s);
  std::vector<Outcome> out(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] { out[r] = outcome_of([&] { scenarios().at(name)(*ranks[r]); }); });
  }
  for (std::thread& thread : threads) thread.join();
  return out;
}

struct Listener {  // on a free port of the loopback interface
  int fd = -1, port = 0;
};
inline Listener listen_somewhere() {
  Listener out;
  out.fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (out.fd < 0 || ::bind(out.fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(out.fd, 64) != 0 ||
      ::getsockname(out.fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw std::runtime_error("no loopback port");
  }
  out.port = ntohs(address.sin_port);
  return out;
}

inline int free_port() {  // until somebody else takes it
  const Listener listener = listen_somewhere();
  ::close(listener.fd);
  return listener.port;
}

// The process of one rank: through a pipe come a line end once it is connected and at its end "kind
// text".
class RankProcess {
 public:
  RankProcess(const std::string& name, const Rendezvous& at, double deadline_s) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    std::vector<std::string> args{"/proc/self/exe",
                                  "--rank",
                                  name,
                                  concat(at.rank),
                                  concat(at.size),
                                  concat(at.port),
                                  concat(at.store_is_served),
                                  concat(deadline_s),
                                  concat(ends[1])};
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    from_ = ends[0];
    ::fcntl(from_, F_SETFD, FD_CLOEXEC);
  }
  RankProcess(const RankProcess&) = delete;
  ~RankProcess() { end(); }
  pid_t pid() const { return pid_; }
  void wait_until_connected() {
    const double until = now_s() + 60;
    while (text_.empty() && read_some(until)) {
    }
  }
  // Waits for its end; killed after 60 s.
  Outcome outcome() {
    const double until = now_s() + 60;
    while (read_some(until)) {
    }
    end();
    const std::string text = text_.rfind('\n', 0) == 0 ? text_.substr(1) : text_;
    const size_t space = text.find(' ');
    return space == std::string::npos ? Outcome{"killed", text}
                                      : Outcome{text.substr(0, space), text.substr(space + 1)};
  }

 private:
  // False at its end and when the time is over.
  bool read_some(double until) {
    char buffer[4096];
    pollfd wait{from_, POLLIN, 0};
    while (::poll(&wait, 1, 1000) == 0) {
      if (now_s() > until) return false;
    }
    const ssize_t n = ::read(from_, buffer, sizeof buffer);
    if (n > 0) text_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(from_);
    pid_ = 0;
  }
  pid_t pid_ = 0;
  int from_ = -1;
  std::string text_;
};

// `meanwhile` gets the processes' ids once all are connected. The store is served by this process,
// or by rank 0.
inline std::vector<Outcome> run_processes(
    const std::string& name, int size, double deadline_s,
    const std::function<void(const std::vector<pid_t>&)>& meanwhile = {},
    bool rank_0_serves = false) {
  std::unique_ptr<RendezvousServer> server;
  if (!rank_0_serves) server = std::make_unique<RendezvousServer>();
  Rendezvous at;
  at.size = size;
  at.port = server ? server->port() : free_port();
  at.store_is_served = server != nullptr;
  std::vector<std::unique_ptr<RankProcess>> ranks;
  std::vector<pid_t> ids;
  for (int r = 0; r < size; ++r) {
    at.rank = r;
    ranks.push_back(std::make_unique<RankProcess>(name, at, deadline_s));
    ids.push_back(ranks.back()->pid());
  }
  if (meanwhile) {
    for (auto& rank : ranks) rank->wait_until_connected();
    meanwhile(ids);
  }
  std::vector<Outcome> out;
  for (auto& rank : ranks) out.push_back(rank->outcome());
  return out;
}

// For main(): runs the rank when this program was started as one, and says so.
inline bool run_as_rank(int argc, char** argv) {
  if (argc != 9 || std::string(argv[1]) != "--rank") return false;
  at::set_num_threads(1);
  Rendezvous at;
  at.rank = std::stoi(argv[3]);
  at.size = std::stoi(argv[4]);
  at.port = std::stoi(argv[5]);
  at.store_is_served = std::stoi(argv[6]) != 0;
  const double deadline_s = std::stod(argv[7]);
  const int out = std::stoi(argv[8]);
  std::shared_ptr<Communicator> world;
  const Outcome outcome = outcome_of([&] {
    world = connect(at, "gloo", 60);
    world->set_deadline(deadline_s);
    if (::write(out, "\n", 1) != 1) throw std::runtime_error("nobody listens");
    scenarios().at(argv[2])(*world);
  });
  if (outcome.kind == "wrong" && world) world->abort(outcome.text);
  const std::string text = outcome.kind + " " + outcome.text;
  if (::write(out, text.data(), text.size()) < 0) std::cerr << text << "\n";
  return true;
}

}  // namespace contexture::parallel::testing
