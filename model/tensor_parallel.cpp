// M targets, N tokens, V this rank's part of the vocabulary.
#include "model/tensor_parallel.h"

#include <torch/csrc/autograd/custom_function.h>

namespace contexture::model::tensor_parallel {
namespace {

using parallel::Communicator;
using parallel::ReduceOp;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

Communicator* group(AutogradContext* ctx) { return reinterpret_cast<Communicator*>(ctx->saved_data["tp"].toInt()); }

at::Tensor summed(const at::Tensor& t, Communicator* tp) {
  const at::Tensor out = t.clone(at::MemoryFormat::Contiguous);
  tp->all_reduce(out).wait();
  return out;
}

struct Reduce : Function<Reduce> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& partial, int64_t tp) {
    return summed(partial, reinterpret_cast<Communicator*>(tp));
  }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0], at::Tensor()}; }
};

struct Spread : Function<Spread> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& shared, int64_t tp) {
    ctx->saved_data["tp"] = tp;
    return shared.view_as(shared);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) { return {summed(grads[0], group(ctx)), at::Tensor()}; }
};

struct TargetLogProb : Function<TargetLogProb> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits_MV, const at::Tensor& target_M, int64_t begin, int64_t tp_as_int) {
    auto* tp = reinterpret_cast<Communicator*>(tp_as_int);
    const int64_t M = logits_MV.size(0), V = logits_MV.size(1);
    const at::Tensor most_M = V > 0 ? std::get<0>(logits_MV.max(1)) : at::full({M}, -1e30, logits_MV.options());
    tp->all_reduce(most_M, ReduceOp::kMax).wait();
    const at::Tensor mine_M = target_M.ge(begin).logical_and(target_M.lt(begin + V));
    const at::Tensor index_M = (target_M - begin).clamp(0, std::max<int64_t>(V - 1, 0));
    const at::Tensor exp_MV = (logits_MV - most_M.unsqueeze(1)).exp();
    at::Tensor sums_2M = at::zeros({2, M}, logits_MV.options());  // of the exponentials, and the target's logit
    sums_2M.select(0, 0).copy_(exp_MV.sum(1));
    if (V > 0) sums_2M.select(0, 1).copy_(logits_MV.gather(1, index_M.unsqueeze(1)).squeeze(1) * mine_M);
    tp->all_reduce(sums_2M).wait();
    ctx->save_for_backward({exp_MV / sums_2M.select(0, 0).unsqueeze(1), index_M, mine_M});
    return sums_2M.select(0, 1) - most_M - sums_2M.select(0, 0).log();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    at::Tensor d_MV = saved[0].neg();
    if (d_MV.size(1) > 0) d_MV.scatter_add_(1, saved[1].unsqueeze(1), saved[2].to(d_MV.scalar_type()).unsqueeze(1));
    return {d_MV * grads[0].unsqueeze(1), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

int64_t begin_of(const parallel::Parameter& table) { return parallel::part_of(table.shape[0], table.part).first; }

}  // namespace

at::Tensor reduce(const at::Tensor& partial, Communicator* tp) {
  return tp == nullptr ? partial : Reduce::apply(partial, reinterpret_cast<int64_t>(tp));
}

at::Tensor spread(const at::Tensor& shared, Communicator* tp) {
  return tp == nullptr ? shared : Spread::apply(shared, reinterpret_cast<int64_t>(tp));
}

at::Tensor embedding(const parallel::Parameter& table, const at::Tensor& ids, Communicator* tp) {
  if (tp == nullptr) return at::embedding(table.value, ids);
  const int64_t begin = begin_of(table), V = table.value.size(0);
  if (V == 0) return reduce(at::zeros({ids.size(0), table.value.size(1)}, table.value.options()), tp);
  const at::Tensor mine_N1 = ids.ge(begin).logical_and(ids.lt(begin + V)).unsqueeze(1);
  return reduce(at::embedding(table.value, (ids - begin).clamp(0, V - 1)) * mine_N1.to(table.value.scalar_type()), tp);
}

at::Tensor target_log_prob(const at::Tensor& logits, const parallel::Parameter& table, const at::Tensor& target_M, Communicator* tp) {
  if (tp == nullptr) return logits.log_softmax(1).gather(1, target_M.unsqueeze(1)).squeeze(1);
  return TargetLogProb::apply(logits, target_M, begin_of(table), reinterpret_cast<int64_t>(tp));
}

}  // namespace contexture::model::tensor_parallel
