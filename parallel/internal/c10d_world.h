// What a process's c10d communicators share: the store, and what is known about the first failure.
//
// How a failure reaches everybody: the rank that sees it closes all its links. Whoever waits for
// this rank sees its links closed, closes its own, and so on; a rank that waits for nobody finds
// out at its next operation. The store holds the first cause, set once, so that each of them can
// name it.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "parallel/communicator.h"

namespace contexture::parallel::internal {

class World {
 public:
  // Meets the others at the store (Rendezvous), at the latest after deadline_s. Throws as connect()
  // does.
  World(const Rendezvous& rendezvous, double deadline_s);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }

  bool failed() const { return !verdict_.empty(); }
  // Throws when a failure is known.
  void require_alive(const std::string& where) const;
  // A text on the board that all ranks see (parallel/board.h). False, or nothing, where the store
  // does not answer within the limit or a rank has failed.
  bool post(const std::string& name, const std::string& text, double limit_s) const;
  std::optional<std::string> read(const std::string& name, double limit_s) const;
  // An operation has failed: `close_links` closes this rank's links; then the first cause is looked
  // for, for about a second, or set.
  [[noreturn]] void fail(const std::string& where, const std::string& reason,
                         const std::function<void()>& close_links);
  // This rank stops on an error of its own.
  void abort(const std::string& cause, const std::function<void()>& close_links);

 private:
  struct Finding {
    std::string cause;  // empty: the store does not answer
    bool mine = false;
  };
  // Sets the cause unless there is one; `wait_for_others` gives it the ranks that have not noticed
  // the failure within a second.
  Finding settle(const std::string& cause, bool wait_for_others) const;
  // Rank 0 takes the store with it: it stays until the others have read the cause, at most two
  // seconds.
  void let_others_read() const;
  void check_in(double deadline_s);

  const int rank_, size_;
  const std::string address_;  // "host:port"
  const bool store_is_served_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::string verdict_;  // the first cause, once there is a failure
  bool mine_ = false;    // and whether it was this rank
};

// LibTorch's message without its backtrace, Gloo's without its source line.
std::string plain_words(const std::exception& error);

// The address from which this machine reaches host:port: Gloo listens there. (Its own default is
// what the host's name resolves to, which is often nothing.) Throws DistributedError.
std::string address_towards(const std::string& host, int port);

// A store served at this port, or, if 0, at a free one, which it is then set to.
std::shared_ptr<void> serve_store(int& port);

}  // namespace contexture::parallel::internal
