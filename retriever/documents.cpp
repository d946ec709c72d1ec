#include "retriever/documents.h"

#include "core/error.h"

namespace contexture::retriever {

Documents::Documents(Corpus& corpus, const data::Tokenizer& tokenizer,
                     const model::ModelConfig& config, int64_t max_tokens, data::BadRecords& bad,
                     std::shared_ptr<const TextReader> reader)
    : corpus_(&corpus),
      tokenizer_(&tokenizer),
      config_(config),
      max_tokens_(max_tokens),
      reader_(std::move(reader)) {
  const int side = static_cast<int>(config.image_size);
  data::ImageCache::Options options;
  options.height = options.width = side;
  images_ = std::make_unique<data::ImageCache>(corpus.images(), options);
  pictures_.resize(corpus.size());
  for (int64_t row = 0; row < corpus.size(); ++row) {
    try {
      sequences_.push_back(make(row));
    } catch (const DataError& error) {
      bad.add(corpus.document(row).id, "picture", error.what());
      pictures_[row] = nullptr;
      sequences_.push_back({{}, nullptr, static_cast<uint64_t>(row) + 1});
      set_text(sequences_.back(), corpus.document(row).title, corpus.document(row).text);
    }
    CONTEXTURE_DATA_REQUIRE(!sequences_.back().tokens.empty() || sequences_.back().patches,
                            "document ", corpus.document(row).id,
                            " is empty: it has no title, text or picture");
    CONTEXTURE_DATA_REQUIRE(!reader_ || !sequences_.back().tokens.empty(), "document ",
                            corpus.document(row).id,
                            " has no title and no text, and model.text_encoder embeds text alone. "
                            "Leave it out, or give it a title.");
  }
}

model::Sequence Documents::make(int64_t row) {
  const data::Document& document = corpus_->document(row);
  model::Sequence s;
  s.key = static_cast<uint64_t>(row) + 1;
  set_text(s, document.title, document.text);
  if (!document.image.empty()) {
    pictures_[row] = images_->get(document.image);
    s.patches = model::make_patches(config_, pictures_[row]->rgb.data());
  }
  return s;
}

void Documents::set_text(model::Sequence& sequence, const std::string& title,
                         const std::string& text) const {
  std::vector<int32_t>& tokens = sequence.tokens;
  tokens.clear();
  if (!title.empty()) {
    tokens = tokenizer_->encode(title);
    tokens.push_back(data::Tokenizer::kSep);
  }
  const std::vector<int32_t> body = tokenizer_->encode(text);
  tokens.insert(tokens.end(), body.begin(), body.end());
  if (static_cast<int64_t>(tokens.size()) > max_tokens_) tokens.resize(max_tokens_);
  if (reader_) sequence.words = reader_->read(document_text(title, text));
}

std::vector<const model::Sequence*> Documents::all() const {
  std::vector<const model::Sequence*> out;
  out.reserve(sequences_.size());
  for (const auto& s : sequences_) out.push_back(&s);
  return out;
}

const data::Image* Documents::picture(int64_t row) const { return pictures_.at(row).get(); }

void Documents::reload(int64_t row) {
  CONTEXTURE_INVARIANT(row <= size(), "row ", row, " is not the next one after ", size());
  if (row == size()) {
    pictures_.emplace_back();
    sequences_.emplace_back();
  }
  sequences_[row] = make(row);
}

}  // namespace contexture::retriever
