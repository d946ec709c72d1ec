#include "parallel/internal/c10d_world.h"

#include <arpa/inet.h>
#include <c10/util/Logging.h>
#include <netdb.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/exception.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "parallel/internal/communicator_base.h"

namespace contexture::parallel::internal {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kPause = milliseconds(20);
constexpr auto kOthersMayTake = milliseconds(1000);
constexpr auto kStoreMayTake = milliseconds(3000);  // above kOthersMayTake

milliseconds to_ms(double s) { return milliseconds(static_cast<int64_t>(s * 1000)); }
std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::string key(const char* name, int rank) { return concat(name, "/", rank); }

// Runs `task` on a thread of its own and gives it up after `limit`: a store whose server has
// stopped blocks its clients for ever. False when it was given up or threw.
bool run_within(milliseconds limit, std::function<void()> task) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false, ok = false;
  };
  const auto shared = std::make_shared<Shared>();
  std::thread([shared, task = std::move(task)] {
    bool ok = true;
    try {
      task();
    } catch (const std::exception&) {
      ok = false;
    }
    const std::lock_guard lock(shared->mutex);
    shared->done = true;
    shared->ok = ok;
    shared->changed.notify_all();
  }).detach();
  std::unique_lock lock(shared->mutex);
  return shared->changed.wait_for(lock, limit, [&] { return shared->done; }) && shared->ok;
}

// c10d logs every closed socket with a backtrace: what matters of it is in our errors.
void hush_c10d() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
}

bool is_taken(const std::string& message) {
  return message.find("EADDRINUSE") != std::string::npos ||
         message.find("in use") != std::string::npos;
}

c10::intrusive_ptr<c10d::Store> open_store(const Rendezvous& at, const std::string& address,
                                           double deadline_s) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(at.port);
  options.isServer = at.rank == 0 && !at.store_is_served;
  options.waitWorkers = false;  // check_in() says who is missing
  options.timeout = to_ms(deadline_s);
  try {
    return c10::make_intrusive<c10d::TCPStore>(at.host, options);
  } catch (const std::exception& error) {
    const std::string words = plain_words(error);
    CONTEXTURE_REQUIRE(!options.isServer || !is_taken(words),
                       "rank 0 cannot serve the rendezvous at ", address, ": port ", at.port,
                       " is taken by another program. Choose another port.");
    throw DistributedError(concat(
        "rank ", at.rank, " of ", at.size, " does not reach the rendezvous at ", address,
        " within ", deadline_s,
        " s. Is rank 0 running there, and may this machine connect to that port? (", words, ")"));
  }
}

}  // namespace

std::string plain_words(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string words = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  words = words.substr(0, words.find('\n'));
  if (words.rfind("[/", 0) == 0 && words.find("] ") != std::string::npos)
    words = words.substr(words.find("] ") + 2);  // a source line
  return words.empty() ? "no reason given" : words;
}

std::string address_towards(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  const int result = getaddrinfo(host.c_str(), concat(port).c_str(), &hints, &found);
  CONTEXTURE_REQUIRE_AS(DistributedError, result == 0, "the rendezvous host ", host,
                        " has no address: ", gai_strerror(result));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int fd = ::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    char name[NI_MAXHOST];
    const bool ok = ::connect(fd, each->ai_addr, each->ai_addrlen) == 0 &&  // sends nothing
                    ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
                    ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, name, sizeof name,
                                  nullptr, 0, NI_NUMERICHOST) == 0;
    ::close(fd);
    if (ok) return name;
  }
  throw DistributedError(
      concat("no network interface of this machine reaches the rendezvous host ", host, "."));
}

