// The tokenizer of BERT-family encoders (Devlin et al., arXiv:1810.04805): text is cleaned, CJK
// characters set apart, lower-cased and stripped of accents where the vocabulary wants that, split
// at white space and punctuation, and each word cut into the longest pieces that vocab.txt has.
// Gives the ids that Hugging Face's tokenizers give, except that
// "[SEP]" and its like in a text are plain characters: no text encodes to a control token (cases:
// prompt injection). Encoding is const and safe from any number of threads.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace contexture::data {

struct WordPieceOptions {
  bool lower_case = true;
  bool strip_accents = true;
  bool split_cjk = true;
  int64_t max_word_chars = 100;  // longer words are [UNK]
  std::string unknown = "[UNK]", begin = "[CLS]", end = "[SEP]";
};

class WordPiece {
 public:
  // vocabulary: one token a line, its id the line's number from 0. Throws DataError naming `source`
  // when a control token is missing, or a token is there twice.
  WordPiece(std::string_view vocabulary, const std::string& source,
            const WordPieceOptions& options = {});
  // vocab.txt, and tokenizer_config.json where there is one, of a Hugging Face folder.
  static WordPiece load(const std::filesystem::path& folder);

  // [CLS] pieces [SEP], at most max_tokens (>= 2) of them: pieces beyond are cut. Malformed UTF-8
  // is dropped.
  std::vector<int32_t> encode(std::string_view text, int64_t max_tokens) const;

  int64_t vocab_size() const { return static_cast<int64_t>(tokens_.size()); }
  const std::string& token(int32_t id) const;  // UserError outside [0, vocab_size)
  const WordPieceOptions& options() const { return options_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  int32_t find(const std::string& token, const std::string& source) const;
  void add_word(std::string_view word, std::vector<int32_t>& ids) const;

  WordPieceOptions options_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  size_t longest_ = 0;  // bytes of the longest token
  int32_t unknown_ = 0, begin_ = 0, end_ = 0;
};

}  // namespace contexture::data
