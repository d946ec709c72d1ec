#include "data/spans.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <array>

#include "data/internal/utf8.h"

namespace contexture::data {
namespace {

constexpr size_t kMostWords = 10;

using internal::is_word_character;
using internal::next_code_point;

bool joins_words(uint32_t c) {
  return c == '\'' || c == 0x2019 || c == '-' || c == '.' || c == ',';
}

std::string_view of(std::string_view text, const TextSpan& span) {
  return text.substr(span.begin, span.end - span.begin);
}

template <size_t N>
bool among(std::string_view word, const std::array<std::string_view, N>& known) {
  return std::find(known.begin(), known.end(), word) != known.end();
}

bool is_month(std::string_view word) {
  static constexpr std::array<std::string_view, 12> kMonths{
      "January", "February", "March",     "April",   "May",      "June",
      "July",    "August",   "September", "October", "November", "December"};
  return among(word, kMonths);
}

// Capitalised at the start of a sentence without being a name.
bool is_function_word(std::string_view word) {
  static constexpr std::array<std::string_view, 58> kWords{
      "A",       "After",  "All",   "Although", "An",    "And",     "Another", "As",    "At",
      "Because", "Before", "Both",  "But",      "By",    "During",  "Each",    "Every", "For",
      "From",    "He",     "Her",   "His",      "How",   "However", "If",      "In",    "Into",
      "It",      "Its",    "Many",  "Most",     "No",    "Not",     "Of",      "On",    "Once",
      "One",     "Only",   "Or",    "Other",    "Our",   "She",     "Since",   "So",    "Some",
      "That",    "The",    "Their", "There",    "These", "They",    "This",    "Those", "To",
      "Under",   "When",   "While", "With"};
  return among(word, kWords);
}

// Inside a name, but not at its ends.
bool is_particle(std::string_view word) {
  static constexpr std::array<std::string_view, 16> kParticles{
      "of",  "de",  "la",  "le",  "du",  "da", "di",  "del",
      "van", "von", "der", "den", "ter", "al", "bin", "the"};
  return among(word, kParticles);
}

bool begins_with_digit(std::string_view word) {
  size_t at = 0;
  return u_isdigit(static_cast<UChar32>(next_code_point(word, at)));
}

// "Oxford", "UNESCO"; not "I" nor "A".
bool is_capitalised(std::string_view word) {
  size_t at = 0;
  const auto first = static_cast<UChar32>(next_code_point(word, at));
  return at < word.size() && (u_isupper(first) || u_istitle(first));
}

bool only_blanks(std::string_view text, bool commas) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [commas](char c) {
    return c == ' ' || (commas && c == ',');
  });
}

}  // namespace

std::vector<TextSpan> words(std::string_view text) {
  std::vector<TextSpan> out;
  size_t at = 0;
  while (at < text.size()) {
    const size_t begin = at;
    if (!is_word_character(next_code_point(text, at))) continue;
    size_t end = at;
    for (bool joined = false; at < text.size();) {
      const uint32_t c = next_code_point(text, at);
      if (is_word_character(c)) {
        joined = false;
        end = at;
      } else if (joined || !joins_words(c) ||
                 ((c == '.' || c == ',') && !begins_with_digit(text.substr(begin)))) {
        break;
      } else {
        joined = true;
      }
    }
    out.push_back({begin, end});
    at = end;
  }
  return out;
}

std::vector<TextSpan> salient_spans(std::string_view sentence) {
  const std::vector<TextSpan> all = words(sentence);
  const auto word = [&](size_t w) { return of(sentence, all[w]); };
  const auto gap = [&](size_t w) {
    return sentence.substr(all[w].end, all[w + 1].begin - all[w].end);
  };  // behind word w
  const auto is_name = [&](size_t w) {
    if (!is_capitalised(word(w)) || begins_with_digit(word(w)) || is_month(word(w))) return false;
    return w > 0 || !is_function_word(word(w));
  };
  std::vector<TextSpan> out;
  for (size_t w = 0; w < all.size();) {
    size_t last = w;  // of the span that begins here
    if (begins_with_digit(word(w)) || is_month(word(w))) {
      bool number = begins_with_digit(word(w));
      while (last + 1 < all.size() &&
             only_blanks(gap(last), /*commas=*/is_month(word(w)) || is_month(word(last))) &&
             (is_month(word(last + 1)) ||
              (begins_with_digit(word(last + 1)) && (is_month(word(w)) || is_month(word(last)))))) {
        ++last;
        number = number || begins_with_digit(word(last));
      }
      if (!number) {  // "May" alone may be a verb
        ++w;
        continue;
      }
    } else if (is_name(w)) {
      for (size_t next = w + 1; next < all.size() && only_blanks(gap(next - 1), false); ++next) {
        if (is_name(next)) {
          last = next;
        } else if (!is_particle(word(next))) {
          break;
        }
      }
      if (w == 0 && last == 0) {
        ++w;
        continue;
      }
    } else {
      ++w;
      continue;
    }
    out.push_back({all[w].begin, all[last].end});
    w = last + 1;
  }
  std::erase_if(out, [&](const TextSpan& span) {
    const std::string_view text = of(sentence, span);
    return sentence.find(text) != span.begin ||
           sentence.find(text, span.begin + 1) != std::string_view::npos;
  });
  return out;
}

std::optional<TextSpan> random_span(std::string_view sentence, Stream& stream) {
  constexpr double kEnds = 0.2;
  const std::vector<TextSpan> all = words(sentence);
  if (all.size() < 2) return std::nullopt;
  const size_t most = std::min(kMostWords, all.size() - 1);
  size_t length = 1;
  while (length < most && stream.uniform() >= kEnds) ++length;
  const size_t first = stream.below(all.size() - length + 1);
  return TextSpan{all[first].begin, all[first + length - 1].end};
}

std::vector<std::string> sentences(const std::string& text) {
  std::vector<std::string> out;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool last = i + 1 == text.size();
    const bool stop =
        (text[i] == '.' || text[i] == '!' || text[i] == '?') && !last && text[i + 1] == ' ';
    if (!last && !stop) continue;
    out.push_back(text.substr(begin, i + 1 - begin));
    begin = i + 2;
  }
  return out;
}

}  // namespace contexture::data
