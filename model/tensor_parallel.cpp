// M targets, N tokens, V this rank's part of the vocabulary.
#include "model/tensor_parallel.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "model/ops.h"

namespace contexture::model::tensor_parallel {
namespace {

using parallel::Communicator;
using parallel::ReduceOp;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

Communicator* group(AutogradContext* ctx) {
  return reinterpret_cast<Communicator*>(ctx->saved_data["tp"].toInt());
}

at::Tensor summed(const at::Tensor& t, Communicator* tp) {
  const at::Tensor out = t.clone(at::MemoryFormat::Contiguous);
  tp->all_reduce(out).wait();
  return out;
}

struct Reduce : Function<Reduce> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& partial, int64_t tp) {
    return summed(partial, reinterpret_cast<Communicator*>(tp));
  }
  static variable_list backward(AutogradContext*, variable_list grads) {
    return {grads[0], at::Tensor()};
  }
};

struct Spread : Function<Spread> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& shared, int64_t tp) {
    ctx->saved_data["tp"] = tp;
    return shared.view_as(shared);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {summed(grads[0], group(ctx)), at::Tensor()};
  }
};

struct TargetLogProb : Function<TargetLogProb> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits_MV,
                            const at::Tensor& target_M, int64_t begin, int64_t tp_as_int) {
    auto* tp = reinterpret_cast<Communicator*>(tp_as_int);
    const int64_t M = logits_MV.size(0), V = logits_MV.size(1);
    const at::Tensor most_M =
        V > 0 ? std::get<0>(logits_MV.max(1)) : at::full({M}, -1e30, logits_MV.options());
    tp->all_reduce(most_M, ReduceOp::kMax).wait();
    const at::Tensor mine_M = target_M.ge(begin).logical_and(target_M.lt(begin + V));
    const at::Tensor index_M = (target_M - begin).clamp(0, std::max<int64_t>(V - 1, 0));
    const at::Tensor exp_MV = (logits_MV - most_M.unsqueeze(1)).exp();
    at::Tensor sums_2M =
        at::zeros({2, M}, logits_MV.options());  // of the exponentials, and the target's logit
    sums_2M.select(0, 0).copy_(exp_MV.sum(1));
    if (V > 0)
      sums_2M.select(0, 1).copy_(logits_MV.gather(1, index_M.unsqueeze(1)).squeeze(1) * mine_M);
    tp->all_reduce(sums_2M).wait();
    ctx->save_for_backward({exp_MV / sums_2M.select(0, 0).unsqueeze(1), index_M, mine_M});
    return sums_2M.select(0, 1) - most_M - sums_2M.select(0, 0).log();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    at::Tensor d_MV = saved[0].neg();
    if (d_MV.size(1) > 0)
      d_MV.scatter_add_(1, saved[1].unsqueeze(1), saved[2].to(d_MV.scalar_type()).unsqueeze(1));
    return {d_MV * grads[0].unsqueeze(1), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// Rows of all ranks, one below another. Parts differ by one row at most: they travel padded.
at::Tensor gathered(const at::Tensor& own, int64_t num_rows, Communicator* tp) {
  const int64_t n = tp->size(), most = (num_rows + n - 1) / n, D = own.size(1);
  const at::Tensor padded = at::zeros({most, D}, own.options()),
                   all = at::empty({n, most, D}, own.options());
  padded.narrow(0, 0, own.size(0)).copy_(own);
  tp->all_gather(all.view(-1), padded.view(-1)).wait();
  std::vector<at::Tensor> parts;
  for (int r = 0; r < n; ++r) {
    const auto [begin, end] = parallel::part_of(num_rows, {r, static_cast<int>(n)});
    parts.push_back(all[r].narrow(0, 0, end - begin));
  }
  return at::cat(parts);
}

// This rank's rows of the sum over all ranks.
at::Tensor scattered(const at::Tensor& partial_ND, Communicator* tp) {
  const int64_t n = tp->size(), N = partial_ND.size(0), most = (N + n - 1) / n,
                D = partial_ND.size(1);
  const at::Tensor padded = at::zeros({n, most, D}, partial_ND.options()),
                   own = at::empty({most, D}, partial_ND.options());
  for (int r = 0; r < n; ++r) {
    const auto [begin, end] = parallel::part_of(N, {r, static_cast<int>(n)});
    padded[r].narrow(0, 0, end - begin).copy_(partial_ND.narrow(0, begin, end - begin));
  }
  tp->reduce_scatter(own.view(-1), padded.view(-1)).wait();
  const auto [begin, end] = parallel::part_of(N, {tp->rank(), static_cast<int>(n)});
  return own.narrow(0, 0, end - begin);
}

at::Tensor slice(const at::Tensor& all_ND, Communicator* tp) {
  const auto [begin, end] = parallel::part_of(all_ND.size(0), {tp->rank(), tp->size()});
  return all_ND.narrow(0, begin, end - begin).contiguous();
}

// The four ways between own rows and all rows: what goes one way in forward comes back the other
// way in backward.
enum class Way { kGather, kScatterSum, kSlice };

at::Tensor go(Way way, const at::Tensor& t, int64_t num_rows, Communicator* tp) {
  return way == Way::kGather       ? gathered(t, num_rows, tp)
         : way == Way::kScatterSum ? scattered(t, tp)
                                   : slice(t, tp);
}

struct Rows : Function<Rows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& t, int64_t there, int64_t back,
                            int64_t num_rows, int64_t tp) {
    ctx->saved_data["tp"] = tp;
    ctx->saved_data["back"] = back;
    ctx->saved_data["num_rows"] = num_rows;
    return go(static_cast<Way>(there), t, num_rows, reinterpret_cast<Communicator*>(tp));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor none;
    return {go(static_cast<Way>(ctx->saved_data["back"].toInt()), grads[0],
               ctx->saved_data["num_rows"].toInt(), group(ctx)),
            none, none, none, none};
  }
};

