// The corpus as the model reads it: every document tokenised and its picture cut into patches,
// once.
#pragma once
#include <memory>
#include <vector>

#include "data/loader.h"
#include "data/tokenizer.h"
#include "model/batch.h"
#include "retriever/corpus.h"
#include "retriever/text_reader.h"

namespace contexture::retriever {

// A document's sequence: [picture patches] title <sep> text, cut to max_tokens pieces. key: the
// document's row + 1. words: title and text as a published encoder reads them, where there is one.
class Documents {
 public:
  // Reads and decodes every picture (kept: 3 bytes a pixel and document). Bad pictures go to `bad`;
  // the document then stays as text. The corpus, the tokenizer and the config must outlive this.
  // reader: of the encoder that embeds documents, if that is a published one. Throws DataError for
  // a document without anything to read, or to embed.
  Documents(Corpus& corpus, const data::Tokenizer& tokenizer, const model::ModelConfig& config,
            int64_t max_tokens, data::BadRecords& bad,
            std::shared_ptr<const TextReader> reader = nullptr);

  int64_t size() const { return static_cast<int64_t>(sequences_.size()); }
  const model::Sequence& sequence(int64_t row) const { return sequences_.at(row); }
  std::vector<const model::Sequence*> all() const;
  const Corpus& corpus() const { return *corpus_; }
  const data::Image* picture(int64_t row) const;  // null when it has none

  // Gives a sequence some title and text under the same rules. For edited documents.
  void set_text(model::Sequence& sequence, const std::string& title, const std::string& text) const;
  // After Corpus::edit or add: reads the row anew (picture too).
  void reload(int64_t row);

 private:
  model::Sequence make(int64_t row);
  Corpus* corpus_;
  const data::Tokenizer* tokenizer_;
  model::ModelConfig config_;
  int64_t max_tokens_;
  std::shared_ptr<const TextReader> reader_;
  std::unique_ptr<data::ImageCache> images_;
  std::vector<std::shared_ptr<const data::Image>> pictures_;
  std::vector<model::Sequence> sequences_;
};

}  // namespace contexture::retriever
