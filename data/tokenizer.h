// Text to pieces and back. The only user of sentencepiece; a trained tokenizer is one .model file
// (docs/formats/tokenizer.md). Ids 0..9 are control pieces: only the program inserts them, no text
// encodes to one. Encoding and decoding are const and safe from any number of threads.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace contexture::data {

struct TokenizerTrainOptions {
  int64_t vocab_size =
      1500;  // everything counted: 10 control pieces, 256 bytes, characters, pieces
  std::string model_type = "bpe";  // "bpe" or "unigram"
  std::string normalization =
      "nmt_nfkc";  // "nmt_nfkc" (lossy: NFKC, white space squeezed) or "identity"
  double character_coverage = 0.9995;  // rarer characters are spelled in bytes
  int64_t max_line_bytes = 4192;       // longer lines are skipped, and counted
  bool split_digits = true;
  int num_threads = 2;
  template <typename Visitor>
  void for_each(Visitor&& visit) {
    visit("vocab_size", vocab_size, "pieces, control and byte pieces included");
    visit("model_type", model_type, "bpe or unigram");
    visit("normalization", normalization, "nmt_nfkc (lossy) or identity (keeps the text as it is)");
    visit("character_coverage", character_coverage,
          "share of characters that get a piece of their own");
    visit("max_line_bytes", max_line_bytes, "longer lines of the training text are skipped");
    visit("split_digits", split_digits, "every digit is a piece of its own");
    visit("num_threads", num_threads, "threads for training");
  }
};

struct TokenizerTrainReport {
  int64_t lines_used = 0;
  int64_t lines_empty = 0;
  int64_t lines_too_long = 0;  // over max_line_bytes
  int64_t lines_with_nul = 0;  // skipped
  int64_t lines_not_utf8 = 0;  // skipped
  int64_t vocab_size = 0;
};

// One piece of an encoded text: text.substr(begin, end - begin) is what it came from, in bytes of
// the text as given (before normalisation). A byte piece of a split character spans the whole
// character or is empty.
struct PieceSpan {
  int32_t id = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

class Tokenizer {
 public:
  enum : int32_t {
    kPad = 0,
    kUnk = 1,
    kBos = 2,
    kEos = 3,
    kImage = 4,
    kSep = 5,
    kQuery = 6,
    kDocument = 7,
    kMask = 8,
    kNull = 9,
    kNumControl = 10
  };

  // Loads a .model file. Throws DataError when it can't be read, is no tokenizer, or its control
  // ids differ.
  explicit Tokenizer(const std::string& path);
  static Tokenizer from_bytes(std::string model, const std::string& name);

  // Trains on lines (or on the lines of `text_file`) and writes `model_path` atomically. Throws
  // DataError with counts, and with the option to change, when nothing is left to train on or
  // vocab_size doesn't suit the text.
  static TokenizerTrainReport train(const std::vector<std::string>& lines,
                                    const std::string& model_path,
                                    const TokenizerTrainOptions& options = {});
  static TokenizerTrainReport train_from_file(const std::string& text_file,
                                              const std::string& model_path,
                                              const TokenizerTrainOptions& options = {});

  // Never yields an id below kNumControl, whatever the text holds. Adds no begin or end piece.
  std::vector<int32_t> encode(std::string_view text) const;
  std::vector<PieceSpan> encode_with_offsets(std::string_view text) const;

  // Control pieces decode to nothing. Throws UserError for ids outside [0, vocab_size).
  std::string decode(const std::vector<int32_t>& ids) const;

  int64_t vocab_size() const;
  std::string piece(int32_t id) const;  // its spelling, e.g. "<s>", "<0x41>" or "\u2581the"
  bool is_control(int32_t id) const { return id >= 0 && id < kNumControl; }
  const std::string& model_bytes() const;  // the .model file's bytes, for checkpoints

 private:
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace contexture::data
