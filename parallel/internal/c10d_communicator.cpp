// The communicator over PyTorch's c10d. The only source that sees Gloo's and NCCL's headers.
//
// Gloo: collectives run on threads of the process group, messages on the device's event loop. c10d's Gloo reduces and
// scatters by reducing everything everywhere; here it is all_to_all and a sum, which moves half as much, adds in rank order
// and adds bf16 and fp16 in fp32. Everything else c10d's Gloo has for all our dtypes.
//
// NCCL: wait() makes the current stream wait, not the host, so a deadline can't pass there. c10d's watchdog looks after it
// (TORCH_NCCL_ASYNC_ERROR_HANDLING): it ends a process whose operation is late by the deadline that the group was made with.
#define USE_C10D_GLOO
#ifdef CONTEXTURE_CUDA
#define USE_C10D_NCCL
#endif
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#ifdef CONTEXTURE_CUDA
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
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

milliseconds to_ms(double s) { return milliseconds(std::max<int64_t>(1, static_cast<int64_t>(s * 1000))); }

// This rank's end of everything: all groups' backends, and work that nobody waits for.
struct Links {
  std::shared_ptr<World> world;  // null for one rank over Gloo, which needs nobody
  std::string lone_cause;        // of its abort()
  std::string backend;
  std::shared_ptr<gloo::transport::Device> device;  // one event loop for all groups
  std::list<Backend> backends;

  // Gloo closes all links of a group when a receive is late: so receive what nobody sends, and be late at once.
  void close() {
    for (const Backend& group : backends) {
      try {
        if (backend != "gloo") {
          group->abort();
          continue;
        }
        std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
        group->recv(nothing, group->getRank() == 0 ? 1 : 0, kClosingTag)->wait(milliseconds(1));
      } catch (const std::exception&) {  // as wanted
      }
    }
  }

  [[noreturn]] void fail(const Call& call, const std::exception& error, double deadline_s) {
    std::string reason = internal::plain_words(error);
    for (const char* words : {"timed out", "Timed out", "Application timeout"}) {
      if (reason.find(words) != std::string::npos) reason = concat("the deadline of ", deadline_s, " s passed");
    }
    world->fail(call.where, reason, [this] { close(); });
  }
};

struct Started {  // an operation of the backend
  BackendWork work;
  std::vector<at::Tensor> tensors;  // in use until it ends
};
using Abandoned = std::list<Started>;

