#include "data/counterfactual.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>

#include "core/error.h"
#include "core/hash.h"
#include "core/rng.h"
#include "data/internal/utf8.h"

namespace contexture::data {
namespace {

using internal::is_word_character;
using internal::next_code_point;

// A stream index for a document: its id, not its position, so that adding documents changes no
// swap.
uint64_t key_of(const std::string& id) {
  const uint64_t high = crc32c(id), low = crc32c(id + "#");
  return high << 32 | low;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "33" is no word of its own in "1.33" or "33,000".
bool cuts_number(const std::string& text, size_t begin, size_t end) {
  const auto joins = [](char c) { return c == '.' || c == ','; };
  const bool before =
      is_digit(text[begin]) && begin >= 2 && joins(text[begin - 1]) && is_digit(text[begin - 2]);
  const bool after = is_digit(text[end - 1]) && end + 1 < text.size() && joins(text[end]) &&
                     is_digit(text[end + 1]);
  return before || after;
}

// Whether text[begin, end) stands alone: no word character of its own touches one outside.
bool stands_alone(const std::string& text, size_t begin, size_t end) {
  const auto start_of_last = [&](size_t first, size_t past) {
    size_t at = past - 1;
    while (at > first && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    return at;
  };
  if (cuts_number(text, begin, end)) return false;
  size_t at = begin;
  if (is_word_character(next_code_point(text, at)) && begin > 0) {
    size_t before = start_of_last(0, begin);
    if (is_word_character(next_code_point(text, before))) return false;
  }
  size_t last = start_of_last(begin, end);
  if (!is_word_character(next_code_point(text, last)) || end >= text.size()) return true;
  size_t after = end;
  return !is_word_character(next_code_point(text, after));
}

bool matches(const std::string& text, size_t at, const std::string& words) {
  return !words.empty() && text.compare(at, words.size(), words) == 0 &&
         stands_alone(text, at, at + words.size());
}

// {"capital": ["Paris"], ...} of a document's meta; a single string counts as a list of one.
std::map<std::string, std::vector<std::string>> facts_of(const Document& document) {
  std::map<std::string, std::vector<std::string>> facts;
  const auto found = document.meta.find("facts");
  if (found == document.meta.end() || !found->is_object()) return facts;
  for (const auto& [type, values] : found->items()) {
    const Json list = values.is_array() ? values : Json::array({values});
    for (const Json& value : list) {
      if (value.is_string() && !value.get_ref<const std::string&>().empty())
        facts[type].push_back(value);
    }
  }
  return facts;
}

// "Lomira", "Quasebu": syllables, for swaps without a tokenizer.
std::string made_up_word(Stream& stream) {
  static constexpr std::string_view kConsonants = "bdfghklmnprstvz", kVowels = "aeiou";
  std::string word;
  const uint64_t syllables = 2 + stream.below(2);
  for (uint64_t i = 0; i < syllables; ++i) {
    word.push_back(kConsonants[stream.below(kConsonants.size())]);
    word.push_back(kVowels[stream.below(kVowels.size())]);
  }
  word.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(word.front())));
  return word;
}

bool has_word(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    if (is_word_character(next_code_point(text, at))) return true;
  }
  return false;
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  return begin == std::string::npos
             ? ""
             : text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

// 1..max_pieces pieces of the vocabulary, spelled out; something with a letter or digit at its ends
// that decodes cleanly.
std::string random_pieces(const Tokenizer& tokenizer, int64_t max_pieces, Stream& stream) {
  constexpr int kTries = 8;
  constexpr int32_t kFirstPiece =
      Tokenizer::kNumControl + 256;  // the byte pieces come right after the control pieces
  const auto normal =
      static_cast<uint64_t>(std::max<int64_t>(tokenizer.vocab_size() - kFirstPiece, 1));
  for (int t = 0; t < kTries; ++t) {
    std::vector<int32_t> ids(1 + stream.below(static_cast<uint64_t>(max_pieces)));
    for (auto& id : ids) {
      id = static_cast<int32_t>(std::min<uint64_t>(
          kFirstPiece + stream.below(normal), static_cast<uint64_t>(tokenizer.vocab_size() - 1)));
    }
    const std::string text = trimmed(tokenizer.decode(ids));
    if (has_word(text) && stands_alone(" " + text + " ", 1, 1 + text.size())) return text;
  }
  return made_up_word(stream);
}

bool same_letters(const std::string& a, const std::string& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](unsigned char x, unsigned char y) {
           return std::tolower(x) == std::tolower(y);
         });
}

}  // namespace

void CounterfactualConfig::validate() const {
  CONTEXTURE_USAGE_REQUIRE(probability >= 0.0 && probability <= 1.0, "probability=", probability,
                           " is outside 0..1.");
  CONTEXTURE_USAGE_REQUIRE(random_share >= 0.0 && random_share <= 1.0,
                           "random_share=", random_share, " is outside 0..1.");
  CONTEXTURE_USAGE_REQUIRE(max_random_pieces >= 1, "max_random_pieces=", max_random_pieces,
                           " must be at least 1.");
}

bool contains_words(const std::string& text, const std::string& words) {
  for (size_t at = text.find(words); at != std::string::npos && !words.empty();
       at = text.find(words, at + 1)) {
    if (stands_alone(text, at, at + words.size())) return true;
  }
  return false;
}

