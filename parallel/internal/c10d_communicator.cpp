// The communicator over PyTorch's c10d. The only source that sees Gloo's and NCCL's headers.
//
// Gloo: collectives run on threads of the process group, messages on the device's event loop.
// c10d's Gloo reduces and scatters by reducing everything everywhere; here it is all_to_all and a
// sum, which moves half as much, adds in rank order and adds bf16 and fp16 in fp32. Everything else
// c10d's Gloo has for all our dtypes.
//
// NCCL, for tensors of a GPU: wait() makes the current stream wait, not the host, so no deadline
// can pass there. c10d's watchdog looks after it: it ends an operation that is late by the deadline
// of its start, closes the group's links, so that the stream goes on, and leaves a mark that
// require_alive() finds. Messages take a process group for each direction: NCCL does what a pair of
// ranks does on one communicator one after another, and a receive that waits must not hold up what
// the other side waits for.
#define USE_C10D_GLOO
#ifdef CONTEXTURE_CUDA
#define USE_C10D_NCCL
#endif
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#ifdef CONTEXTURE_CUDA
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <list>
#include <numeric>

#include "parallel/internal/c10d_world.h"
#include "parallel/internal/communicator_base.h"

namespace contexture::parallel {
namespace {

using internal::Call;
using internal::RankState;
using internal::World;
using std::chrono::milliseconds;
using Backend = c10::intrusive_ptr<c10d::Backend>;
using BackendWork = c10::intrusive_ptr<c10d::Work>;

constexpr int kClosingTag = 1 << 30;  // beyond every tag of a message

milliseconds to_ms(double s) {
  return milliseconds(std::max<int64_t>(1, static_cast<int64_t>(s * 1000)));
}

// This rank's end of everything: all groups' backends.
struct Links {
  std::shared_ptr<World> world;  // null for one rank over Gloo, which needs nobody
  std::string lone_cause;        // of its abort()
  bool has_nccl = false;
  std::shared_ptr<gloo::transport::Device> device;  // one event loop for all groups
  std::list<Backend> gloo, nccl;

  // Gloo closes all links of a group when a receive is late: so receive what nobody sends, and be
  // late at once.
  void close() {
    for (const Backend& group : gloo) {
      try {
        std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
        group->recv(nothing, group->getRank() == 0 ? 1 : 0, kClosingTag)->wait(milliseconds(1));
      } catch (const std::exception&) {  // as wanted
      }
    }
    for (const Backend& group : nccl) {
      try {
        group->abort();
      } catch (const std::exception&) {  // it is broken already
      }
    }
  }

  // What the watchdog has found out about a group of NCCL's since; "" if nothing.
  std::string found() const {
    for (const Backend& group : nccl) {
      const c10d::ErrorType error = group->getError();
      if (error == c10d::ErrorType::TIMEOUT) return "an operation between GPUs timed out";
      if (error != c10d::ErrorType::SUCCESS)
        return "an operation between GPUs failed (NCCL_DEBUG=INFO tells more)";
    }
    return "";
  }

  [[noreturn]] void fail(const Call& call, const std::exception& error, double deadline_s) {
    std::string reason = internal::plain_words(error);
    for (const char* words : {"timed out", "Timed out", "Application timeout"}) {
      if (reason.find(words) != std::string::npos)
        reason = concat("the deadline of ", deadline_s, " s passed");
    }
    world->fail(call.where, reason, [this] { close(); });
  }
};

struct Started {  // an operation of a backend
  BackendWork work;
  std::vector<at::Tensor> tensors;  // in use until it ends
  bool in_stream = false;           // NCCL's
  bool wait(milliseconds deadline) const { return in_stream ? work->wait() : work->wait(deadline); }
};
using Abandoned = std::list<Started>;

class C10dWork final : public Pending::Work {
 public:
  C10dWork(std::shared_ptr<Links> links, std::shared_ptr<Abandoned> abandoned, Call call,
           double deadline_s, Started started, std::function<void()> finish)
      : links_(std::move(links)),
        abandoned_(std::move(abandoned)),
        call_(std::move(call)),
        deadline_s_(deadline_s),
        started_(std::move(started)),
        finish_(std::move(finish)) {}
  ~C10dWork() override {
    if (started_.work) abandoned_->push_back(std::move(started_));
  }
  void wait() override {
    const Started started = std::move(started_);
    started_.work.reset();
    try {
      if (!started.wait(to_ms(deadline_s_))) throw std::runtime_error("the operation was aborted");
    } catch (const std::exception& error) {
      links_->fail(call_, error, deadline_s_);
    }
    if (finish_) finish_();
  }

