// Answers from a model: greedy or sampled decoding with a key-value cache, over documents that are encoded once.
#pragma once
#include <ATen/ATen.h>

#include <unordered_map>
#include <vector>

#include "model/model.h"

namespace contexture::eval {

struct GenerateOptions {
  int64_t max_new_tokens = 24;
  double temperature = 0.0;  // 0: greedy
  uint64_t seed = 0;         // of the sampling; each input has a stream of its own
};

struct Generated {
  std::vector<int32_t> tokens;         // without the end piece
  double log_prob = 0.0;               // of the tokens and the end piece, under the model
  std::vector<double> document_prob;   // [documents of this input] retrieval probability
  std::vector<double> document_share;  // [documents of this input] share of cross-attention over the whole answer (the
                                       // null key takes the rest); retrieval probability where nothing cross-attends
};

// Encoded documents by Sequence::key, for serving: a document is encoded the first time it is read. Only valid for
// one set of weights; memory and prefix fusion (in fid a document's states depend on the question: never cached).
struct DocumentCache {
  struct Entry {
    at::Tensor states_MD, embedding_E;
  };
  std::unordered_map<uint64_t, Entry> entries;
  int64_t hits = 0, misses = 0;
};

// Decodes all inputs of a microbatch together (targets are ignored). The result for an input does not depend on the
// others. Throws as model::make_feeds. cache may be null.
std::vector<Generated> generate(const model::Model& model, const model::Microbatch& microbatch,
                                const GenerateOptions& options, DocumentCache* cache = nullptr);

}  // namespace contexture::eval
