// What tensor-parallel layers do besides their products (Megatron-LM, arXiv:1909.08053). tp: the group; null: one rank, and
// every function is then the plain operator. All are collectives in forward or backward or both.
#pragma once
#include <ATen/ATen.h>

#include "parallel/communicator.h"
#include "parallel/parameters.h"

namespace contexture::model::tensor_parallel {

// Partial results to their sum over the ranks; the gradient passes as it is.
at::Tensor reduce(const at::Tensor& partial, parallel::Communicator* tp);

// A tensor that is equal on all ranks, before each uses it in its own way: gradients are summed over the ranks.
at::Tensor spread(const at::Tensor& shared, parallel::Communicator* tp);

// Rows of an embedding whose vocabulary is split: table.value holds this rank's rows. ids [N] int64; [N, D].
at::Tensor embedding(const parallel::Parameter& table, const at::Tensor& ids, parallel::Communicator* tp);

// log softmax over the whole vocabulary at the targets: logits [M, this rank's vocabulary] in fp32 or wider, targets [M];
// [M]. The vocabulary need not be a multiple of anything: a rank without a token takes part with none.
at::Tensor target_log_prob(const at::Tensor& logits, const parallel::Parameter& table, const at::Tensor& target_M,
                           parallel::Communicator* tp);

}  // namespace contexture::model::tensor_parallel
