// Ranks as threads. One mutex and one condition variable serve the world and all its subgroups:
// ranks are few. The last rank to come to a collective computes it for all, outside the lock; a
// message is copied by whichever side comes second. Where tensors are a GPU's, whoever copies lets
// its stream wait for the other sides' marks, and wait() lets the waiting thread's stream wait for
// the copier's.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <numeric>
#include <tuple>

#include "parallel/device.h"
#include "parallel/internal/communicator_base.h"

namespace contexture::parallel {
namespace {

using internal::Call;
using internal::RankState;

// One collective: all ranks' tensors.
struct Meeting {
  std::string signature;  // what all must agree on
  std::vector<at::Tensor> in, out;
  std::vector<StreamMark> ready;
  std::shared_ptr<StreamMark> result = std::make_shared<StreamMark>();
  std::vector<bool> here;
  size_t arrived = 0;
  bool done = false;
};

// A receive that has been started.
struct Delivery {
  at::Tensor tensor;
  int tag;
  StreamMark ready;
  bool done = false;
  std::shared_ptr<StreamMark> copied = std::make_shared<StreamMark>();
};

struct Message {
  at::Tensor tensor;
  int tag;
  StreamMark ready;
};

struct Channel {  // one sender, receiver and (unless messages go by order) tag; at most one of the
                  // two is not empty
  std::deque<Message> arrived;
  std::deque<std::shared_ptr<Delivery>> waiting;
};

struct Group {
  explicit Group(std::vector<int> ranks) : world_ranks(std::move(ranks)) {}
  const std::vector<int> world_ranks;
  std::map<int64_t, std::shared_ptr<Meeting>> meetings;   // by how many collectives came before
  std::map<std::tuple<int, int, int>, Channel> channels;  // by sender, receiver, tag (by order: 0)
  std::map<std::pair<int64_t, std::vector<int>>, std::pair<std::shared_ptr<Group>, size_t>>
      subgroups;  // with how many took it
};

struct Hub {
  explicit Hub(bool by_order) : by_order(by_order) {}
  const bool by_order;
  std::mutex mutex;  // guards all Groups, Meetings' lists and Deliveries, the board and the failure
  std::condition_variable changed;
  int failed_rank = -1;  // the first
  std::string first_cause;
  std::map<std::string, std::string> board;
  bool failed() const { return failed_rank >= 0; }

  // All with the lock held.
  void set_failed(int world_rank, const std::string& cause) {
    if (failed()) return;
    failed_rank = world_rank;
    first_cause = cause;
    changed.notify_all();
  }
  void require_alive(int world_rank, const std::string& where) const {
    if (!failed()) return;
    if (failed_rank == world_rank)
      throw DistributedError(concat(where, ": this rank has failed before: ", first_cause));
    throw PeerFailure(concat(where, ": another rank failed"), first_cause);
  }
  [[noreturn]] void fail(int world_rank, const std::string& where, const std::string& reason) {
    require_alive(world_rank, where);
    set_failed(world_rank, concat(where, ": ", reason));
    throw DistributedError(first_cause);
  }
};

// Waits for `done`, which is read with the lock held, then lets the stream wait for `mark`; `late`
// says what is missing at the deadline.
class ThreadWork final : public Pending::Work {
 public:
  ThreadWork(std::shared_ptr<Hub> hub, int world_rank, std::string where, double deadline_s,
             std::function<bool()> done, std::shared_ptr<StreamMark> mark,
             std::function<std::string()> late)
      : hub_(std::move(hub)),
        world_rank_(world_rank),
        where_(std::move(where)),
        deadline_s_(deadline_s),
        done_(std::move(done)),
        mark_(std::move(mark)),
        late_(std::move(late)) {}
  void wait() override {
    std::unique_lock lock(hub_->mutex);
    hub_->changed.wait_for(lock, std::chrono::duration<double>(deadline_s_),
                           [&] { return hub_->failed() || done_(); });
    if (done_()) return mark_->pass();
    hub_->fail(world_rank_, where_,
               concat("the deadline of ", deadline_s_, " s passed; ", late_()));
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const int world_rank_;
  const std::string where_;
  const double deadline_s_;
  const std::function<bool()> done_;
  const std::shared_ptr<StreamMark> mark_;
  const std::function<std::string()> late_;
};

class ThreadCommunicator final : public internal::CommunicatorBase {
 public:
  ThreadCommunicator(int rank, const std::string& name, std::shared_ptr<RankState> state,
                     std::shared_ptr<Hub> hub, std::shared_ptr<Group> group)
      : CommunicatorBase(rank, group->world_ranks, name, std::move(state)),
        hub_(std::move(hub)),
        group_(std::move(group)) {}
  ~ThreadCommunicator() override {
    if (std::uncaught_exceptions() > exceptions_) abort("stopped on an error of its own");
  }

  bool has_tags(at::Device) const override { return !hub_->by_order; }

