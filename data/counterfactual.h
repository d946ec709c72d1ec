// Counterfactual training pairs: a fact of a document is replaced by another value, in the text and
// in the answers, so that the only way to answer is to read the document. Deterministic by (seed,
// step, document): examples that share a document in the same step see the same edited text. Const
// and thread-safe.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "data/records.h"
#include "data/tokenizer.h"

namespace contexture::data {

struct CounterfactualConfig {
  double probability = 0.0;       // each fact of a document is swapped with this probability
  double random_share = 0.3;      // of the swaps: a made-up value rather than another document's
  int64_t max_random_pieces = 4;  // tokenizer pieces in a made-up value
  uint64_t seed = 0;
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("probability", probability,
          "chance that a fact of a training document is swapped; 0 = off");
    visit("random_share", random_share, "share of swaps that take a made-up value");
    visit("max_random_pieces", max_random_pieces, "most tokenizer pieces in a made-up value");
    visit("seed", seed, "seed of the swaps");
  }
  void validate() const;
};

// One replacement, whole words only.
struct Swap {
  std::string type;  // fact type ("capital")
  std::string from, to;
};

struct EditedDocument {
  std::string title, text;
  std::vector<Swap> swaps;
};

// Replaces every whole-word occurrence of each swap's `from`, in one pass, the longest match first
// (a replacement is never replaced again). A word boundary is a change between letters or digits
// and anything else, on code points.
std::string replace_words(const std::string& text, const std::vector<Swap>& swaps);
bool contains_words(const std::string& text, const std::string& words);

class Counterfactual {
 public:
  // The pool of other values: the facts of `training` documents only, plus the answers of
  // `examples` by type. `tokenizer` makes random values and may be null (then they are made-up
  // words).
  Counterfactual(const CounterfactualConfig& config, const std::vector<const Document*>& training,
                 const std::vector<Example>& examples, std::shared_ptr<const Tokenizer> tokenizer);

  // `examples` are those that read this document in this step: their answers count as facts of
  // their type when the document's "facts" don't list them. A fact is swapped only if the
  // document's text holds it.
  EditedDocument edit(const Document& document, const std::vector<const Example*>& examples,
                      int64_t step) const;

  // The answers that go with an edited document. Answers equal to a swapped value change; an answer
  // that the swap makes untrue goes; the rest stay.
  std::vector<std::string> answers(const Example& example, const EditedDocument& edited) const;

  int64_t pool_size(const std::string& type) const;

 private:
  std::string other_value(const std::string& type, const std::string& old, Stream& stream) const;

  CounterfactualConfig config_;
  std::map<std::string, std::vector<std::string>> pool_;  // type to distinct values, sorted
  std::shared_ptr<const Tokenizer> tokenizer_;
};

}  // namespace contexture::data
