#include "eval/vqa.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "eval/answers.h"
#include "eval/internal/unicode_text.h"
#include "eval/internal/vqa_contractions.h"

namespace contexture::eval {
namespace {

using internal::is_digit;

bool comma_parts_digits(const std::u32string& text) {
  for (size_t i = 1; i + 1 < text.size(); ++i) {
    if (text[i] == U',' && is_digit(text[i - 1]) && is_digit(text[i + 1])) return true;
  }
  return false;
}

bool stands_by_a_space(const std::u32string& text, char32_t c) {
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if ((text[i] == c && text[i + 1] == U' ') || (text[i] == U' ' && text[i + 1] == c)) return true;
  }
  return false;
}

std::string without_line_ends(std::string_view text) {
  std::u32string letters = internal::to_utf32(text);
  for (char32_t& c : letters) {
    if (c == U'\n' || c == U'\t') c = U' ';
  }
  return internal::to_utf8(internal::strip(letters));
}

std::string normalized(const std::string& answer) {
  return vqa_digits_and_articles(vqa_punctuation(answer));
}

}  // namespace

std::string vqa_punctuation(std::string_view answer) {
  constexpr std::u32string_view kPunctuation = U";/[]\"{}()=+\\_-><@`,?!";
  constexpr int kMostStops =
      32;  // the reference hands a flag where a count goes: full stops after these stay
  const std::u32string text = internal::to_utf32(answer);
  const bool digits = comma_parts_digits(text);
  std::u32string out = text;
  for (const char32_t mark : kPunctuation) {
    if (digits || stands_by_a_space(text, mark)) {
      std::erase(out, mark);
    } else {
      std::replace(out.begin(), out.end(), mark, U' ');
    }
  }
  std::u32string kept;
  int stops = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const bool number_follows = i + 1 < out.size() && is_digit(out[i + 1]);
    if (out[i] == U'.' && !number_follows && stops++ < kMostStops) continue;
    kept.push_back(out[i]);
  }
  return internal::to_utf8(kept);
}

std::string vqa_digits_and_articles(std::string_view answer) {
  static const std::unordered_map<std::string_view, std::string_view> kNumbers{
      {"none", "0"}, {"zero", "0"}, {"one", "1"},   {"two", "2"},   {"three", "3"}, {"four", "4"},
      {"five", "5"}, {"six", "6"},  {"seven", "7"}, {"eight", "8"}, {"nine", "9"},  {"ten", "10"}};
  std::string out;
  for (const auto& letters : internal::split(internal::lower(internal::to_utf32(answer)))) {
    std::string word = internal::to_utf8(letters);
    if (const auto number = kNumbers.find(word); number != kNumbers.end()) word = number->second;
    if (word == "a" || word == "an" || word == "the") continue;
    if (const auto whole = internal::kContractions.find(word);
        whole != internal::kContractions.end())
      word = whole->second;
    out += (out.empty() ? "" : " ") + word;
  }
  return out;
}

double vqa_accuracy(std::string_view prediction, const std::vector<std::string>& answers) {
  if (answers.empty()) return 0.0;
  std::string said = without_line_ends(prediction);
  std::vector<std::string> given;
  for (const std::string& answer : answers) given.push_back(without_line_ends(answer));
  if (std::set<std::string>(given.begin(), given.end()).size() > 1) {
    for (std::string& answer : given) answer = normalized(answer);
    said = normalized(said);
  }
  const auto matches = std::count(given.begin(), given.end(), said);
  double sum = 0.0;
  for (const std::string& left_out : given) {
    const auto others = matches - (left_out == said ? 1 : 0);
    sum += std::min(1.0, static_cast<double>(others) / 3.0);
  }
  return sum / static_cast<double>(given.size());
}

std::vector<data::VqaAnnotation> vqa_annotations(const std::vector<data::Example>& examples) {
  std::vector<data::VqaAnnotation> out;
  for (const data::Example& example : examples) {
    std::vector<std::string> answers = json_get_or<std::vector<std::string>>(
        example.meta, "annotator_answers", example.answers, example.id);
    if (answers.size() > 1) out.push_back({example.id, std::move(answers), example.type});
  }
  CONTEXTURE_DATA_REQUIRE(
      !out.empty(), "none of ", examples.size(),
      " examples has the answers of several annotators ('annotator_answers', as data convert "
      "--from "
      "vqa writes them, or several 'answers'), which VQA accuracy compares with. Use eval qa.");
  return out;
}