at::Tensor move(const at::Tensor& t, Way there, Way back, int64_t num_rows, const Group& group) {
  return Rows::apply(t, static_cast<int64_t>(there), static_cast<int64_t>(back), num_rows,
                     reinterpret_cast<int64_t>(group.ranks));
}

int64_t begin_of(const parallel::Parameter& table) {
  return parallel::part_of(table.shape[0], table.part).first;
}

}  // namespace

std::pair<int64_t, int64_t> Group::rows(int64_t num_rows) const {
  if (!shares_rows()) return {0, num_rows};
  return parallel::part_of(num_rows, {ranks->rank(), ranks->size()});
}

Group group_of(const parallel::ParameterStore& store) { return {store.tp(), store.shares_rows()}; }

at::Tensor enter(const at::Tensor& rows, const at::Tensor& w, const Group& group,
                 int64_t num_rows) {
  if (!group.shares_rows()) return ops::column_linear(rows, w, group.ranks);
  return ops::linear(move(rows, Way::kGather, Way::kScatterSum, num_rows, group), w);
}

at::Tensor leave(const at::Tensor& partial_ND, const Group& group) {
  if (!group.shares_rows()) return reduce(partial_ND, group.ranks);
  return move(partial_ND, Way::kScatterSum, Way::kGather, partial_ND.size(0), group);
}

at::Tensor for_rows(const parallel::Parameter& parameter, const Group& group) {
  return group.shares_rows() ? spread(parameter.value, group.ranks) : parameter.value;
}

at::Tensor own_rows(const at::Tensor& all_ND, const Group& group) {
  return group.shares_rows() ? move(all_ND, Way::kSlice, Way::kGather, all_ND.size(0), group)
                             : all_ND;
}

at::Tensor all_rows(const at::Tensor& own, const Group& group, int64_t num_rows) {
  return group.shares_rows() ? move(own, Way::kGather, Way::kSlice, num_rows, group) : own;
}

at::Tensor all_columns(const at::Tensor& own, int64_t num_columns, Communicator* tp) {
  return tp == nullptr ? own : gathered(own.t(), num_columns, tp).t().contiguous();
}

at::Tensor reduce(const at::Tensor& partial, Communicator* tp) {
  return tp == nullptr ? partial : Reduce::apply(partial, reinterpret_cast<int64_t>(tp));
}

at::Tensor spread(const at::Tensor& shared, Communicator* tp) {
  return tp == nullptr ? shared : Spread::apply(shared, reinterpret_cast<int64_t>(tp));
}

at::Tensor embedding(const parallel::Parameter& table, const at::Tensor& ids, Communicator* tp) {
  if (tp == nullptr) return at::embedding(table.value, ids);
  const int64_t begin = begin_of(table), V = table.value.size(0);
  if (V == 0)
    return reduce(at::zeros({ids.size(0), table.value.size(1)}, table.value.options()), tp);
  const at::Tensor mine_N1 = ids.ge(begin).logical_and(ids.lt(begin + V)).unsqueeze(1);
  return reduce(at::embedding(table.value, (ids - begin).clamp(0, V - 1)) *
                    mine_N1.to(table.value.scalar_type()),
                tp);
}

at::Tensor target_log_prob(const at::Tensor& logits, const parallel::Parameter& table,
                           const at::Tensor& target_M, Communicator* tp) {
  if (tp == nullptr) return logits.log_softmax(1).gather(1, target_M.unsqueeze(1)).squeeze(1);
  return TargetLogProb::apply(logits, target_M, begin_of(table), reinterpret_cast<int64_t>(tp));
}

}  // namespace contexture::model::tensor_parallel
