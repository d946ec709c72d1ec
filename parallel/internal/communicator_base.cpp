#include "parallel/internal/communicator_base.h"

#include <algorithm>

#include "parallel/board.h"

namespace contexture::parallel::internal {
namespace {

constexpr int kTagEnd = 1 << 30;

void check_tensor(const Call& call, const at::Tensor& tensor) {
  CONTEXTURE_INVARIANT(tensor.defined() && tensor.is_contiguous(), call.where,
                       ": tensors must be contiguous");
  switch (tensor.scalar_type()) {
    case at::kBFloat16:
    case at::kHalf:
    case at::kFloat:
    case at::kDouble:
    case at::kLong:
    case at::kInt:
    case at::kByte:
      return;
    default:
      CONTEXTURE_INVARIANT(false, call.where, ": no transport for ",
                           at::toString(tensor.scalar_type()));
  }
}

// `large` holds `factor` times what `small` holds, in the same dtype.
void check_sizes(const Call& call, const at::Tensor& large, const at::Tensor& small,
                 int64_t factor) {
  CONTEXTURE_INVARIANT(
      large.scalar_type() == small.scalar_type() && large.numel() == factor * small.numel(),
      call.where, ": ", small.numel(), " ", at::toString(small.scalar_type()), " do not go ",
      factor, " times into ", large.numel(), " ", at::toString(large.scalar_type()));
}

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

void copy_flat(const at::Tensor& to, const at::Tensor& from) {
  at::NoGradGuard no_grad;
  if (to.numel() > 0) to.view(-1).copy_(from.view(-1));
}

}  // namespace

Call CommunicatorBase::count(const std::string& operation, int64_t bytes, int peer) {
  CONTEXTURE_INVARIANT(peer < size() && peer != rank_, operation, " on group ", name_, " of ",
                       size(), " names rank ", peer);
  Traffic& traffic = traffic_[operation];
  ++traffic.calls;
  traffic.bytes += bytes;
  Call call{operation, traffic.calls, peer, {}};
  std::string peer_text;
  if (peer >= 0) {
    ++traffic.messages;
    peer_text = concat(", peer ", world_ranks_[static_cast<size_t>(peer)]);
    if (operation == "send") {
      Traffic& link = links_[peer];
      ++link.calls;
      ++link.messages;
      link.bytes += bytes;
    }
  }
  call.where = concat("rank ", world_rank(), peer_text, ", ", operation, " #", call.number,
                      " of group ", name_, " in phase ", state_->phase);
  require_alive(call);
  return call;
}

Pending CommunicatorBase::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  Call call = count("all_reduce", bytes_of(tensor));
  check_tensor(call, tensor);
  if (is_local(tensor)) return Pending();
  return start_all_reduce(std::move(call), tensor, op);
}

Pending CommunicatorBase::reduce_scatter(const at::Tensor& output, const at::Tensor& input) {
  Call call = count("reduce_scatter", bytes_of(input));
  check_tensor(call, input);
  check_tensor(call, output);
  check_sizes(call, input, output, size());
  if (!is_local(input)) return start_reduce_scatter(std::move(call), output, input);
  copy_flat(output, input);
  return Pending();
}

Pending CommunicatorBase::all_gather(const at::Tensor& output, const at::Tensor& input) {
  Call call = count("all_gather", bytes_of(input));
  check_tensor(call, input);
  check_tensor(call, output);
  check_sizes(call, output, input, size());
  if (!is_local(input)) return start_all_gather(std::move(call), output, input);
  copy_flat(output, input);
  return Pending();
}

Pending CommunicatorBase::broadcast(const at::Tensor& tensor, int root) {
  Call call = count("broadcast", bytes_of(tensor));
  check_tensor(call, tensor);
  CONTEXTURE_INVARIANT(root >= 0 && root < size(), call.where, ": no rank ", root, " among ",
                       size());
  if (is_local(tensor)) return Pending();
  return start_broadcast(std::move(call), tensor, root);
}