  void abort(const std::string& cause) override {
    const std::lock_guard lock(hub_->mutex);
    hub_->set_failed(world_rank(), concat("rank ", world_rank(), ": ", cause));
  }

 protected:
  void require_alive(const Call& call) override {
    const std::lock_guard lock(hub_->mutex);
    hub_->require_alive(world_rank(), call.where);
  }

  Pending start_all_reduce(Call call, const at::Tensor& tensor, ReduceOp op) override {
    return meet(std::move(call), static_cast<int>(op), tensor, tensor, [op](Meeting& all) {
      const at::Tensor result = internal::reduce_in_order(all.in, op);
      for (const at::Tensor& out : all.out) out.copy_(result);
    });
  }
  Pending start_reduce_scatter(Call call, const at::Tensor& output,
                               const at::Tensor& input) override {
    return meet(std::move(call), 0, output, input, [](Meeting& all) {
      const auto n = static_cast<int64_t>(all.in.size());
      for (int64_t r = 0; r < n; ++r) {
        std::vector<at::Tensor> chunks;
        for (const at::Tensor& in : all.in) chunks.push_back(in.view({n, -1})[r]);
        all.out[static_cast<size_t>(r)].view(-1).copy_(
            internal::reduce_in_order(chunks, ReduceOp::kSum));
      }
    });
  }
  Pending start_all_gather(Call call, const at::Tensor& output, const at::Tensor& input) override {
    return meet(std::move(call), 0, output, input, [](Meeting& all) {
      const auto n = static_cast<int64_t>(all.in.size());
      for (const at::Tensor& out : all.out) {
        for (int64_t r = 0; r < n; ++r)
          out.view({n, -1})[r].copy_(all.in[static_cast<size_t>(r)].view(-1));
      }
    });
  }
  Pending start_broadcast(Call call, const at::Tensor& tensor, int root) override {
    return meet(std::move(call), root, tensor, tensor, [root](Meeting& all) {
      const auto from = static_cast<size_t>(root);
      for (size_t r = 0; r < all.out.size(); ++r) {
        if (r != from) all.out[r].view(-1).copy_(all.in[from].view(-1));
      }
    });
  }
  Pending start_all_to_all(Call call, const at::Tensor& output, const at::Tensor& input) override {
    return meet(std::move(call), 0, output, input, [](Meeting& all) {
      const auto n = static_cast<int64_t>(all.in.size());
      for (int64_t to = 0; to < n; ++to) {
        const at::Tensor rows = all.out[static_cast<size_t>(to)].view({n, -1});
        for (int64_t from = 0; from < n; ++from)
          rows[from].copy_(all.in[static_cast<size_t>(from)].view({n, -1})[to]);
      }
    });
  }
  void run_barrier(Call call) override {
    const at::Tensor none = at::empty({0});
    meet(std::move(call), 0, none, none, [](Meeting&) {}).wait();
  }

  void post_on_board(Call, const std::string& name, const std::string& text) override {
    const std::lock_guard lock(hub_->mutex);
    hub_->board[name] = text;
  }
  std::string read_from_board(Call, const std::string& name) override {
    const std::lock_guard lock(hub_->mutex);
    const auto found = hub_->board.find(name);
    return found == hub_->board.end() ? "" : found->second;
  }

  Pending start_send(Call call, const at::Tensor& tensor, int tag) override {
    at::NoGradGuard no_grad;
    std::unique_lock lock(hub_->mutex);
    Channel& channel = channel_for(rank(), call.peer, tag);
    if (channel.waiting.empty()) {
      const at::Tensor copy = tensor.detach().clone();
      channel.arrived.push_back({copy, tag, StreamMark(copy.device())});
      return Pending();
    }
    const std::shared_ptr<Delivery> delivery = channel.waiting.front();
    channel.waiting.pop_front();
    delivery->ready.pass();
    used_here(delivery->tensor);
    deliver(call, *delivery, tensor, tag);
    *delivery->copied = StreamMark(tensor.device());
    hub_->changed.notify_all();
    return Pending();
  }
  Pending start_receive(Call call, const at::Tensor& tensor, int tag) override {
    at::NoGradGuard no_grad;
    std::unique_lock lock(hub_->mutex);
    Channel& channel = channel_for(call.peer, rank(), tag);
    const auto delivery =
        std::make_shared<Delivery>(Delivery{tensor, tag, StreamMark(tensor.device())});
    if (channel.arrived.empty()) {
      channel.waiting.push_back(delivery);
      return work(
          call, [delivery] { return delivery->done; }, delivery->copied,
          [] { return std::string("nothing was sent"); });
    }
    const Message message = std::move(channel.arrived.front());
    channel.arrived.pop_front();
    message.ready.pass();
    used_here(message.tensor);
    deliver(call, *delivery, message.tensor, message.tag);
    return Pending();
  }