std::shared_ptr<void> serve_store(int& port) {
  hush_c10d();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  try {
    const auto store = std::make_shared<c10::intrusive_ptr<c10d::TCPStore>>(
        c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
    port = (*store)->getPort();
    return store;
  } catch (const std::exception& error) {
    const std::string words = plain_words(error);
    throw UserError(
        is_taken(words)
            ? concat("port ", port,
                     " is taken by another program. Choose another port for the rendezvous.")
            : concat("cannot serve a rendezvous at port ", port, ": ", words));
  }
}

World::World(const Rendezvous& at, double deadline_s)
    : rank_(at.rank),
      size_(at.size),
      address_(concat(at.host, ":", at.port)),
      store_is_served_(at.store_is_served) {
  hush_c10d();
  store_ = c10::make_intrusive<c10d::PrefixStore>("contexture/" + at.session,
                                                  open_store(at, address_, deadline_s));
  try {
    check_in(deadline_s);
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    throw DistributedError(concat("rank ", rank_, " of ", size_, " has lost the rendezvous at ",
                                  address_, " before all had come: ", plain_words(error)));
  }
}

// Everyone says "here"; rank 0 looks who did and tells the others, so that all refuse alike.
void World::check_in(double deadline_s) {
  if (store_->add(key("claims", rank_), 1) > 1) {
    store_->set("all", concat("two processes claim to be rank ", rank_, " of the rendezvous at ",
                              address_, ". Give each its own rank."));
  }
  store_->set(key("here", rank_), concat(size_));
  const auto end = Clock::now() + to_ms(deadline_s);
  if (rank_ == 0) {
    std::vector<int> missing;
    for (int r = 0; r < size_; ++r) missing.push_back(r);
    while (!missing.empty() && Clock::now() < end && !store_->check({"all"})) {
      std::erase_if(missing, [&](int r) { return store_->check({key("here", r)}); });
      if (!missing.empty()) std::this_thread::sleep_for(kPause);
    }
    if (!store_->check({"all"})) {
      std::string answer;
      if (!missing.empty()) {
        answer = concat("waited ", deadline_s, " s at the rendezvous ", address_,
                        " and never saw rank ", list_ranks(missing), " of ", size_, ".");
      }
      for (int r = 0; answer.empty() && r < size_; ++r) {
        const std::string theirs = text(store_->get(key("here", r)));
        if (theirs != concat(size_))
          answer = concat("rank 0 counts ", size_, " ranks, but rank ", r, " counts ", theirs,
                          ". Start all with the same number.");
      }
      store_->set("all", answer.empty() ? "here" : answer);
    }
  }
  // Rank 0's own deadline comes first; the second is for its answer to arrive.
  try {
    store_->wait({"all"}, to_ms(deadline_s + 1));
  } catch (const std::exception& error) {
    throw DistributedError(concat("rank ", rank_, " of ", size_, " waited ", deadline_s,
                                  " s at the rendezvous ", address_,
                                  " and had no word from rank 0."));
  }
  const std::string answer = text(store_->get("all"));
  if (answer == "here") return;
  if (rank_ == 0)
    std::this_thread::sleep_for(
        kOthersMayTake);  // or the others would lose the store before they have read it
  if (answer.rfind("waited", 0) == 0) {
    if (rank_ == 0) throw DistributedError("rank 0 " + answer);
    throw PeerFailure(concat("rank ", rank_, ": not all of ", size_, " ranks came"),
                      "rank 0 " + answer);
  }
  throw AgreedError(answer, rank_);
}

void World::require_alive(const std::string& where) const {
  if (!failed()) return;
  if (mine_) throw DistributedError(concat(where, ": this rank has failed before: ", verdict_));
  throw PeerFailure(concat(where, ": another rank failed"), verdict_);
}

bool World::post(const std::string& name, const std::string& what, double limit_s) const {
  return run_within(to_ms(limit_s),
                    [name, what, store = store_] { store->set("board/" + name, bytes(what)); });
}

std::optional<std::string> World::read(const std::string& name, double limit_s) const {
  const auto found = std::make_shared<std::optional<std::string>>();
  const bool ok = run_within(to_ms(limit_s), [found, key = "board/" + name, store = store_] {
    if (store->add("num_failed", 0) > 0) return;
    *found = store->check({key}) ? text(store->get(key)) : "";
  });
  return ok ? *found : std::nullopt;
}

void World::fail(const std::string& where, const std::string& reason,
                 const std::function<void()>& close_links) {
  require_alive(where);
  close_links();
  Finding finding = settle(concat(where, ": ", reason), true);
  if (finding.cause.empty()) {
    // With rank 0 its store is gone, and with it the means to agree: rank 1 speaks for all.
    finding.cause = store_is_served_
                        ? concat("the rendezvous store at ", address_, " does not answer")
                        : concat("rank 0, which serves the rendezvous at ", address_,
                                 ", has ended or does not answer");
    finding.mine = rank_ == (store_is_served_ ? 0 : 1);
    if (finding.mine) finding.cause = concat(where, ": ", reason, "; ", finding.cause);
  }
  verdict_ = finding.cause;
  mine_ = finding.mine;
  let_others_read();
  if (mine_) throw DistributedError(verdict_);
  throw PeerFailure(concat(where, ": ", reason), verdict_);
}

void World::abort(const std::string& cause, const std::function<void()>& close_links) {
  if (failed()) return;
  // The cause goes first: once the links are closed, the others look for it.
  Finding finding = settle(concat("rank ", rank_, ": ", cause), false);
  if (finding.cause.empty()) finding = {concat("rank ", rank_, ": ", cause), true};
  verdict_ = finding.cause;
  mine_ = finding.mine;
  close_links();
  let_others_read();
}

void World::let_others_read() const {
  if (rank_ != 0 || store_is_served_) return;
  run_within(kStoreMayTake, [store = store_, size = size_] {
    const auto end = Clock::now() + 2 * kOthersMayTake;
    while (store->add("num_read", 0) < size && Clock::now() < end)
      std::this_thread::sleep_for(kPause);
  });
}

World::Finding World::settle(const std::string& cause, bool wait_for_others) const {
  // The task may outlive this call, and this object: it owns what it touches.
  const auto finding = std::make_shared<Finding>();
  const bool ok = run_within(
      kStoreMayTake, [finding, cause, wait_for_others, store = store_, rank = rank_, size = size_] {
        store->set(key("failed", rank), "");
        int64_t noticed = store->add("num_failed", 1);
        std::vector<int> silent;
        if (wait_for_others) {
          const auto end = Clock::now() + kOthersMayTake;
          while (noticed < size && !store->check({"cause"}) && Clock::now() < end) {
            std::this_thread::sleep_for(kPause);
            noticed = store->add("num_failed", 0);
          }
          for (int r = 0; noticed < size && !store->check({"cause"}) && r < size; ++r) {
            if (!store->check({key("failed", r)})) silent.push_back(r);
          }
        }
        const std::string mine = silent.empty()
                                     ? cause
                                     : concat(cause, "; no word from rank ", list_ranks(silent),
                                              " (killed, stopped, cut off or busy)");
        finding->cause = text(store->compareSet("cause", {}, bytes(mine)));
        finding->mine = finding->cause == mine;
        store->add("num_read", 1);
      });
  return ok ? *finding : Finding();
}

}  // namespace contexture::parallel::internal