class C10dWork final : public Pending::Work {
 public:
  C10dWork(std::shared_ptr<Links> links, std::shared_ptr<Abandoned> abandoned, Call call, double deadline_s, Started started,
           std::function<void()> finish)
      : links_(std::move(links)), abandoned_(std::move(abandoned)), call_(std::move(call)), deadline_s_(deadline_s),
        started_(std::move(started)), finish_(std::move(finish)) {}
  ~C10dWork() override {
    if (started_.work) abandoned_->push_back(std::move(started_));
  }
  void wait() override {
    const Started started = std::move(started_);
    started_.work.reset();
    try {
      if (!started.work->wait(to_ms(deadline_s_))) throw std::runtime_error("the operation was aborted");
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
  C10dCommunicator(int rank, std::vector<int> world_ranks, const std::string& name, std::shared_ptr<RankState> state,
                   std::shared_ptr<Links> links, const std::string& prefix)
      : CommunicatorBase(rank, std::move(world_ranks), name, std::move(state), links->backend == "gloo"), links_(std::move(links)),
        prefix_(prefix) {
    if (size() == 1 && links_->backend == "gloo") return;
    try {
      backend_ = make_backend();
    } catch (const std::exception& error) {
      const Call call{"connect", 1, -1, concat("rank ", world_rank(), ", connecting group ", name)};
      links_->fail(call, error, state_->deadline_s);
    }
    links_->backends.push_back(backend_);
  }

  ~C10dCommunicator() override {
    if (!backend_) return;
    if (std::uncaught_exceptions() > exceptions_) abort("stopped on an error of its own");
    try {
      finish_abandoned();
    } catch (const std::exception&) {  // a destructor has nobody to tell
    }
    links_->backends.remove(backend_);
  }

  // Until all are through, some read addresses from the store, which may go with rank 0.
  void wait_until_connected() {
    if (backend_) run_barrier({"barrier", 0, -1, concat("rank ", world_rank(), ", connecting group ", name())});
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
    if (links_->world) links_->world->require_alive(call.where);
    CONTEXTURE_REQUIRE_AS(DistributedError, links_->lone_cause.empty(), call.where, ": this rank has failed before: ", links_->lone_cause);
  }

  Pending start_all_reduce(Call call, const at::Tensor& tensor, ReduceOp op) override {
    c10d::AllreduceOptions options;
    options.reduceOp = op == ReduceOp::kSum ? c10d::ReduceOp::SUM : op == ReduceOp::kMax ? c10d::ReduceOp::MAX : c10d::ReduceOp::MIN;
    options.timeout = timeout();
    return start(std::move(call), {tensor}, [&](std::vector<at::Tensor>& t) { return backend_->allreduce(t, options); });
  }
  Pending start_reduce_scatter(Call call, const at::Tensor& output, const at::Tensor& input) override {
    if (links_->backend == "gloo") {
      const at::Tensor chunks = at::empty_like(input).view({size(), -1});
      return start_all_to_all(std::move(call), chunks, input, [chunks, output] {
        at::NoGradGuard no_grad;
        output.view(-1).copy_(internal::reduce_in_order(chunks.unbind(), ReduceOp::kSum));
      });
    }
    c10d::ReduceScatterOptions options;
    options.timeout = timeout();
    return start(std::move(call), {output, input},
                 [&](std::vector<at::Tensor>& t) { return backend_->_reduce_scatter_base(t[0], t[1], options); });
  }
  Pending start_all_gather(Call call, const at::Tensor& output, const at::Tensor& input) override {
    c10d::AllgatherOptions options;
    options.timeout = timeout();
    return start(std::move(call), {output.view(-1), input.view(-1)},
                 [&](std::vector<at::Tensor>& t) { return backend_->_allgather_base(t[0], t[1], options); });
  }
  Pending start_broadcast(Call call, const at::Tensor& tensor, int root) override {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = timeout();
    return start(std::move(call), {tensor}, [&](std::vector<at::Tensor>& t) { return backend_->broadcast(t, options); });
  }
  Pending start_all_to_all(Call call, const at::Tensor& output, const at::Tensor& input) override {
    return start_all_to_all(std::move(call), output, input, {});
  }
  Pending start_send(Call call, const at::Tensor& tensor, int tag) override {
    return start(std::move(call), {tensor}, [&](std::vector<at::Tensor>& t) { return backend_->send(t, call.peer, tag); });
  }
  Pending start_receive(Call call, const at::Tensor& tensor, int tag) override {
    return start(std::move(call), {tensor}, [&](std::vector<at::Tensor>& t) { return backend_->recv(t, call.peer, tag); });
  }
  void run_barrier(Call call) override {
    try {
      finish_abandoned();
    } catch (const std::exception& error) {
      links_->fail(call, error, state_->deadline_s);
    }
    c10d::BarrierOptions options;
    options.timeout = timeout();
    start(std::move(call), {}, [&](std::vector<at::Tensor>&) { return backend_->barrier(options); }).wait();
  }

  std::shared_ptr<Communicator> make_subgroup(Call, const std::vector<int>& ranks, const std::string& name) override {
    const std::string prefix = concat(prefix_, "/", num_subgroups_++);
    const auto me = std::find(ranks.begin(), ranks.end(), rank());
    if (me == ranks.end()) return nullptr;
    auto group = std::make_shared<C10dCommunicator>(static_cast<int>(me - ranks.begin()), world_ranks_of(ranks), name, state_, links_,
                                                    concat(prefix, "/", ranks[0]));
    group->wait_until_connected();
    return group;
  }

 private:
  milliseconds timeout() const { return to_ms(state_->deadline_s); }

  Backend make_backend() const {
    const auto store = c10::make_intrusive<c10d::PrefixStore>(prefix_, links_->world->store());
#ifdef CONTEXTURE_CUDA
    if (links_->backend == "nccl") {
      auto options = c10d::ProcessGroupNCCL::Options::create();
      options->timeout = timeout();
      return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank(), size(), options);
    }
#endif
    auto options = c10d::ProcessGroupGloo::Options::create(timeout());
    options->devices.push_back(links_->device);
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank(), size(), options);
  }

  Pending start_all_to_all(Call call, const at::Tensor& output, const at::Tensor& input, std::function<void()> finish) {
    c10d::AllToAllOptions options;
    options.timeout = timeout();
    std::vector<int64_t> even;  // empty: equal chunks
    return start(std::move(call), {output.view({size(), -1}), input.view({size(), -1})},
                 [&](std::vector<at::Tensor>& t) { return backend_->alltoall_base(t[0], t[1], even, even, options); }, std::move(finish));
  }