  std::shared_ptr<Communicator> make_subgroup(Call, const std::vector<int>& ranks,
                                              const std::string& name) override {
    const int64_t number = num_subgroups_++;
    const auto me = std::find(ranks.begin(), ranks.end(), rank());
    if (me == ranks.end()) return nullptr;
    const std::lock_guard lock(hub_->mutex);
    const auto key = std::make_pair(number, ranks);
    auto& [group, taken] = group_->subgroups[key];
    if (!group) group = std::make_shared<Group>(world_ranks_of(ranks));
    const auto mine = group;
    if (++taken == ranks.size()) group_->subgroups.erase(key);
    return std::make_shared<ThreadCommunicator>(static_cast<int>(me - ranks.begin()), name, state_,
                                                hub_, mine);
  }

 private:
  // With the lock held.
  Channel& channel_for(int sender, int receiver, int tag) {
    return group_->channels[{sender, receiver, hub_->by_order ? 0 : tag}];
  }

  Pending work(const Call& call, std::function<bool()> done, std::shared_ptr<StreamMark> mark,
               std::function<std::string()> late) const {
    return Pending(std::make_shared<ThreadWork>(hub_, world_rank(), call.where, state_->deadline_s,
                                                std::move(done), std::move(mark), std::move(late)));
  }

  // With the lock held.
  void deliver(const Call& call, Delivery& delivery, const at::Tensor& tensor, int tag) {
    if (delivery.tag != tag)
      hub_->fail(world_rank(), call.where,
                 concat("message ", tag, " comes where ", delivery.tag, " is expected"));
    if (delivery.tensor.numel() != tensor.numel() ||
        delivery.tensor.scalar_type() != tensor.scalar_type()) {
      hub_->fail(world_rank(), call.where,
                 concat("sent are ", tensor.numel(), " ", at::toString(tensor.scalar_type()),
                        ", expected ", delivery.tensor.numel(), " ",
                        at::toString(delivery.tensor.scalar_type())));
    }
    delivery.tensor.view(-1).copy_(tensor.view(-1));
    delivery.done = true;
  }

  template <typename Compute>
  Pending meet(Call call, int detail, const at::Tensor& out, const at::Tensor& in,
               const Compute& compute) {
    const std::string signature = concat(call.operation, " of ", in.numel(), " ",
                                         at::toString(in.scalar_type()), ", ", detail);
    const auto me = static_cast<size_t>(rank()), n = static_cast<size_t>(size());
    std::unique_lock lock(hub_->mutex);
    std::shared_ptr<Meeting>& slot = group_->meetings[num_collectives_];
    if (!slot)
      slot = std::make_shared<Meeting>(Meeting{
          signature, std::vector<at::Tensor>(n), std::vector<at::Tensor>(n),
          std::vector<StreamMark>(n), std::make_shared<StreamMark>(), std::vector<bool>(n)});
    const std::shared_ptr<Meeting> meeting = slot;
    if (meeting->signature != signature) {
      hub_->fail(
          world_rank(), call.where,
          concat("this rank calls ", signature, " where another calls ", meeting->signature));
    }
    meeting->in[me] = in;
    meeting->out[me] = out;
    meeting->ready[me] = StreamMark(in.device());
    meeting->here[me] = true;
    const bool last = ++meeting->arrived == n;
    if (last) group_->meetings.erase(num_collectives_);
    ++num_collectives_;
    if (last) {
      lock.unlock();
      {
        at::NoGradGuard no_grad;
        for (const StreamMark& ready : meeting->ready) ready.pass();
        for (const at::Tensor& tensor : meeting->in) used_here(tensor);
        for (const at::Tensor& tensor : meeting->out) used_here(tensor);
        compute(*meeting);
        *meeting->result = StreamMark(in.device());
      }
      lock.lock();
      meeting->in.clear();
      meeting->out.clear();
      meeting->done = true;
      hub_->changed.notify_all();
      return Pending();
    }
    return work(
        call, [meeting] { return meeting->done; }, meeting->result,
        [meeting, ranks = world_ranks()] {
          std::vector<int> missing;
          for (size_t r = 0; r < ranks.size(); ++r) {
            if (!meeting->here[r]) missing.push_back(ranks[r]);
          }
          return concat("no word from rank ", internal::list_ranks(missing));
        });
  }

  const std::shared_ptr<Hub> hub_;
  const std::shared_ptr<Group> group_;
  const int exceptions_ = std::uncaught_exceptions();
  int64_t num_collectives_ = 0, num_subgroups_ = 0;
};

}  // namespace

std::vector<std::shared_ptr<Communicator>> make_thread_communicators(int size, double deadline_s,
                                                                     bool by_order) {
  CONTEXTURE_INVARIANT(size > 0, size, " ranks");
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  const auto hub = std::make_shared<Hub>(by_order);
  const auto group = std::make_shared<Group>(std::move(all));
  std::vector<std::shared_ptr<Communicator>> out;
  for (int r = 0; r < size; ++r) {
    out.push_back(std::make_shared<ThreadCommunicator>(r, "world", std::make_shared<RankState>(),
                                                       hub, group));
    out.back()->set_deadline(deadline_s);
  }
  return out;
}

}  // namespace contexture::parallel
