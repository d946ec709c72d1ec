#include <sentencepiece_trainer.h>

#include <string>
#include <unordered_map>

#include "core/error.h"
#include "core/files.h"
#include "data/internal/utf8.h"
#include "data/tokenizer.h"

namespace contexture::data {
namespace {

class Lines : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::vector<std::string>& lines) : lines_(lines) {}
  bool done() const override { return at_ >= lines_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return lines_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& lines_;
  size_t at_ = 0;
};

std::string counts(const TokenizerTrainReport& report) {
  return concat(report.lines_used, " lines used, ", report.lines_empty, " empty, ",
                report.lines_too_long, " longer than max_line_bytes, ", report.lines_with_nul,
                " with a NUL byte, ", report.lines_not_utf8, " not UTF-8");
}

std::vector<std::string> usable(const std::vector<std::string>& lines,
                                const TokenizerTrainOptions& options,
                                TokenizerTrainReport& report) {
  std::vector<std::string> kept;
  for (const std::string& line : lines) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      ++report.lines_empty;
    } else if (line.find('\0') != std::string::npos) {
      ++report.lines_with_nul;
    } else if (static_cast<int64_t>(line.size()) > options.max_line_bytes) {
      ++report.lines_too_long;
    } else if (!internal::valid_utf8(line)) {
      ++report.lines_not_utf8;
    } else {
      kept.push_back(line);
      ++report.lines_used;
    }
  }
  return kept;
}

void check_options(const TokenizerTrainOptions& options) {
  CONTEXTURE_USAGE_REQUIRE(options.model_type == "bpe" || options.model_type == "unigram",
                           "model_type=", options.model_type, " is neither bpe nor unigram.");
  CONTEXTURE_USAGE_REQUIRE(
      options.normalization == "nmt_nfkc" || options.normalization == "identity",
      "normalization=", options.normalization, " is neither nmt_nfkc nor identity.");
  CONTEXTURE_USAGE_REQUIRE(options.character_coverage > 0.9 && options.character_coverage <= 1.0,
                           "character_coverage=", options.character_coverage,
                           " is outside (0.9, 1].");
  constexpr int64_t kLeast = Tokenizer::kNumControl + 256 + 1;
  CONTEXTURE_USAGE_REQUIRE(options.vocab_size >= kLeast && options.vocab_size <= 1'000'000,
                           "vocab_size=", options.vocab_size, " is outside ", kLeast,
                           " .. 1000000: 10 control pieces and 256 byte pieces are always there.");
  CONTEXTURE_USAGE_REQUIRE(options.max_line_bytes > 0 && options.num_threads > 0,
                           "max_line_bytes and num_threads must be positive.");
}

std::string yes_no(bool yes) { return yes ? "true" : "false"; }

}  // namespace

TokenizerTrainReport Tokenizer::train(const std::vector<std::string>& lines,
                                      const std::string& model_path,
                                      const TokenizerTrainOptions& options) {
  check_options(options);
  TokenizerTrainReport report;
  const std::vector<std::string> kept = usable(lines, options, report);
  CONTEXTURE_DATA_REQUIRE(
      !kept.empty(), "nothing to train a tokenizer on: ", counts(report),
      report.lines_too_long > 0 ? ". Raise max_line_bytes, or break the lines up." : ".");
  const bool keep = options.normalization == "identity";
  const std::unordered_map<std::string, std::string> arguments = {
      {"model_type", options.model_type},
      {"vocab_size", std::to_string(options.vocab_size)},
      {"character_coverage", std::to_string(options.character_coverage)},
      {"max_sentence_length", std::to_string(options.max_line_bytes)},
      {"num_threads", std::to_string(options.num_threads)},
      {"normalization_rule_name", options.normalization},
      {"remove_extra_whitespaces", yes_no(!keep)},
      {"split_digits", yes_no(options.split_digits)},
      {"byte_fallback", "true"},
      {"pad_id", "0"},
      {"unk_id", "1"},
      {"bos_id", "2"},
      {"eos_id", "3"},
      {"control_symbols", "<image>,<sep>,<query>,<document>,<mask>,<null>"},
      {"minloglevel", "2"},
  };
  Lines iterator(kept);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &iterator, &model);
  if (!status.ok()) {
    // "./src/trainer_interface.cc(660) [condition] Vocabulary size too high ...": the sentence is
    // what helps.
    std::string reason = status.message();
    if (const size_t place = reason.rfind("] "); place != std::string::npos)
      reason = reason.substr(place + 2);
    while (!reason.empty() && (reason.back() == '.' || reason.back() == '\n')) reason.pop_back();
    const bool too_large = reason.find("too high") != std::string::npos;
    throw DataError(concat("the tokenizer can't be trained with vocab_size=", options.vocab_size,
                           " on this text (", counts(report), "): ", reason,
                           too_large ? ". Lower vocab_size, or give more text."
                                     : ". Raise vocab_size, or lower character_coverage."));
  }
  report.vocab_size = from_bytes(model, model_path).vocab_size();  // also proves that it loads
  write_file_atomic(model_path, model);
  return report;
}

TokenizerTrainReport Tokenizer::train_from_file(const std::string& text_file,
                                                const std::string& model_path,
                                                const TokenizerTrainOptions& options) {
  const std::string text = read_file(text_file);
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    if (!lines.back().empty() && lines.back().back() == '\r') lines.back().pop_back();
    begin = end + 1;
  }
  return train(lines, model_path, options);
}

}  // namespace contexture::data
