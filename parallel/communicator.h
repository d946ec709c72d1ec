// How ranks talk: one narrow interface over c10d (Gloo for tensors of the CPU, NCCL for those of a
// GPU), over threads of one process (tests, several stages on one device), and over nothing at all
// (dry runs that only count).
//
// Every operation has a deadline. One that passes it, or whose peer is gone, throws
// DistributedError: "rank 3, peer 1, send #17 of group dp in phase forward: ..." (ranks of the
// world; #17 counts this operation on this group). After that this rank's world and all its
// subgroups are dead and every call throws; their links are closed, so that ranks that wait for
// this one fail, too. Collectives must be called by all ranks of the group in the same order, with
// tensors of the same size and dtype. Tensors are contiguous; dtypes: bf16, fp16, fp32, fp64,
// int64, int32, uint8; reduce_scatter sums bf16 and fp16 in fp32. Empty tensors move nothing. A
// communicator belongs to one thread at a time; destroying it while an exception is under way
// aborts.
//
// Tensors of a GPU: an operation comes after what the thread's current stream was given before it
// was started, and wait() lets that stream wait for it, not the thread. So a deadline may pass
// unseen while the thread goes on: then, or at the latest at the next operation of any group of
// this rank, all the rest is as above. What was computed in between is worth nothing.
#pragma once
#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"

namespace contexture::parallel {

// Thrown by the ranks that were not the first to fail; what() ends with the first cause. Where the
// causes of all ranks end up on one screen, print what() of the one DistributedError and only
// brief() of these.
class PeerFailure : public DistributedError {
 public:
  PeerFailure(const std::string& brief, const std::string& first_cause)
      : DistributedError(brief + ". First cause: " + first_cause), brief_(brief) {}
  const std::string& brief() const noexcept { return brief_; }

 private:
  std::string brief_;
};

// A refusal that every rank throws alike: print it where speaks() is true (on rank 0).
class AgreedError : public UsageError {
 public:
  AgreedError(const std::string& message, int rank) : UsageError(message), speaks_(rank == 0) {}
  bool speaks() const noexcept { return speaks_; }

 private:
  bool speaks_;
};

// An operation that has been started. Its tensors must stay untouched until wait() returns.
// Destruction without wait() is allowed: the operation then goes on by itself and keeps its tensors
// alive, a message over Gloo until the next barrier(). wait() of a send returns when the tensor may
// be reused, which over Gloo is after the peer has called receive().
class Pending {
 public:
  class Work {
   public:
    virtual ~Work() = default;
    virtual void wait() = 0;  // throws DistributedError; called at most once
  };
  Pending() = default;  // nothing to wait for
  explicit Pending(std::shared_ptr<Work> work) : work_(std::move(work)) {}
  void wait() {
    if (const auto work = std::move(work_)) work->wait();
  }

 private:
  std::shared_ptr<Work> work_;
};

// What went through a communicator, per operation name ("all_reduce", "send", ...). Bytes are
// payload handed in by this rank: the whole tensor for all_reduce and broadcast, the input of
// reduce_scatter, all_gather and all_to_all, the tensor sent.
struct Traffic {
  int64_t calls = 0;
  int64_t messages = 0;  // point-to-point only
  int64_t bytes = 0;
};

enum class ReduceOp { kSum, kMax, kMin };

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // within the group
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;  // "world", "dp", ...

