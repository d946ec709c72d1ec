// Objectives that train a retriever through what the reader makes of each document, as pure
// functions of log-probabilities. Nothing here knows a model. Definitions and figures that the
// tests quote: docs/retrieval.md.
//
// B inputs, K candidates, T target tokens of the longest target. All tensors have one dtype, fp32
// or wider. An input with fewer candidates carries kAbsent as their log-probability; tokens beyond
// the end of its target have likelihood 0 (log of one), so that they change no sum. Results are per
// input, [B], unless said; an input without candidates gives 0 and no gradient. What a formula
// detaches gets no gradient; everything else does.
#pragma once
#include <ATen/ATen.h>

namespace contexture::model::objectives {

constexpr double kAbsent = -1e30;  // log-probability of a candidate that is not there

// log p(k | x) from scores_BK, kAbsent where a candidate is absent.
at::Tensor log_prior(const at::Tensor& score_BK);

// -log sum_k p(k|x) exp(sum_t l_tk): RAG-Sequence (arXiv:2005.11401). Gradient to both.
at::Tensor rag_sequence(const at::Tensor& log_prior_BK, const at::Tensor& log_lik_BKT);

// -sum_t log sum_k p(k|x) exp(l_tk): RAG-Token, same paper. Gradient to both.
at::Tensor rag_token(const at::Tensor& log_prior_BK, const at::Tensor& log_lik_BKT);

// The posterior p(k | x, y) of RAG-Sequence, [B, K]; zeros where a candidate is absent.
at::Tensor posterior(const at::Tensor& log_prior_BK, const at::Tensor& log_lik_BKT);

// The same marginals where likelihoods are detached: the retriever's term of EMDR2
// (arXiv:2106.05346). per_sequence: RAG-Sequence's, whose gradient is EM's, prior minus posterior;
// else per token, as the paper's loss has it.
at::Tensor emdr2(const at::Tensor& log_prior_BK, const at::Tensor& log_lik_BKT, bool per_sequence);

// How a target is made of likelihoods that are sums over tokens.
struct TargetOptions {
  bool per_sequence = false;  // sums as they are; else divided by the number of target tokens
  double temperature = 1.0;   // divides the logits
};

// Atlas (arXiv:2208.03299) trains p(k|x) towards a target over the documents, [B, K], detached:
// PDist: softmax of the likelihood with document k alone. (Perplexity distillation.)
at::Tensor pdist_target(const at::Tensor& log_prior_BK, const at::Tensor& log_lik_BKT,
                        const at::Tensor& tokens_B, const TargetOptions& options);
// LOOP: softmax of minus the likelihood with all documents but k. log_lik_without_BKT: those.
at::Tensor loop_target(const at::Tensor& log_prior_BK, const at::Tensor& log_lik_without_BKT,
                       const at::Tensor& tokens_B, const TargetOptions& options);
// ADist: softmax of the attention mass that document k receives (mass_BK).
at::Tensor adist_target(const at::Tensor& log_prior_BK, const at::Tensor& mass_BK,
                        const TargetOptions& options);

// KL(target || p(.|x)), no gradient to the target. mean: divided by the input's number of
// candidates, as PyTorch's KLDivLoss does by default, and so Atlas's code: its retriever then
// learns at 1/K of the paper's rate.
at::Tensor kl_to_prior(const at::Tensor& target_BK, const at::Tensor& log_prior_BK, bool mean);

// REALM (arXiv:2002.08909): -log sum_k p(k|x) p(y_t|x,k), averaged over the target (masked) tokens.
// Among the candidates is the null document; the input's own source is not.
at::Tensor realm(const at::Tensor& log_prior_BK, const at::Tensor& log_lik_BKT,
                 const at::Tensor& tokens_B);

}  // namespace contexture::model::objectives