 private:
  const std::shared_ptr<Links> links_;
  const std::shared_ptr<Abandoned> abandoned_;
  const Call call_;
  const double deadline_s_;
  Started started_;
  const std::function<void()> finish_;
};

class C10dCommunicator final : public internal::CommunicatorBase {
 public:
  C10dCommunicator(int rank, std::vector<int> world_ranks, const std::string& name,
                   std::shared_ptr<RankState> state, std::shared_ptr<Links> links,
                   const std::string& prefix)
      : CommunicatorBase(rank, std::move(world_ranks), name, std::move(state)),
        links_(std::move(links)),
        prefix_(prefix) {
    if (size() == 1) return;
    const Call call{"connect", 1, -1, concat("rank ", world_rank(), ", connecting group ", name)};
    gloo_ = connected(call, links_->gloo, [this] {
      auto options = c10d::ProcessGroupGloo::Options::create(timeout());
      options->devices.push_back(links_->device);
      const auto store = c10::make_intrusive<c10d::PrefixStore>(prefix_, links_->world->store());
      return c10::make_intrusive<c10d::ProcessGroupGloo>(store, this->rank(), size(), options);
    });
  }

  ~C10dCommunicator() override {
    if (std::uncaught_exceptions() > exceptions_ && (gloo_ || collective_))
      abort("stopped on an error of its own");
    try {
      finish_abandoned();
    } catch (const std::exception&) {  // a destructor has nobody to tell
    }
    links_->gloo.remove(gloo_);
    for (const Backend& each : {collective_, up_, down_}) links_->nccl.remove(each);
  }

  // Until all are through, some read addresses from the store, which may go with rank 0.
  void wait_until_connected() {
    if (gloo_)
      run_barrier({"barrier", 0, -1, concat("rank ", world_rank(), ", connecting group ", name())});
  }

  bool has_tags(at::Device device) const override { return device.is_cpu(); }

  void open_links(const std::set<std::pair<int, int>>& pairs, at::Device device) override {
    if (device.is_cpu()) return;
    // All in the same order, one after another: so whoever waits here waits for one that is coming.
    const at::Tensor nothing = at::zeros({1}, at::TensorOptions().dtype(at::kByte).device(device));
    for (const auto& [from, to] : pairs) {
      if (rank() != from && rank() != to) continue;
      const Call call{"connect", 0, rank() == from ? to : from,
                      concat("rank ", world_rank(), ", opening the link of group ", name(),
                             " from rank ", world_ranks()[from], " to rank ", world_ranks()[to])};
      (rank() == from ? start_send(call, nothing, 0) : start_receive(call, nothing, 0)).wait();
    }
  }

  void abort(const std::string& cause) override {
    if (links_->world) {
      links_->world->abort(cause, [this] { links_->close(); });
    } else {
      links_->lone_cause = cause;
    }
  }

 protected:
  void require_alive(const Call& call) override {
    if (links_->world) {
      links_->world->require_alive(call.where);
      if (const std::string found = links_->found(); !found.empty())
        links_->fail(call, std::runtime_error(found), state_->deadline_s);
    }
    CONTEXTURE_REQUIRE_AS(DistributedError, links_->lone_cause.empty(), call.where,
                          ": this rank has failed before: ", links_->lone_cause);
  }

  bool moves_alone(const at::Tensor& tensor) const override {
    return links_->has_nccl && tensor.is_cuda();
  }