std::string replace_words(const std::string& text, const std::vector<Swap>& swaps) {
  std::vector<const Swap*> longest_first;
  for (const Swap& swap : swaps) longest_first.push_back(&swap);
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [](const Swap* a, const Swap* b) { return a->from.size() > b->from.size(); });
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const auto found =
        std::find_if(longest_first.begin(), longest_first.end(),
                     [&](const Swap* swap) { return matches(text, at, swap->from); });
    if (found != longest_first.end()) {
      result += (*found)->to;
      at += (*found)->from.size();
    } else {
      const size_t begin = at;
      next_code_point(text, at);
      result.append(text, begin, at - begin);
    }
  }
  return result;
}

Counterfactual::Counterfactual(const CounterfactualConfig& config,
                               const std::vector<const Document*>& training,
                               const std::vector<Example>& examples,
                               std::shared_ptr<const Tokenizer> tokenizer)
    : config_(config), tokenizer_(std::move(tokenizer)) {
  config_.validate();
  std::map<std::string, std::set<std::string>> values;
  for (const Document* document : training) {
    for (const auto& [type, of_type] : facts_of(*document))
      values[type].insert(of_type.begin(), of_type.end());
  }
  for (const Example& example : examples) {
    for (const std::string& answer : example.answers) {
      if (has_word(answer)) values[example.type].insert(answer);
    }
  }
  for (const auto& [type, of_type] : values) pool_[type].assign(of_type.begin(), of_type.end());
}

int64_t Counterfactual::pool_size(const std::string& type) const {
  const auto found = pool_.find(type);
  return found == pool_.end() ? 0 : static_cast<int64_t>(found->second.size());
}

std::string Counterfactual::other_value(const std::string& type, const std::string& old,
                                        Stream& stream) const {
  const bool random = stream.uniform() < config_.random_share;
  const auto found = pool_.find(type);
  if (!random && found != pool_.end() && found->second.size() > 1) {
    const auto& values = found->second;
    const uint64_t at = stream.below(values.size());
    return values[at] != old ? values[at] : values[(at + 1) % values.size()];
  }
  return tokenizer_ ? random_pieces(*tokenizer_, config_.max_random_pieces, stream)
                    : made_up_word(stream);
}

EditedDocument Counterfactual::edit(const Document& document,
                                    const std::vector<const Example*>& examples,
                                    int64_t step) const {
  EditedDocument edited{document.title, document.text, {}};
  if (config_.probability <= 0.0) return edited;
  auto facts = facts_of(document);
  // Answers that no fact lists are facts of their question's type. A set: the order in which a
  // batch lists its examples must not matter.
  std::set<std::string> listed;
  for (const auto& [type, values] : facts) listed.insert(values.begin(), values.end());
  std::set<std::pair<std::string, std::string>> extra;
  for (const Example* example : examples) {
    for (const std::string& answer : example->answers) {
      if (!listed.contains(answer) && has_word(answer)) extra.emplace(example->type, answer);
    }
  }
  for (const auto& [type, value] : extra) facts[type].push_back(value);
  std::set<std::string>
      taken;  // every new value differs from all others and from what the document says
  std::map<std::string, std::pair<std::string, std::string>>
      swap_of;  // old value to (type, new value)
  const auto swap_type = [&](const std::string& type, const std::vector<std::string>& values) {
    Stream stream(config_.seed, "counterfactual " + type, static_cast<uint64_t>(step),
                  key_of(document.id));
    if (stream.uniform() >= config_.probability) return;
    for (const std::string& value : values) {
      if (swap_of.contains(value) || !contains_words(document.text, value)) continue;
      constexpr int kTries = 8;
      for (int t = 0; t < kTries; ++t) {
        const std::string to = other_value(type, value, stream);
        if (same_letters(to, value) || taken.contains(to) || contains_words(document.text, to))
          continue;
        taken.insert(to);
        swap_of[value] = {type, to};
        break;
      }
    }
  };
  for (const auto& [type, values] : facts) swap_type(type, values);
  for (const auto& [from, to] : swap_of) edited.swaps.push_back({to.first, from, to.second});
  edited.text = replace_words(document.text, edited.swaps);
  edited.title = replace_words(document.title, edited.swaps);
  return edited;
}

std::vector<std::string> Counterfactual::answers(const Example& example,
                                                 const EditedDocument& edited) const {
  const auto stands = [&](const std::string& answer) {
    return contains_words(edited.text, answer);
  };
  bool changed = false;
  std::vector<std::string> result;
  for (const std::string& answer : example.answers) {
    // What happened to the text happens to the answer: a swap may also lie inside a longer answer.
    std::string mapped = replace_words(answer, edited.swaps);
    for (const Swap& swap : edited.swaps) {
      if (mapped == answer && same_letters(answer, swap.from)) mapped = swap.to;
    }
    changed = changed || mapped != answer;
    if (std::find(result.begin(), result.end(), mapped) == result.end())
      result.push_back(std::move(mapped));
  }
  std::vector<std::string> of_type;
  for (const Swap& swap : edited.swaps) {
    if (swap.type == example.type) of_type.push_back(swap.to);
  }
  if (!changed && of_type.empty()) return result;
  // The others are true only if the edited document still says them: an alias that stands nowhere
  // in the text was an alias of the old value.
  std::vector<std::string> kept;
  std::copy_if(result.begin(), result.end(), std::back_inserter(kept), stands);
  if (!kept.empty()) return kept;
  return changed ? result : of_type;
}

}  // namespace contexture::data
