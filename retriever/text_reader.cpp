#include "retriever/text_reader.h"

#include "core/error.h"

namespace contexture::retriever {

TextReader::TextReader(const std::filesystem::path& folder,
                       const model::SentenceEncoderConfig& config)
    : tokenizer_(data::WordPiece::load(folder)), max_tokens_(config.max_tokens) {
  CONTEXTURE_DATA_REQUIRE(tokenizer_.vocab_size() <= config.vocab, (folder / "vocab.txt").string(),
                          " has ", tokenizer_.vocab_size(), " tokens, config.json says vocab_size ",
                          config.vocab, ". One of them is another model's.");
}

std::string document_text(const std::string& title, const std::string& text) {
  return title.empty() ? text : text.empty() ? title : title + " " + text;
}

}  // namespace contexture::retriever
