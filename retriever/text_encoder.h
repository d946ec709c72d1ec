// A published sentence encoder with its tokenizer: texts in, vectors out. For indexing a corpus
// with weights that other people trained. One thread at a time; each call uses all of LibTorch's.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "model/sentence_encoder.h"
#include "retriever/text_reader.h"

namespace contexture::retriever {

class TextEncoder {
 public:
  // A Hugging Face folder. max_tokens 0: the folder's own limit. Throws DataError as WordPiece and
  // SentenceEncoder do.
  static TextEncoder load(const std::filesystem::path& folder, model::EncoderPrecision precision,
                          int64_t max_tokens = 0);

  int64_t dim() const { return encoder_.dim(); }
  int64_t max_tokens() const { return reader_.max_tokens(); }
  // Of weights, vocabulary, pooling and the token limit: what makes vectors comparable. The
  // precision is no part of it.
  const std::string& hash() const { return hash_; }

  // [texts, dim()], row-major. Texts of one length are computed together, whatever their order
  // here.
  std::vector<float> embed(std::span<const std::string> texts) const;
  int64_t tokens_embedded() const { return tokens_embedded_; }  // by all calls so far

 private:
  TextEncoder(TextReader reader, model::SentenceEncoder encoder, std::string hash);
  TextReader reader_;
  model::SentenceEncoder encoder_;
  std::string hash_;
  mutable int64_t tokens_embedded_ = 0;
};

}  // namespace contexture::retriever
