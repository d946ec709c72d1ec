#include "eval/answers.h"

#include <algorithm>
#include <map>

#include "core/error.h"
#include "eval/internal/unicode_text.h"

namespace contexture::eval {
namespace {

bool is_ascii_punctuation(char32_t c) {
  return (c >= 0x21 && c <= 0x2f) || (c >= 0x3a && c <= 0x40) || (c >= 0x5b && c <= 0x60) ||
         (c >= 0x7b && c <= 0x7e);
}

// Python's \w without the underscore, which is gone by then: letters and numbers, not marks.
bool is_word(char32_t c) { return (internal::category(c) & (U_GC_L_MASK | U_GC_N_MASK)) != 0; }

bool is_article(const std::u32string& word) {
  return word == U"a" || word == U"an" || word == U"the";
}

std::u32string lowered_without_punctuation(std::string_view text) {
  std::u32string out = internal::lower(internal::to_utf32(text));
  std::erase_if(out, is_ascii_punctuation);
  return out;
}

// Each run of word characters that is an article becomes one space.
std::u32string without_articles(const std::u32string& text) {
  std::u32string out;
  out.reserve(text.size());
  size_t i = 0;
  while (i < text.size()) {
    size_t end = i;
    while (end < text.size() && is_word(text[end])) ++end;
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
  std::vector<std::string> tokens;
  for (const auto& word : internal::split(without_articles(lowered_without_punctuation(text)))) {
    tokens.push_back(internal::to_utf8(word));
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