Pending CommunicatorBase::all_to_all(const at::Tensor& output, const at::Tensor& input) {
  Call call = count("all_to_all", bytes_of(input));
  check_tensor(call, input);
  check_tensor(call, output);
  check_sizes(call, output, input, 1);
  CONTEXTURE_INVARIANT(input.numel() % size() == 0, call.where, ": ", input.numel(),
                       " elements over ", size(), " ranks");
  if (!is_local(input)) return start_all_to_all(std::move(call), output, input);
  copy_flat(output, input);
  return Pending();
}

Pending CommunicatorBase::send(const at::Tensor& tensor, int peer, int tag) {
  Call call = count("send", bytes_of(tensor), peer);
  check_tensor(call, tensor);
  CONTEXTURE_INVARIANT(peer >= 0 && tag >= 0 && tag < kTagEnd, call.where, ": peer ", peer,
                       ", tag ", tag);
  if (is_local(tensor)) return Pending();
  return start_send(std::move(call), tensor, tag);
}

Pending CommunicatorBase::receive(const at::Tensor& tensor, int peer, int tag) {
  Call call = count("receive", bytes_of(tensor), peer);
  check_tensor(call, tensor);
  CONTEXTURE_INVARIANT(peer >= 0 && tag >= 0 && tag < kTagEnd, call.where, ": peer ", peer,
                       ", tag ", tag);
  if (is_local(tensor)) return Pending();
  return start_receive(std::move(call), tensor, tag);
}

void CommunicatorBase::barrier() {
  Call call = count("barrier", 0);
  if (size() > 1) run_barrier(std::move(call));
}

std::shared_ptr<Communicator> CommunicatorBase::subgroup(const std::vector<int>& ranks,
                                                         const std::string& name) {
  Call call = count("subgroup", 0);
  CONTEXTURE_INVARIANT(
      !ranks.empty() && ranks.front() >= 0 && ranks.back() < size() &&
          std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end(),
      call.where, ": ranks ", list_ranks(ranks), " are no ascending, distinct ranks of ", size());
  return make_subgroup(std::move(call), ranks, name);
}

void CommunicatorBase::set_deadline(double seconds) {
  CONTEXTURE_INVARIANT(seconds > 0, "a deadline of ", seconds, " s");
  state_->deadline_s = seconds;
}

void CommunicatorBase::post(const std::string& name, const std::string& text) {
  post_on_board(count("post", static_cast<int64_t>(text.size())), name, text);
}

std::string CommunicatorBase::read(const std::string& name) {
  return read_from_board(count("read", 0), name);
}

std::vector<int> CommunicatorBase::world_ranks_of(const std::vector<int>& ranks) const {
  std::vector<int> out;
  for (const int rank : ranks) out.push_back(world_ranks_[static_cast<size_t>(rank)]);
  return out;
}

at::Tensor reduce_in_order(const std::vector<at::Tensor>& tensors, ReduceOp op) {
  at::NoGradGuard no_grad;
  const at::ScalarType dtype = tensors[0].scalar_type();
  const bool widen = op == ReduceOp::kSum && (dtype == at::kBFloat16 || dtype == at::kHalf);
  at::Tensor out = tensors[0].to(widen ? at::kFloat : dtype, /*non_blocking=*/false, /*copy=*/true);
  for (size_t i = 1; i < tensors.size(); ++i) {
    switch (op) {
      case ReduceOp::kSum:
        out.add_(tensors[i]);
        break;
      case ReduceOp::kMax:
        at::maximum_out(out, out, tensors[i]);
        break;
      case ReduceOp::kMin:
        at::minimum_out(out, out, tensors[i]);
        break;
    }
  }
  return out.to(dtype);
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string out;
  for (size_t i = 0; i < ranks.size(); ++i)
    out += concat(i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return out;
}

}  // namespace contexture::parallel::internal

namespace contexture::parallel {
namespace {

// Every communicator is one.
internal::CommunicatorBase& base_of(Communicator& communicator) {
  return dynamic_cast<internal::CommunicatorBase&>(communicator);
}

}  // namespace

void post(Communicator& communicator, const std::string& name, const std::string& text) {
  base_of(communicator).post(name, text);
}

std::string read(Communicator& communicator, const std::string& name) {
  return base_of(communicator).read(name);
}

}  // namespace contexture::parallel
