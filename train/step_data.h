// What a step trains on, before retrieval: tokenised questions and answers, augmented query
// pictures, gold documents as edited for this step. A pure function of (config, seed, step), made
// on loader threads.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "data/counterfactual.h"
#include "data/sampler.h"
#include "retriever/documents.h"
#include "train/config.h"

namespace contexture::train {

// The part of a global batch that a replica reads. The batch is cut into replicas * microbatches
// runs of inputs, as equal as can be; replica r has the runs from r * microbatches on.
struct Share {
  int64_t replica = 0, replicas = 1, microbatches = 1;
  int64_t total() const { return replicas * microbatches; }
  int64_t first() const { return replica * microbatches; }
  // Inputs [begin, end) of run m (global), of this replica.
  static std::pair<size_t, size_t> run(size_t inputs, int64_t m, int64_t total);
  std::pair<size_t, size_t> mine(size_t inputs) const;
  // Whether this replica has picture pair number p: pairs go round the runs in turn.
  bool has_pair(size_t p) const {
    return static_cast<int64_t>(p) % total() / microbatches == replica;
  }
};

struct PreparedInput {
  const data::Example* example = nullptr;
  model::Sequence query, prompt;
  std::vector<int32_t> target;  // ends with the end piece
  std::vector<int64_t> gold;    // rows of the gold documents
  int64_t source =
      -1;  // row that the question was cut from, which it may not read (REALM's trivial candidate)
};

// A query picture and a document picture of one identity: contrastive loss only.
struct PreparedPair {
  model::Sequence query, document;
  int64_t row = 0;  // of the corpus, or negative: a picture without a document
};

// Of a whole step; but what only another replica reads is left out: of its inputs there are target
// and gold, of its pairs the row.
struct PreparedStep {
  int64_t step = 0;
  std::vector<PreparedInput> inputs;
  std::vector<PreparedPair> pairs;  // distinct identities, none of them a gold document of the step
  // By row: gold documents that may differ from the corpus in this step. Those of other replicas'
  // inputs are made when one of this replica's reads them, too.
  std::map<int64_t, model::Sequence> edited;
  std::map<int64_t, std::function<model::Sequence()>> edited_elsewhere;
  std::vector<std::shared_ptr<const data::Example>>
      drawn;  // examples that are of no set (train/masked_spans.h)
  // Rows that no training input may read: gold documents of data.dev and data.test alone. Owned by
  // the StepMaker.
  const std::set<int64_t>* held_out = nullptr;
};

// Turns examples into sequences. Thread-safe.
class ExampleEncoder {
 public:
  // reader: of the published encoder that embeds queries, or null.
  ExampleEncoder(const RunConfig& config, const data::Tokenizer& tokenizer,
                 const retriever::Documents& documents,
                 std::shared_ptr<const retriever::TextReader> reader = nullptr);
  // query_picture and prompt_picture may be null. The target stays empty when answer is. Throws
  // DataError when a reader finds no question.
  PreparedInput encode(const data::Example& example, const std::string& answer,
                       const data::Image* picture, uint64_t key) const;
  // Target and gold alone.
  PreparedInput encode_answer(const data::Example& example, const std::string& answer) const;
  const data::Tokenizer& tokenizer() const { return *tokenizer_; }
  // Gives a query some text: what the question's text, or a sentence of a document, is looked up
  // with.
  void set_query_text(model::Sequence& query, const std::string& text) const;

 private:
  const RunConfig* config_;
  const data::Tokenizer* tokenizer_;
  const retriever::Documents* documents_;
  std::shared_ptr<const retriever::TextReader> reader_;
};

// Example sets with their decoded pictures.
struct PictureSet {
  data::ExampleSet set;
  std::unique_ptr<data::ImageCache> pictures;
  // Reads a set; examples with unknown gold documents or unreadable pictures are bad records.
  PictureSet(const RunConfig& config, const std::string& path,
             const std::vector<std::string>& types, const retriever::Documents& documents,
             data::BadRecords& bad);
  std::shared_ptr<const data::Image> picture(
      const data::Example& example) const;  // null when it has none
};

// The picture pairs of a JSONL file: {"id", "kind", "document": picture, "queries": [pictures]},
// names relative to the file.
class PairSet {
 public:
  PairSet(const RunConfig& config, const retriever::Documents& documents, data::BadRecords& bad);
  int64_t size() const { return static_cast<int64_t>(pairs_.size()); }
  // About `count` pairs for a step, whose rows are not in `taken`; pictures of those that `share`
  // has.
  std::vector<PreparedPair> draw(int64_t step, int64_t count, const std::set<int64_t>& taken,
                                 const Share& share) const;

 private:
  struct Pair {
    std::string document;
    std::vector<std::string> queries;
    int64_t row;
  };
  // Both pictures of an identity, recoloured alike or not at all, before each is augmented by
  // itself.
  struct Drawing {
    data::Image query, document;
  };
  Drawing draw_one(const Pair& pair, Stream& stream) const;
  const RunConfig* config_;
  std::vector<Pair> pairs_;
  std::unique_ptr<data::ImageCache> pictures_;
};

// How a run draws examples from the sets of data.train; which of a set's those of some types are
// (empty: all).
data::SamplerConfig sampling_of(const RunConfig& config);
bool is_of(const std::vector<std::string>& types, const data::Example& example);

class DocumentPairs;
class MaskedSpans;

class StepMaker {
 public:
  StepMaker(const RunConfig& config, const ExampleEncoder& encoder,
            const retriever::Documents& documents, std::shared_ptr<const data::Tokenizer> tokenizer,
            data::BadRecords& bad);
  ~StepMaker();
  PreparedStep make(int64_t step, const Share& share = {}) const;  // thread-safe
  int64_t num_examples() const;

 private:
  // The identity that a gold document and its questions take in a step, and the document in it, its
  // text as edited.
  Stream identity_stream(int64_t step, int64_t row) const;
  std::optional<data::Identity> identity_of(Stream& stream) const;
  model::Sequence edited(int64_t row, const data::EditedDocument& edit, int64_t step) const;
  const RunConfig* config_;
  const ExampleEncoder* encoder_;
  const retriever::Documents* documents_;
  const data::ExampleSet& set(size_t dataset) const;
  // By data.train, in one or the other.
  std::vector<std::unique_ptr<PictureSet>> sets_;
  std::vector<std::unique_ptr<MaskedSpans>> masked_;
  std::unique_ptr<PairSet> pairs_;
  std::unique_ptr<DocumentPairs> document_pairs_;  // null: none are asked for
  std::unique_ptr<data::Sampler> sampler_;
  std::unique_ptr<data::Counterfactual> counterfactual_;
  std::set<int64_t> held_out_;
};

}  // namespace contexture::train