ScoreTable score_vqa(const std::vector<data::VqaAnnotation>& references,
                     const std::vector<std::string>& predictions) {
  CONTEXTURE_INVARIANT(references.size() == predictions.size());
  ScoreTable table;
  table.add("accuracy", 100.0);
  GroupMeans by_type;
  for (size_t i = 0; i < references.size(); ++i) {
    CONTEXTURE_DATA_REQUIRE(!references[i].answers.empty(), "question '", references[i].id,
                            "' has no answer to score against");
    table.ids.push_back(references[i].id);
    table.columns[0].values.push_back(vqa_accuracy(predictions[i], references[i].answers));
    if (!references[i].type.empty())
      by_type.add("accuracy-" + references[i].type, table.columns[0].values.back());
  }
  by_type.append_to(table.totals, 100.0);
  return table;
}

std::vector<EncyclopedicReference> encyclopedic_references(
    const std::vector<data::Example>& examples) {
  std::vector<EncyclopedicReference> references;
  for (const data::Example& example : examples) {
    references.push_back(
        {example.id, json_get<std::string>(example.meta, "answer", example.id), example.type});
  }
  return references;
}

ScoreTable score_aokvqa(const std::vector<data::VqaAnnotation>& references,
                        const std::vector<std::string>& predictions) {
  CONTEXTURE_INVARIANT(references.size() == predictions.size());
  ScoreTable table;
  auto& accuracy = table.add("accuracy", 100.0);
  for (size_t i = 0; i < references.size(); ++i) {
    const auto& answers = references[i].answers;
    const auto matches = std::count(answers.begin(), answers.end(), predictions[i]);
    table.ids.push_back(references[i].id);
    accuracy.values.push_back(std::min(1.0, static_cast<double>(matches) / 3.0));
  }
  return table;
}

ScoreTable score_encyclopedic(const std::vector<EncyclopedicReference>& references,
                              const std::vector<std::string>& predictions) {
  CONTEXTURE_INVARIANT(references.size() == predictions.size());
  const auto split = [](std::string_view text, std::string_view by) {
    std::vector<std::string> parts;
    for (size_t begin = 0;;) {
      const size_t end = text.find(by, begin);
      parts.emplace_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
      if (end == std::string_view::npos) return parts;
      begin = end + by.size();
    }
  };
  // Multi-answer predictions are lists parted by "&&" or commas.
  const auto parts = [&](const std::string& text) {
    std::set<std::string> out;
    for (const std::string& part : split(text, text.find("&&") != std::string::npos ? "&&" : ","))
      out.insert(normalize_answer(part));
    out.erase("");
    return out;
  };
  ScoreTable table;
  table.add("em", 100.0);
  table.add("f1", 100.0);
  GroupMeans by_type;
  for (size_t i = 0; i < references.size(); ++i) {
    const EncyclopedicReference& reference = references[i];
    const std::vector<std::string> alternatives = split(reference.answer, "|");
    double em = exact_match(predictions[i], alternatives);
    if (reference.type == "multi_answer") {
      const auto said = parts(predictions[i]);
      for (const std::string& alternative : alternatives) {
        const auto wanted = parts(alternative);
        const auto both = static_cast<double>(std::count_if(
            said.begin(), said.end(), [&](const auto& p) { return wanted.contains(p); }));
        const double either = static_cast<double>(said.size() + wanted.size()) - both;
        if (either > 0 && both / either >= 0.5) em = 1.0;
      }
    }
    table.ids.push_back(reference.id);
    table.columns[0].values.push_back(em);
    table.columns[1].values.push_back(f1_score(predictions[i], alternatives));
    by_type.add("em-" + reference.type, em);
  }
  by_type.append_to(table.totals, 100.0);
  return table;
}

}  // namespace contexture::eval