  virtual Pending all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) = 0;
  // input [size * n], output [n]: the sum of everyone's chunk number rank().
  virtual Pending reduce_scatter(const at::Tensor& output, const at::Tensor& input) = 0;
  // input [n], output [size * n].
  virtual Pending all_gather(const at::Tensor& output, const at::Tensor& input) = 0;
  virtual Pending broadcast(const at::Tensor& tensor, int root) = 0;
  // input and output [size * n]: chunk i of input goes to rank i.
  virtual Pending all_to_all(const at::Tensor& output, const at::Tensor& input) = 0;
  // Messages from one rank to another are matched by tag (0 <= tag < 2^30), or, where has_tags() is
  // false (NCCL), by order: then the receiver must ask for them in the order in which they are
  // sent.
  virtual Pending send(const at::Tensor& tensor, int peer, int tag) = 0;
  virtual Pending receive(const at::Tensor& tensor, int peer, int tag) = 0;
  virtual bool has_tags(at::Device) const { return true; }
  // Makes the connections that messages of such tensors between these pairs (sender, receiver) will
  // take. NCCL makes them with the first message, and both ends then wait for each other, whatever
  // else they have to do. Every rank calls it with the same pairs.
  virtual void open_links(const std::set<std::pair<int, int>>&, at::Device) {}
  virtual void barrier() = 0;

  // A group of some of this group's ranks (ascending, distinct). Every rank of this group calls it,
  // in the same order; those not in `ranks` get null.
  virtual std::shared_ptr<Communicator> subgroup(const std::vector<int>& ranks,
                                                 const std::string& name) = 0;

  // Deadline of operations started from now on, here and in every subgroup. Long for the first
  // step, short after. It runs from wait(); for a collective over c10d, and for every operation of
  // a GPU's, from the start.
  virtual void set_deadline(double seconds) = 0;
  // For errors: what the program is doing ("forward", "optimizer", ...). Shared with subgroups.
  virtual void set_phase(const std::string& phase) = 0;
  // Makes every rank's pending and future operations fail, with this as first cause. Used by a rank
  // that stops on an error of its own, so that nobody waits for it.
  virtual void abort(const std::string& cause) = 0;

  virtual std::map<std::string, Traffic> traffic() const = 0;  // by operation, since the start
  virtual std::map<int, Traffic> links()
      const = 0;  // sent point-to-point, by peer's rank in this group
};

// Ranks as threads of this process: element r is rank r's communicator. For tests and for several
// stages on one device, where each thread may have a stream of its own. Sums are taken in rank
// order. by_order: without tags, as NCCL; a message that is then taken for another fails.
std::vector<std::shared_ptr<Communicator>> make_thread_communicators(int size,
                                                                     double deadline_s = 60.0,
                                                                     bool by_order = false);

// Moves nothing: outputs keep what they hold; counts traffic. Takes meta tensors. For dry runs. (A
// group of one rank copies input to output in every kind of communicator.)
std::shared_ptr<Communicator> make_recording_communicator(int rank, int size);

// Where a process stands among all, and how it meets the others (parallel/launch_env.h finds it
// out).
struct Rendezvous {
  int rank = 0, size = 1;
  std::string host = "127.0.0.1";
  int port = 0;
  bool store_is_served = false;  // someone else (a RendezvousServer, torchrun's agent) serves the
                                 // store at host:port, not rank 0
  std::string session;    // tells this start from others that use the same store: torchrun's run id
                          // and restart count
  std::string interface;  // network interface for Gloo; empty: the one that reaches host
};

// Serves the store from a process that is no rank, so that it outlives every rank: then each of
// them learns the first cause, even of rank 0's death. Without one rank 0 serves the store, and
// after a failure stays for up to two seconds to answer.
class RendezvousServer {
 public:
  explicit RendezvousServer(int port = 0);  // 0: a free one. UserError when the port is taken
  int port() const { return port_; }

 private:
  std::shared_ptr<void> store_;
  int port_ = 0;
};

// Joins all processes over c10d: a TCPStore at host:port, then Gloo. Backend "gloo": for tensors of
// the CPU alone; "nccl": tensors of a GPU go over NCCL, which each group sets up when it meets the
// first; in a group of one, too. Throws DistributedError naming host, port, and who is missing
// after deadline_s; UserError when the port is taken by something else; AgreedError when ranks
// disagree on the size or two claim one rank.
std::shared_ptr<Communicator> connect(const Rendezvous& rendezvous, const std::string& backend,
                                      double deadline_s);

}  // namespace contexture::parallel
