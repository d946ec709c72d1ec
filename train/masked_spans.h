// Masked spans of the corpus as training examples (REALM, arXiv:2002.08909): a sentence with a span
// masked asks, the span is the answer, and the document that the sentence stands in may not be
// read, since it holds it.
#pragma once
#include <set>
#include <vector>

#include "core/rng.h"
#include "data/records.h"
#include "data/tokenizer.h"
#include "retriever/documents.h"
#include "train/config.h"

namespace contexture::train {

class MaskedSpans {
 public:
  // spans: "salient" (numbers, dates, names: data/spans.h) or "random". Documents of held_out take
  // no part, nor those that have nothing to mask; throws UsageError when none is left.
  MaskedSpans(const std::string& spans, const RunConfig& config, const data::Tokenizer& tokenizer,
              const retriever::Documents& documents, const std::set<int64_t>& held_out);

  // One example for each document that takes part, in corpus order, which says which document it
  // is: what a sampler picks from.
  const data::ExampleSet& set() const { return set_; }

  // What a visit to a document asks, drawn from `stream`. The example's question is the sentence
  // with "[MASK]", its answer the span, its source_document the document; pieces are the
  // question's, with the mask piece in them, cut around it. Thread-safe.
  struct Masked {
    data::Example example;
    std::vector<int32_t> pieces;
  };
  Masked draw(int64_t index, Stream& stream) const;

 private:
  bool salient_;
  const RunConfig* config_;
  const data::Tokenizer* tokenizer_;
  const retriever::Documents* documents_;
  data::ExampleSet set_;
};

}  // namespace contexture::train