  Pending start_all_reduce(Call call, const at::Tensor& tensor, ReduceOp op) override {
    c10d::AllreduceOptions options;
    options.reduceOp = op == ReduceOp::kSum   ? c10d::ReduceOp::SUM
                       : op == ReduceOp::kMax ? c10d::ReduceOp::MAX
                                              : c10d::ReduceOp::MIN;
    options.timeout = timeout();
    return start(std::move(call), {tensor}, [&](c10d::Backend& b, std::vector<at::Tensor>& t) {
      return b.allreduce(t, options);
    });
  }
  Pending start_reduce_scatter(Call call, const at::Tensor& output,
                               const at::Tensor& input) override {
    // NCCL would sum bf16 and fp16 in these.
    if (input.device().is_cpu() || input.element_size() < 4) {
      const at::Tensor chunks = at::empty_like(input).view({size(), -1});
      return start_all_to_all(std::move(call), chunks, input, [chunks, output] {
        at::NoGradGuard no_grad;
        output.view(-1).copy_(internal::reduce_in_order(chunks.unbind(), ReduceOp::kSum));
      });
    }
    c10d::ReduceScatterOptions options;
    options.timeout = timeout();
    return start(std::move(call), {output, input},
                 [&](c10d::Backend& b, std::vector<at::Tensor>& t) {
                   return b._reduce_scatter_base(t[0], t[1], options);
                 });
  }
  Pending start_all_gather(Call call, const at::Tensor& output, const at::Tensor& input) override {
    c10d::AllgatherOptions options;
    options.timeout = timeout();
    return start(std::move(call), {output.view(-1), input.view(-1)},
                 [&](c10d::Backend& b, std::vector<at::Tensor>& t) {
                   return b._allgather_base(t[0], t[1], options);
                 });
  }
  Pending start_broadcast(Call call, const at::Tensor& tensor, int root) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = timeout();
    return start(std::move(call), {tensor}, [&](c10d::Backend& b, std::vector<at::Tensor>& t) {
      return b.broadcast(t, options);
    });
  }
  Pending start_all_to_all(Call call, const at::Tensor& output, const at::Tensor& input) override {
    return start_all_to_all(std::move(call), output, input, {});
  }
  Pending start_send(Call call, const at::Tensor& tensor, int tag) override {
    const int peer = call.peer;
    return start(
        std::move(call), {tensor},
        [&](c10d::Backend& b, std::vector<at::Tensor>& t) { return b.send(t, peer, tag); }, {},
        peer > rank() ? Way::kUp : Way::kDown);
  }
  Pending start_receive(Call call, const at::Tensor& tensor, int tag) override {
    const int peer = call.peer;
    return start(
        std::move(call), {tensor},
        [&](c10d::Backend& b, std::vector<at::Tensor>& t) { return b.recv(t, peer, tag); }, {},
        peer < rank() ? Way::kUp : Way::kDown);
  }
  void run_barrier(Call call) override {
    try {
      finish_abandoned();
    } catch (const std::exception& error) {
      links_->fail(call, error, state_->deadline_s);
    }
    c10d::BarrierOptions options;
    options.timeout = timeout();
    start(std::move(call), {}, [&](c10d::Backend& b, std::vector<at::Tensor>&) {
      return b.barrier(options);
    }).wait();
  }

  void post_on_board(Call call, const std::string& name, const std::string& text) override {
    if (links_->world && !links_->world->post(name, text, state_->deadline_s)) board_failed(call);
  }
  std::string read_from_board(Call call, const std::string& name) override {
    if (!links_->world) return "";
    const auto text = links_->world->read(name, state_->deadline_s);
    if (!text) board_failed(call);
    return *text;
  }

  std::shared_ptr<Communicator> make_subgroup(Call, const std::vector<int>& ranks,
                                              const std::string& name) override {
    const std::string prefix = concat(prefix_, "/", num_subgroups_++);
    const auto me = std::find(ranks.begin(), ranks.end(), rank());
    if (me == ranks.end()) return nullptr;
    auto group = std::make_shared<C10dCommunicator>(static_cast<int>(me - ranks.begin()),
                                                    world_ranks_of(ranks), name, state_, links_,
                                                    concat(prefix, "/", ranks[0]));
    group->wait_until_connected();
    return group;
  }

 private:
  [[noreturn]] void board_failed(const Call& call) const {
    links_->fail(call, std::runtime_error("another rank has failed, or the store does not answer"),
                 state_->deadline_s);
  }

  milliseconds timeout() const { return to_ms(state_->deadline_s); }

  template <typename Make>
  Backend connected(const Call& call, std::list<Backend>& list, const Make& make) const {
    try {
      list.push_back(make());
    } catch (const std::exception& error) {
      links_->fail(call, error, state_->deadline_s);
    }
    return list.back();
  }

  // What an operation takes between GPUs: to a higher rank, to a lower one, or everybody with
  // everybody.
  enum class Way { kCollective, kUp, kDown };

  c10d::Backend& backend_for(const Call& call, const std::vector<at::Tensor>& tensors,
                             [[maybe_unused]] Way way) {
    const at::Device device = tensors.empty() ? at::Device(at::kCPU) : tensors.front().device();
    if (device.is_cpu()) return *gloo_;
    CONTEXTURE_INVARIANT(device.is_cuda() && links_->has_nccl, call.where,
                         ": no transport for tensors on ", device, " (backend ",
                         links_->has_nccl ? "nccl)" : "gloo)");
#ifdef CONTEXTURE_CUDA
    Backend& group = way == Way::kCollective ? collective_ : way == Way::kUp ? up_ : down_;
    if (!group) {
      group = connected(call, links_->nccl, [&] {
        auto options = c10d::ProcessGroupNCCL::Options::create();
        options->timeout = timeout();
        const char* name = way == Way::kCollective ? "/collective"
                           : way == Way::kUp       ? "/up"
                                                   : "/down";
        const auto store =
            c10::make_intrusive<c10d::PrefixStore>(prefix_ + name, links_->world->store());
        return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank(), size(), options);
      });
    }
    group->setTimeout(timeout());  // of messages, which have no options
    return *group;
#else
    CONTEXTURE_INVARIANT(false, "NCCL in a build without it");
#endif
  }

