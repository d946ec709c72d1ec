#include "eval/answers.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <map>

#include "core/error.h"

namespace contexture::eval {
namespace {

// Python's str.isspace(): what the reference scorer's split() cuts at.
bool is_space(UChar32 c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

bool is_ascii_punctuation(UChar32 c) {
  return (c >= 0x21 && c <= 0x2f) || (c >= 0x3a && c <= 0x40) || (c >= 0x5b && c <= 0x60) ||
         (c >= 0x7b && c <= 0x7e);
}

// Python's \w without the underscore, which is gone by then: letters and numbers, not marks.
bool is_word(UChar32 c) {
  const auto mask = U_GET_GC_MASK(c);
  return (mask & (U_GC_L_MASK | U_GC_N_MASK)) != 0;
}

bool is_article(const std::u32string& word) {
  return word == U"a" || word == U"an" || word == U"the";
}

std::u32string lowered_without_punctuation(std::string_view text) {
  auto unicode = icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
  unicode.toLower(icu::Locale::getRoot());
  std::u32string out;
  out.reserve(static_cast<size_t>(unicode.length()));
  for (int32_t i = 0; i < unicode.length(); i = unicode.moveIndex32(i, 1)) {
    const UChar32 c = unicode.char32At(i);
    if (!is_ascii_punctuation(c)) out.push_back(static_cast<char32_t>(c));
  }
  return out;
}

// Each run of word characters that is an article becomes one space.
std::u32string without_articles(const std::u32string& text) {
  std::u32string out;
  out.reserve(text.size());
  size_t i = 0;
  while (i < text.size()) {
    size_t end = i;
    while (end < text.size() && is_word(static_cast<UChar32>(text[end]))) ++end;
    if (end == i) {
      out.push_back(text[i++]);
      continue;
    }
    const std::u32string word = text.substr(i, end - i);
    out += is_article(word) ? U" " : word;
    i = end;
  }
  return out;
}

std::string utf8(const std::u32string& text) {
  std::string out;
  icu::UnicodeString::fromUTF32(reinterpret_cast<const UChar32*>(text.data()),
                                static_cast<int32_t>(text.size()))
      .toUTF8String(out);
  return out;
}

double token_f1(const std::vector<std::string>& prediction,
                const std::vector<std::string>& reference) {
  if (prediction.empty() || reference.empty()) return prediction == reference ? 1.0 : 0.0;
  std::map<std::string, int> available;
  for (const auto& token : reference) ++available[token];
  int same = 0;
  for (const auto& token : prediction) {
    const auto found = available.find(token);
    if (found == available.end() || found->second == 0) continue;
    --found->second;
    ++same;
  }
  if (same == 0) return 0.0;
  const double precision = static_cast<double>(same) / static_cast<double>(prediction.size());
  const double recall = static_cast<double>(same) / static_cast<double>(reference.size());
  return 2.0 * precision * recall / (precision + recall);
}

double mean_percent(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double v : values) sum += v;
  return 100.0 * sum / static_cast<double>(values.size());
}

}  // namespace

std::vector<std::string> answer_tokens(std::string_view text) {
  const std::u32string clean = without_articles(lowered_without_punctuation(text));
  std::vector<std::string> tokens;
  size_t i = 0;
  while (i < clean.size()) {
    size_t end = i;
    while (end < clean.size() && !is_space(static_cast<UChar32>(clean[end]))) ++end;
    if (end > i) tokens.push_back(utf8(clean.substr(i, end - i)));
    i = end + 1;
  }
  return tokens;
}

std::string normalize_answer(std::string_view text) {
  std::string out;
  for (const auto& token : answer_tokens(text)) {
    if (!out.empty()) out += ' ';
    out += token;
  }
  return out;
}

double exact_match(std::string_view prediction, const std::vector<std::string>& references) {
  const std::string normalized = normalize_answer(prediction);
  return std::any_of(references.begin(), references.end(),
                     [&](const std::string& r) { return normalize_answer(r) == normalized; })
             ? 1.0
             : 0.0;
}

double f1_score(std::string_view prediction, const std::vector<std::string>& references) {
  const auto tokens = answer_tokens(prediction);
  double best = 0.0;
  for (const auto& reference : references) {
    best = std::max(best, token_f1(tokens, answer_tokens(reference)));
  }
  return best;
}

AnswerScores score_answers(const std::vector<std::string>& predictions,
                           const std::vector<std::vector<std::string>>& references) {
  CONTEXTURE_REQUIRE(predictions.size() == references.size() && !predictions.empty(),
                     "scoring answers needs one list of references for each prediction, got ",
                     predictions.size(), " predictions and ", references.size(), " lists");
  AnswerScores scores;
  for (size_t i = 0; i < predictions.size(); ++i) {
    scores.em_each.push_back(exact_match(predictions[i], references[i]));
    scores.f1_each.push_back(f1_score(predictions[i], references[i]));
  }
  scores.em = mean_percent(scores.em_each);
  scores.f1 = mean_percent(scores.f1_each);
  return scores;
}

}  // namespace contexture::eval
