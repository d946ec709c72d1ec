#include <algorithm>
#include <set>
#include <unordered_map>

#include "eval/captions.h"
#include "eval/internal/unicode_text.h"

namespace contexture::eval {
namespace {

using Text = std::u32string;
using View = std::u32string_view;

// A full stop that belongs to the word before it: a character of no text, of private use.
constexpr char32_t kInitialStop = U'\ue000';

bool is_letter(char32_t c) { return (internal::category(c) & (U_GC_L_MASK | U_GC_M_MASK)) != 0; }
bool is_alnum(char32_t c) { return is_letter(c) || internal::is_digit(c); }

// What the evaluation drops from its tokeniser's output. Brackets were meant too, but are in
// capitals there.
bool is_dropped(const Text& token) {
  static const std::set<Text> kDropped{U"''", U"'", U"``", U"`",  U".",   U"?", U"!",
                                       U",",  U":", U"-",  U"--", U"...", U";"};
  return kDropped.contains(token);
}

bool is_abbreviation(View word) {
  static const std::set<View> kKnown{
      U"mr", U"mrs", U"ms",   U"dr",  U"st",  U"vs", U"etc", U"jr", U"sr",  U"prof", U"gen",
      U"lt", U"col", U"capt", U"rev", U"inc", U"co", U"ltd", U"ft", U"ave", U"wm",   U"univ"};
  // Single letters between full stops, "u.s" and "a.m".
  const bool initials = word.size() % 2 == 1 && word.size() > 1 && [&] {
    for (size_t i = 0; i < word.size(); ++i) {
      if (i % 2 == 0 ? !is_letter(word[i]) : word[i] != U'.') return false;
    }
    return true;
  }();
  return initials || kKnown.contains(word);
}

class Caption {
 public:
  explicit Caption(Text text) : text_(std::move(text)) {}

  std::vector<std::string> tokens() {
    while (at_ < text_.size()) {
      if (internal::is_space(text_[at_])) {
        ++at_;
      } else if (is_alnum(text_[at_])) {
        word();
      } else {
        mark();
      }
    }
    return std::move(tokens_);
  }

 private:
  char32_t peek(size_t ahead) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : U' ';
  }

  void emit(const Text& token) {
    if (!token.empty() && !is_dropped(token)) tokens_.push_back(internal::to_utf8(token));
  }

  // Where the word that starts here ends: letters and digits, with marks between them that join.
  size_t word_end() const {
    size_t end = at_;
    while (end < text_.size()) {
      if (is_alnum(text_[end]) || text_[end] == U'_') {
        ++end;
        continue;
      }
      if (end + 1 >= text_.size()) break;
      const char32_t before = text_[end - 1], mark = text_[end], after = text_[end + 1];
      const bool between = is_alnum(before) && is_alnum(after);
      const bool digits = internal::is_digit(before) && internal::is_digit(after);
      const bool joins = between && (mark == U'-' || mark == U'/' || mark == U'.' || mark == U'@' ||
                                     mark == U'&' || (mark == U'\'' && is_letter(after)));
      if (!joins && !(digits && (mark == U',' || mark == U':'))) break;
      ++end;
    }
    return end;
  }

  void word() {
    static const std::unordered_map<Text, size_t> kParted{
        {U"cannot", 3}, {U"gonna", 3}, {U"gotta", 3}, {U"wanna", 3}, {U"gimme", 3}, {U"lemme", 3}};
    const size_t end = word_end();
    Text word = text_.substr(at_, end - at_);
    at_ = end;
    const bool numbered = word == U"no" && peek(1) == U' ' && internal::is_digit(peek(2));
    if (peek(0) == kInitialStop || (peek(0) == U'.' && (numbered || is_abbreviation(word)))) {
      word += U'.';
      ++at_;
    }
    if (const auto parted = kParted.find(word); parted != kParted.end()) {
      emit(word.substr(0, parted->second));
      emit(word.substr(parted->second));
      return;
    }
    const Text tail = contraction(word);
    emit(word.substr(0, word.size() - tail.size()));
    emit(tail);
  }