  Pending start_all_to_all(Call call, const at::Tensor& output, const at::Tensor& input,
                           std::function<void()> finish) {
    c10d::AllToAllOptions options;
    options.timeout = timeout();
    std::vector<int64_t> even;  // empty: equal chunks
    return start(
        std::move(call), {output.view({size(), -1}), input.view({size(), -1})},
        [&](c10d::Backend& b, std::vector<at::Tensor>& t) {
          return b.alltoall_base(t[0], t[1], even, even, options);
        },
        std::move(finish));
  }

  template <typename Operation>
  Pending start(Call call, std::vector<at::Tensor> tensors, const Operation& operation,
                std::function<void()> finish = {}, Way way = Way::kCollective) {
    for (at::Tensor& tensor : tensors) tensor = tensor.detach();
    c10d::Backend& backend = backend_for(call, tensors, way);
    const bool in_stream = &backend != gloo_.get();
    BackendWork work;
    try {
      work = operation(backend, tensors);
    } catch (const std::exception& error) {
      links_->fail(call, error, state_->deadline_s);
    }
    // Finished collectives that nobody waited for; of a message Gloo can't say without waiting.
    std::erase_if(*abandoned_, [](const Started& started) { return started.work->isCompleted(); });
    return Pending(std::make_shared<C10dWork>(
        links_, abandoned_, std::move(call), state_->deadline_s,
        Started{std::move(work), std::move(tensors), in_stream}, std::move(finish)));
  }

  void finish_abandoned() {
    while (!abandoned_->empty()) {
      const Started started = std::move(abandoned_->front());
      abandoned_->pop_front();
      started.wait(timeout());
    }
  }

  const std::shared_ptr<Links> links_;
  const std::string prefix_;
  const std::shared_ptr<Abandoned> abandoned_ = std::make_shared<Abandoned>();
  const int exceptions_ = std::uncaught_exceptions();
  Backend gloo_;                    // null in a group of one
  Backend collective_, up_, down_;  // NCCL's, once they were needed
  int64_t num_subgroups_ = 0;
};

std::shared_ptr<gloo::transport::Device> open_device(const Rendezvous& at) {
  try {
    return at.interface.empty() ? c10d::ProcessGroupGloo::createDeviceForHostname(
                                      internal::address_towards(at.host, at.port))
                                : c10d::ProcessGroupGloo::createDeviceForInterface(at.interface);
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    throw DistributedError(concat(
        "Gloo cannot use ",
        at.interface.empty() ? "the interface towards " + at.host : "interface " + at.interface,
        ": ", internal::plain_words(error)));
  }
}

}  // namespace

RendezvousServer::RendezvousServer(int port) : port_(port) {
  store_ = internal::serve_store(port_);
}

std::shared_ptr<Communicator> connect(const Rendezvous& at, const std::string& backend,
                                      double deadline_s) {
  CONTEXTURE_USAGE_REQUIRE(at.size > 0 && at.rank >= 0 && at.rank < at.size, "rank ", at.rank,
                           " of ", at.size, " ranks: must be 0 to ", at.size - 1);
#ifdef CONTEXTURE_CUDA
  CONTEXTURE_USAGE_REQUIRE(backend == "gloo" || backend == "nccl", "no backend '", backend,
                           "': gloo or nccl");
#else
  CONTEXTURE_USAGE_REQUIRE(backend == "gloo", "no backend '", backend, "' in this build: gloo",
                           backend == "nccl" ? "; nccl needs -DCONTEXTURE_CUDA=ON" : "");
#endif
  const auto state = std::make_shared<RankState>();
  state->phase = "connect";
  state->deadline_s = deadline_s;
  const auto links = std::make_shared<Links>();
  links->has_nccl = backend == "nccl";
  // Clean up, and let us tell: c10d's own way is to end the process.
  if (links->has_nccl) ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/0);
  std::vector<int> all(static_cast<size_t>(at.size));
  std::iota(all.begin(), all.end(), 0);
  if (at.size > 1 || backend != "gloo") {
    links->world = std::make_shared<World>(at, deadline_s);
    if (at.size > 1) links->device = open_device(at);
  }
  const auto world =
      std::make_shared<C10dCommunicator>(at.rank, std::move(all), "world", state, links, "world");
  world->wait_until_connected();
  return world;
}

}  // namespace contexture::parallel