  template <typename Operation>
  Pending start(Call call, std::vector<at::Tensor> tensors, const Operation& operation, std::function<void()> finish = {}) {
    for (at::Tensor& tensor : tensors) tensor = tensor.detach();
    BackendWork work;
    try {
      work = operation(tensors);
    } catch (const std::exception& error) {
      links_->fail(call, error, state_->deadline_s);
    }
    // Finished collectives that nobody waited for; of a message Gloo can't say without waiting.
    std::erase_if(*abandoned_, [](const Started& started) { return started.work->isCompleted(); });
    return Pending(std::make_shared<C10dWork>(links_, abandoned_, std::move(call), state_->deadline_s, Started{std::move(work), std::move(tensors)},
                                              std::move(finish)));
  }

  void finish_abandoned() {
    while (!abandoned_->empty()) {
      const Started started = std::move(abandoned_->front());
      abandoned_->pop_front();
      started.work->wait(timeout());
    }
  }

  const std::shared_ptr<Links> links_;
  const std::string prefix_;
  const std::shared_ptr<Abandoned> abandoned_ = std::make_shared<Abandoned>();
  const int exceptions_ = std::uncaught_exceptions();
  Backend backend_;
  int64_t num_subgroups_ = 0;
};

// The address from which this machine reaches host:port: Gloo listens there. (Its own default is what the host's name
// resolves to, which is often nothing.)
std::string address_towards(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  const int result = getaddrinfo(host.c_str(), concat(port).c_str(), &hints, &found);
  CONTEXTURE_REQUIRE_AS(DistributedError, result == 0, "the rendezvous host ", host, " has no address: ", gai_strerror(result));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int fd = ::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    char name[NI_MAXHOST];
    const bool ok = ::connect(fd, each->ai_addr, each->ai_addrlen) == 0 &&  // sends nothing
                    ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
                    ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, name, sizeof name, nullptr, 0, NI_NUMERICHOST) == 0;
    ::close(fd);
    if (ok) return name;
  }
  throw DistributedError(concat("no network interface of this machine reaches the rendezvous host ", host, "."));
}

std::shared_ptr<gloo::transport::Device> open_device(const Rendezvous& at) {
  try {
    return at.interface.empty() ? c10d::ProcessGroupGloo::createDeviceForHostname(address_towards(at.host, at.port))
                                : c10d::ProcessGroupGloo::createDeviceForInterface(at.interface);
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    throw DistributedError(concat("Gloo cannot use ", at.interface.empty() ? "the interface towards " + at.host : "interface " + at.interface, ": ",
                                  internal::plain_words(error)));
  }
}

}  // namespace

RendezvousServer::RendezvousServer(int port) : port_(port) { store_ = internal::serve_store(port_); }

std::shared_ptr<Communicator> connect(const Rendezvous& at, const std::string& backend, double deadline_s) {
  CONTEXTURE_USAGE_REQUIRE(at.size > 0 && at.rank >= 0 && at.rank < at.size, "rank ", at.rank, " of ", at.size, " ranks: must be 0 to ",
                           at.size - 1);
#ifdef CONTEXTURE_CUDA
  CONTEXTURE_USAGE_REQUIRE(backend == "gloo" || backend == "nccl", "no backend '", backend, "': gloo or nccl");
#else
  CONTEXTURE_USAGE_REQUIRE(backend == "gloo", "no backend '", backend, "' in this build: gloo", backend == "nccl" ? "; nccl needs -DCONTEXTURE_CUDA=ON" : "");
#endif
  const auto state = std::make_shared<RankState>();
  state->phase = "connect";
  state->deadline_s = deadline_s;
  const auto links = std::make_shared<Links>();
  links->backend = backend;
  std::vector<int> all(static_cast<size_t>(at.size));
  std::iota(all.begin(), all.end(), 0);
  if (at.size > 1 || backend != "gloo") {
    links->world = std::make_shared<World>(at, deadline_s);
    if (backend == "gloo") links->device = open_device(at);
  }
  const auto world = std::make_shared<C10dCommunicator>(at.rank, std::move(all), "world", state, links, "world");
  world->wait_until_connected();
  return world;
}

}  // namespace contexture::parallel