  // The part of a word that stands alone: "n't" of "can't", "'s" of "dog's". "y'all" is parted as
  // "y' all".
  static Text contraction(const Text& word) {
    if (word == U"y'all") return U"all";
    for (const View tail : {View(U"n't"), View(U"'s"), View(U"'m"), View(U"'d"), View(U"'re"),
                            View(U"'ve"), View(U"'ll")}) {
      if (word.size() > tail.size() && word.ends_with(tail)) return Text(tail);
    }
    return {};
  }

  size_t run_of(char32_t c) const {
    size_t n = 0;
    while (peek(n) == c) ++n;
    return n;
  }

  void mark() {
    static const std::unordered_map<char32_t, Text> kWritten{
        {U'(', U"-lrb-"},  {U')', U"-rrb-"},     {U'[', U"-lsb-"}, {U']', U"-rsb-"},
        {U'{', U"-lcb-"},  {U'}', U"-rcb-"},     {U'"', U"''"},    {U'\u00a3', U"#"},
        {U'\u20ac', U"$"}, {U'\u00a2', U"cents"}};
    const char32_t c = text_[at_];
    if (c == U'\'' && apostrophe_word()) return;
    if (c == U'?' || c == U'!') {  // a run of them is one token, and only single ones are dropped
      Text run;
      while (peek(0) == U'?' || peek(0) == U'!') run += text_[at_++];
      emit(run);
      return;
    }
    if (c == U'.' || c == U'-') {
      at_ += run_of(c);
      return;
    }
    ++at_;
    const auto written = kWritten.find(c);
    emit(written == kWritten.end() ? Text(1, c) : written->second);
  }

  // "'90s", "'84", "'em", "'n'" and "'tis" keep their apostrophe.
  bool apostrophe_word() {
    if (at_ > 0 && is_alnum(text_[at_ - 1])) return false;
    size_t end = 1;
    while (is_alnum(peek(end))) ++end;
    const Text word = text_.substr(at_ + 1, end - 1);
    const bool year = word.size() >= 2 && internal::is_digit(word[0]) &&
                      internal::is_digit(word[1]) && (word.size() == 2 || word.substr(2) == U"s");
    if (year || word == U"em" || word == U"cause") {
      emit(U"'" + word);
    } else if (word == U"n" && peek(end) == U'\'') {
      emit(U"'n'");
      ++end;
    } else if (word == U"tis" || word == U"twas") {
      emit(U"'t");
      emit(word.substr(1));
    } else {
      return false;
    }
    at_ += end;
    return true;
  }

  Text text_;
  size_t at_ = 0;
  std::vector<std::string> tokens_;
};

// Typographic marks as the tokeniser rewrites them; and, while capitals are there to tell, the full
// stop of an initial ("J. Smith") marked as the word's own.
Text plain(const Text& text) {
  Text out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t before = i > 0 ? text[i - 1] : U' ', c = text[i];
    const char32_t earlier = i > 1 ? text[i - 2] : U' ',
                   after = i + 1 < text.size() ? text[i + 1] : U' ';
    if (c == U'.' && (internal::category(before) & U_GC_LU_MASK) != 0 &&
        internal::is_space(earlier) && internal::is_space(after)) {
      out += kInitialStop;
    } else if (c == U'\u2018' || c == U'\u2019') {
      out += U'\'';
    } else if (c == U'\u201c' || c == U'\u201d') {
      out += U'"';
    } else if (c == U'\u2013' || c == U'\u2014') {
      out += U" -- ";
    } else if (c == U'\u2026') {
      out += U"...";
    } else {
      out += c == kInitialStop ? U'\ufffd' : c;
    }
  }
  return out;
}

}  // namespace

std::vector<std::string> caption_tokens(std::string_view caption) {
  return Caption(internal::lower(plain(internal::to_utf32(caption)))).tokens();
}

}  // namespace contexture::eval
