#include "retriever/contrastive.h"

#include <torch/csrc/autograd/autograd.h>

namespace contexture::retriever {

ContrastiveResult contrastive(const at::Tensor& query_BE, const at::Tensor& doc_UE,
                              const std::vector<std::vector<int64_t>>& positives,
                              const std::vector<std::vector<int64_t>>& masked, double temperature,
                              double weight) {
  ContrastiveResult result;
  at::Tensor positive_BU = at::full({query_BE.size(0), doc_UE.size(0)}, -1e30, query_BE.options());
  at::Tensor counted_B = at::zeros({query_BE.size(0)}, query_BE.options());
  at::Tensor allowed_BU = at::zeros_like(positive_BU);
  int64_t count = 0;
  const auto set = [](at::Tensor& table, size_t b, int64_t u, double value) {
    table.select(0, static_cast<int64_t>(b)).select(0, u).fill_(value);
  };
  for (size_t b = 0; b < positives.size(); ++b) {
    for (const int64_t u : positives[b]) set(positive_BU, b, u, 0.0);
    for (const int64_t u : masked[b]) set(allowed_BU, b, u, -1e30);
    if (positives[b].empty()) continue;
    counted_B[static_cast<int64_t>(b)] = 1.0;
    ++count;
  }
  result.query_grad_BE = at::zeros_like(query_BE);
  result.doc_grad_UE = at::zeros_like(doc_UE);
  if (count == 0) return result;
  const at::AutoGradMode with_grad(true);
  const at::Tensor query = query_BE.detach().requires_grad_(true),
                   doc = doc_UE.detach().requires_grad_(true);
  const at::Tensor score_BU = query.mm(doc.t()) / temperature + allowed_BU;
  const at::Tensor loss_B =
      (score_BU.logsumexp(1) - (score_BU + positive_BU).logsumexp(1)) * counted_B;
  const at::Tensor loss = loss_B.sum() / static_cast<double>(count);
  const auto grads = torch::autograd::grad({loss * weight}, {query, doc});
  result.loss = loss.item<double>();
  result.query_grad_BE = grads[0];
  result.doc_grad_UE = grads[1];
  return result;
}

}  // namespace contexture::retriever
