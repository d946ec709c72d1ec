// Supervised contrastive loss over the global batch (DPR, arXiv:2004.04906): each query against all
// distinct documents of the batch, its gold documents positive, the others negative. Embeddings
// come from a first pass without graph; the gradients returned here are injected at the embedding
// wires in the second (GradCache, arXiv:2101.06983).
#pragma once
#include <ATen/ATen.h>

#include <vector>

namespace contexture::retriever {

struct ContrastiveResult {
  double loss = 0.0;         // mean over the queries that have a positive in the batch
  at::Tensor query_grad_BE;  // gradients of weight * loss
  at::Tensor doc_grad_UE;
};

// query_BE, doc_UE: unit-length embeddings, fp32 or fp64. positives[b]: indices into the documents;
// empty: the query is left out. masked[b]: documents left out of b's denominator (false negatives).
ContrastiveResult contrastive(const at::Tensor& query_BE, const at::Tensor& doc_UE,
                              const std::vector<std::vector<int64_t>>& positives,
                              const std::vector<std::vector<int64_t>>& masked, double temperature,
                              double weight);

}  // namespace contexture::retriever
