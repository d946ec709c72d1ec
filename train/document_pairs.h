// Warm starts: pairs of a query and a document made of the corpus itself, for the contrastive loss
// of a first run. Inverse cloze (ORQA, arXiv:1906.00300): a sentence asks for the document it was
// taken from, which nine times in ten lacks it then. Picture to text (CLIP, arXiv:2103.00020): a
// document's picture asks for its text alone.
#pragma once
#include <set>
#include <vector>

#include "train/step_data.h"

namespace contexture::train {

class DocumentPairs {
 public:
  // Documents of held_out take no part. Throws UsageError when a kind of pair is asked for that no
  // document can give.
  DocumentPairs(const RunConfig& config, const ExampleEncoder& encoder,
                const retriever::Documents& documents, const std::set<int64_t>& held_out);
  // data.inverse_cloze_per_step and data.picture_text_per_step pairs, none of a row in `taken`, to
  // which theirs are added.
  std::vector<PreparedPair> draw(int64_t step, std::set<int64_t>& taken) const;  // thread-safe

 private:
  const RunConfig* config_;
  const ExampleEncoder* encoder_;
  const retriever::Documents* documents_;
  std::vector<int64_t> with_sentences_, with_pictures_;  // rows
};

}  // namespace contexture::train
