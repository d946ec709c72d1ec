#include <algorithm>
#include <cctype>
#include <charconv>

#include "core/error.h"
#include "core/json.h"
#include "eval/answers.h"
#include "eval/vqa.h"

namespace contexture::eval {
namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }

// A minus after a digit parts two numbers: "9-10" is 9 and 10.
std::string with_ranges_apart(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '-' && i > 0 && digit(text[i - 1])) {
      out += " - ";
    } else {
      out += text[i];
    }
  }
  return out;
}

// Where the number that starts at i ends, or i when none does: sign, digits with commas before
// every three, fraction, exponent.
size_t number_end(const std::string& text, size_t i) {
  const auto at = [&](size_t p) { return p < text.size() ? text[p] : '\0'; };
  size_t p = i;
  if (at(p) == '-' || at(p) == '+') ++p;
  if (at(p) == '.') ++p;
  if (!digit(at(p))) return i;
  while (digit(at(p))) ++p;
  while (at(p) == ',' && digit(at(p + 1)) && digit(at(p + 2)) && digit(at(p + 3))) p += 4;
  if (at(p) == '.') ++p;
  while (digit(at(p))) ++p;
  if (at(p) == 'e' || at(p) == 'E') {
    size_t q = p + 1;
    if (at(q) == '-' || at(q) == '+') ++q;
    if (digit(at(q))) {
      while (digit(at(q))) ++q;
      p = q;
    }
  }
  return p;
}

// As the reference reads what it found: commas out, full stops at the ends out (".5" is 5), what
// follows a second full stop out.
double to_number(std::string text) {
  std::erase(text, ',');
  while (!text.empty() && text.back() == '.') text.pop_back();
  while (!text.empty() && text.front() == '.') text.erase(0, 1);
  if (std::count(text.begin(), text.end(), '.') > 1) text.resize(text.find('.'));
  if (!text.empty() && text.front() == '+') text.erase(0, 1);
  double value = 0.0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

double share(double part, double whole) { return whole > 0.0 ? part / whole : 0.0; }

}  // namespace

NumberRange parse_number_range(std::string_view given) {
  const std::string text = with_ranges_apart(given);
  std::vector<double> numbers;
  for (size_t i = 0; i < text.size() && numbers.size() < 2;) {
    const size_t end = number_end(text, i);
    if (end > i) numbers.push_back(to_number(text.substr(i, end - i)));
    i = std::max(end, i + 1);
  }
  if (numbers.empty()) return {0.0, 0.0, true};
  if (numbers.size() == 2 && numbers[0] <= numbers[1]) return {numbers[0], numbers[1], true};
  return {numbers[0], numbers[0], false};
}

double number_in_range(const NumberRange& prediction, double low, double high) {
  const auto inside = [&](double number) { return low <= number && number <= high; };
  if (!prediction.is_range) return inside(prediction.low) ? 1.0 : 0.0;
  if (inside(prediction.low) && inside(prediction.high)) return 1.0;
  constexpr double kTiny = 1e-12;  // the reference's guard against ranges without length
  const double overlap = std::max(0.0, std::min(prediction.high, std::max(low, high)) -
                                           std::max(prediction.low, std::min(low, high)));
  const double either =
      (prediction.high - prediction.low + kTiny) + (std::abs(high - low) + kTiny) - overlap;
  return share(overlap, either) >= 0.5 - kTiny ? 1.0 : 0.0;
}

ScoreTable score_infoseek(const std::vector<InfoSeekReference>& references,
                          const std::vector<std::string>& predictions) {
  CONTEXTURE_INVARIANT(references.size() == predictions.size());
  ScoreTable table;
  table.add("accuracy", 100.0);
  GroupMeans groups;
  for (size_t i = 0; i < references.size(); ++i) {
    const InfoSeekReference& reference = references[i];
    const double right = reference.range.has_value()
                             ? number_in_range(parse_number_range(predictions[i]),
                                               reference.range->first, reference.range->second)
                             : exact_match(predictions[i], reference.answers);
    table.ids.push_back(reference.id);
    table.columns[0].values.push_back(right);
    groups.add(reference.kind, right);
    groups.add(reference.unseen_entity ? "unseen_entity" : "unseen_question", right);
  }
  groups.append_to(table.totals, 100.0);
  constexpr double kLeast = 1e-12;  // the reference's stand-in for a score of 0
  const auto question = groups.mean("unseen_question"), entity = groups.mean("unseen_entity");
  const double a = std::max(100.0 * question.value_or(*(entity ? entity : question)), kLeast);
  const double b = std::max(100.0 * entity.value_or(*(question ? question : entity)), kLeast);
  table.totals.emplace_back("score", 2.0 / (1.0 / a + 1.0 / b));
  return table;
}

std::vector<InfoSeekReference> infoseek_references(const std::vector<data::Example>& examples) {
  std::vector<InfoSeekReference> references;
  for (const data::Example& example : examples) {
    InfoSeekReference reference;
    reference.id = example.id;
    const Json evaluated = example.meta.value("answer_eval", Json());
    const Json& first = evaluated.is_array() && !evaluated.empty() ? evaluated[0] : evaluated;
    std::string kind = json_get_or<std::string>(example.meta, "question_type", "", example.id);
    std::transform(kind.begin(), kind.end(), kind.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const bool has_range = first.is_object() && first.contains("range");
    reference.kind = kind.empty() ? (has_range ? "numerical" : "string") : kind;
    if (reference.kind == "numerical") {
      CONTEXTURE_DATA_REQUIRE(has_range, "question '", example.id,
                              "' asks for a number, but its answer_eval has no range");
      const auto range = json_get<std::vector<double>>(first, "range", example.id);
      CONTEXTURE_DATA_REQUIRE(range.size() >= 2, "question '", example.id,
                              "': a range has two numbers, not ", range.size());
      reference.range = {range[0], range[1]};
    } else {
      reference.answers = evaluated.is_null() ? example.answers
                                              : json_get<std::vector<std::string>>(
                                                    example.meta, "answer_eval", example.id);
      CONTEXTURE_DATA_REQUIRE(!reference.answers.empty(), "question '", example.id,
                              "' has no answer to score against");
    }
    reference.unseen_entity = !json_get_or<std::string>(example.meta, "data_split", "", example.id)
                                   .ends_with("unseen_question");
    references.push_back(std::move(reference));
  }
  return references;
}

}  // namespace contexture::eval
