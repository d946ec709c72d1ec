// What tensor-parallel layers do besides their products (Megatron-LM, arXiv:1909.08053; sequence
// parallelism arXiv:2205.05198). tp: the group; null: one rank, and every function is then the
// plain operator. All are collectives in forward or backward or both.
#pragma once
#include <ATen/ATen.h>

#include "parallel/communicator.h"
#include "parallel/parameters.h"

namespace contexture::model::tensor_parallel {

// Partial results to their sum over the ranks; the gradient passes as it is.
at::Tensor reduce(const at::Tensor& partial, parallel::Communicator* tp);

// A tensor that is equal on all ranks, before each uses it in its own way: gradients are summed
// over the ranks.
at::Tensor spread(const at::Tensor& shared, parallel::Communicator* tp);

// Rows of an embedding whose vocabulary is split: table.value holds this rank's rows. ids [N]
// int64; [N, D].
at::Tensor embedding(const parallel::Parameter& table, const at::Tensor& ids,
                     parallel::Communicator* tp);

// log softmax over the whole vocabulary at the targets: logits [M, this rank's vocabulary] in fp32
// or wider, targets [M]; [M]. The vocabulary need not be a multiple of anything: a rank without a
// token takes part with none.
at::Tensor target_log_prob(const at::Tensor& logits, const parallel::Parameter& table,
                           const at::Tensor& target_M, parallel::Communicator* tp);

// A layer's ranks. sequence: between its branches each rank keeps only its part of the rows (as
// equal as can be), for norms, dropout and residual sums, and for the wires between layers.
struct Group {
  parallel::Communicator* ranks = nullptr;
  bool sequence = false;
  bool shares_rows() const { return ranks != nullptr && sequence; }
  std::pair<int64_t, int64_t> rows(int64_t num_rows) const;  // [begin, end) of this rank
};
Group group_of(const parallel::ParameterStore& store);

// Into a branch: normalised rows (this rank's, if they are shared out) times this rank's rows of w:
// [num_rows, this rank's outputs].
at::Tensor enter(const at::Tensor& rows, const at::Tensor& w, const Group& group, int64_t num_rows);
// Out of a branch: partial results of all rows to their sums, for this rank's rows.
at::Tensor leave(const at::Tensor& partial_ND, const Group& group);
// A parameter that is applied to this rank's rows only: its gradient is summed over the ranks.
at::Tensor for_rows(const parallel::Parameter& parameter, const Group& group);
// Rows that are equal on all ranks to this rank's part of them, and back.
at::Tensor own_rows(const at::Tensor& all_ND, const Group& group);
at::Tensor all_rows(const at::Tensor& own, const Group& group, int64_t num_rows);
// Columns that are shared out as a split parameter's rows are (Split with one run), whole on every
// rank. No gradient. tp null: own.
at::Tensor all_columns(const at::Tensor& own, int64_t num_columns, parallel::Communicator* tp);

}  // namespace contexture::model::tensor_parallel
