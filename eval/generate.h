// Answers from a model, by decoding with a key-value cache over documents that are encoded once:
// from all documents at once, or marginalised over documents read one at a time (RAG,
// arXiv:2005.11401); greedy, sampled or by beam search.
#pragma once
#include <ATen/ATen.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "model/model.h"
#include "parallel/inference.h"

namespace contexture::eval {

struct GenerateOptions {
  // joint: one decoder reads all documents. rag_token: one decoder a document, their next-token
  // probabilities mixed by p(document | query). rag_sequence: a search per document; every answer
  // found is scored under the mixture of whole answers.
  std::string decoder = "joint";
  int64_t beams = 1;     // hypotheses kept; by their log-probability, which nothing is divided by
  bool thorough = true;  // rag_sequence: answers are scored under documents they were not found
                         // with, too; else as 0 there
  int64_t max_new_tokens = 24;
  double temperature = 0.0;  // 0: the likeliest; above: sampled (joint and rag_token, one beam)
  uint64_t seed = 0;         // of the sampling; each input has a stream of its own
  void validate() const;     // throws UsageError
};

struct Generated {
  std::vector<int32_t> tokens;        // without the end piece
  double log_prob = 0.0;              // of the tokens and the end piece, under the model
  std::vector<double> document_prob;  // [documents of this input] retrieval probability
  // [documents of this input] joint: share of cross-attention over the whole answer (the null key
  // takes the rest), or the retrieval probability where nothing cross-attends. RAG: p(document |
  // query, answer), for rag_token averaged over tokens.
  std::vector<double> document_share;
};

// Encoded documents by Sequence::key, for serving: a document is encoded the first time it is read.
// Only valid for one set of weights; memory and prefix fusion (in fid a document's states depend on
// the question: never cached).
struct DocumentCache {
  struct Entry {
    at::Tensor states_MD, embedding_E;
  };
  std::unordered_map<uint64_t, Entry> entries;
  int64_t hits = 0, misses = 0;
};

// Decodes all inputs of a microbatch together (targets are ignored). The result for an input does
// not depend on the others. Throws as model::make_feeds. cache may be null. inference: where the
// model's blocks are. All ranks of a replica call it alike and get the same result; with ZeRO 3
// all replicas call it equally often, with the same options and no cache.
std::vector<Generated> generate(const model::Model& model, const parallel::Inference& inference,
                                const model::Microbatch& microbatch, const GenerateOptions& options,
                                DocumentCache* cache = nullptr);
// The same for a model that is all in this process.
std::vector<Generated> generate(const model::Model& model, const model::Microbatch& microbatch,
                                const GenerateOptions& options, DocumentCache* cache = nullptr);

}  // namespace contexture::eval
