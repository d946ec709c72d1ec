#include "model/objectives.h"

namespace contexture::model::objectives {
namespace {

at::Tensor present(const at::Tensor& log_prior_BK) { return log_prior_BK.gt(kAbsent / 2); }

// Zero, also in its gradient, for inputs without a candidate.
at::Tensor where_any(const at::Tensor& value_B, const at::Tensor& log_prior_BK) {
  return value_B.masked_fill(present(log_prior_BK).any(1).logical_not(), 0.0);
}

// Softmax over the candidates that are there; zeros elsewhere.
at::Tensor softmax(const at::Tensor& logit_BK, const at::Tensor& log_prior_BK) {
  const at::Tensor there = present(log_prior_BK);
  return logit_BK.masked_fill(there.logical_not(), kAbsent).softmax(1) * there.to(logit_BK.dtype());
}

at::Tensor target(const at::Tensor& sum_BK, const at::Tensor& log_prior_BK,
                  const at::Tensor& tokens_B, const TargetOptions& options) {
  at::Tensor logit_BK = sum_BK.detach();
  if (!options.per_sequence) logit_BK = logit_BK / tokens_B.clamp_min(1).unsqueeze(1);
  return softmax(logit_BK / options.temperature, log_prior_BK.detach());
}

}  // namespace

at::Tensor log_prior(const at::Tensor& score_BK) {
  return score_BK.log_softmax(1).masked_fill(present(score_BK).logical_not(), kAbsent);
}

at::Tensor rag_sequence(const at::Tensor& log_prior_BK, const at::Tensor& log_lik_BKT) {
  return where_any(-(log_prior_BK + log_lik_BKT.sum(2)).logsumexp(1), log_prior_BK);
}

at::Tensor rag_token(const at::Tensor& log_prior_BK, const at::Tensor& log_lik_BKT) {
  return where_any(-(log_prior_BK.unsqueeze(2) + log_lik_BKT).logsumexp(1).sum(1), log_prior_BK);
}

at::Tensor posterior(const at::Tensor& log_prior_BK, const at::Tensor& log_lik_BKT) {
  return softmax(log_prior_BK + log_lik_BKT.sum(2), log_prior_BK);
}

at::Tensor emdr2(const at::Tensor& log_prior_BK, const at::Tensor& log_lik_BKT, bool per_sequence) {
  const at::Tensor fixed = log_lik_BKT.detach();
  return per_sequence ? rag_sequence(log_prior_BK, fixed) : rag_token(log_prior_BK, fixed);
}

at::Tensor pdist_target(const at::Tensor& log_prior_BK, const at::Tensor& log_lik_BKT,
                        const at::Tensor& tokens_B, const TargetOptions& options) {
  return target(log_lik_BKT.sum(2), log_prior_BK, tokens_B, options);
}

at::Tensor loop_target(const at::Tensor& log_prior_BK, const at::Tensor& log_lik_without_BKT,
                       const at::Tensor& tokens_B, const TargetOptions& options) {
  return target(-log_lik_without_BKT.sum(2), log_prior_BK, tokens_B, options);
}

at::Tensor adist_target(const at::Tensor& log_prior_BK, const at::Tensor& mass_BK,
                        const TargetOptions& options) {
  return softmax(mass_BK.detach() / options.temperature, log_prior_BK.detach());
}

at::Tensor kl_to_prior(const at::Tensor& target_BK, const at::Tensor& log_prior_BK, bool mean) {
  const at::Tensor fixed = target_BK.detach(), there = present(log_prior_BK);
  // 0 log 0 = 0; an absent candidate has target 0 and adds nothing.
  const at::Tensor terms =
      at::xlogy(fixed, fixed) - fixed * log_prior_BK.masked_fill(there.logical_not(), 0.0);
  const at::Tensor kl_B = terms.sum(1);
  return mean ? kl_B / there.sum(1).clamp_min(1).to(kl_B.dtype()) : kl_B;
}

at::Tensor realm(const at::Tensor& log_prior_BK, const at::Tensor& log_lik_BKT,
                 const at::Tensor& tokens_B) {
  return rag_token(log_prior_BK, log_lik_BKT) / tokens_B.clamp_min(1);
}

}  // namespace contexture::model::objectives
