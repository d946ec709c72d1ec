// Texts as a published encoder reads them: a Hugging Face folder's WordPiece ids.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/wordpiece.h"
#include "model/sentence_encoder_config.h"

namespace contexture::retriever {

// Const and safe from any number of threads.
class TextReader {
 public:
  // vocab.txt (and tokenizer_config.json) of the folder that `config` was read from. Throws
  // DataError as WordPiece::load, and when the vocabulary is larger than the model's.
  TextReader(const std::filesystem::path& folder, const model::SentenceEncoderConfig& config);

  // [CLS] pieces [SEP], at most max_tokens().
  std::vector<int32_t> read(std::string_view text) const {
    return tokenizer_.encode(text, max_tokens_);
  }
  int64_t max_tokens() const { return max_tokens_; }
  const data::WordPiece& tokenizer() const { return tokenizer_; }

 private:
  data::WordPiece tokenizer_;
  int64_t max_tokens_;
};

// What a sentence encoder reads of a document: title and text with a blank between, as BEIR's
// evaluation joins them.
std::string document_text(const std::string& title, const std::string& text);

}  // namespace contexture::retriever
