#include "data/wordpiece.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>

#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "data/internal/utf8.h"

namespace contexture::data {
namespace {

using internal::append_utf8;
using internal::next_code_point;

constexpr uint32_t kReplacement = 0xFFFD;

bool is_cjk(uint32_t c) {
  constexpr std::pair<uint32_t, uint32_t> kRanges[] = {
      {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
      {0x2B740, 0x2B81F}, {0x2B820, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [c](const auto& range) { return c >= range.first && c <= range.second; });
}

bool is_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return u_isUWhiteSpace(static_cast<UChar32>(c));
}

// Control, format, private use. (Unassigned code points stay, as in the reference's tokenizer.)
// Tabs and line ends are spaces.
bool is_control(uint32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  if (c < 0x80) return c < 0x20 || c == 0x7F;
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK)) !=
         0;
}

bool is_punctuation(uint32_t c) {
  if (c < 0x80)
    return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
           (c >= 123 && c <= 126);
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_P_MASK) != 0;
}

// Canonical decomposition without the marks that take no space.
void append_stripped(uint32_t c, std::vector<uint32_t>& out) {
  static const icu::Normalizer2* nfd = [] {
    UErrorCode status = U_ZERO_ERROR;
    const icu::Normalizer2* instance = icu::Normalizer2::getNFDInstance(status);
    CONTEXTURE_INVARIANT(U_SUCCESS(status), "ICU: ", u_errorName(status));
    return instance;
  }();
  const auto keep = [&](UChar32 part) {
    if (u_charType(part) != U_NON_SPACING_MARK) out.push_back(static_cast<uint32_t>(part));
  };
  icu::UnicodeString parts;
  if (!nfd->getDecomposition(static_cast<UChar32>(c), parts)) return keep(static_cast<UChar32>(c));
  for (int32_t i = 0; i < parts.length(); i = parts.moveIndex32(i, 1)) keep(parts.char32At(i));
}

void append_lower(uint32_t c, std::string& out) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
  } else if (c == 0x130) {
    out += "i\u0307";  // the one character whose lower case is two
  } else {
    append_utf8(static_cast<uint32_t>(u_tolower(static_cast<UChar32>(c))), out);
  }
}

}  // namespace

WordPiece::WordPiece(std::string_view vocabulary, const std::string& source,
                     const WordPieceOptions& options)
    : options_(options) {
  while (!vocabulary.empty()) {
    const size_t end = std::min(vocabulary.find('\n'), vocabulary.size());
    std::string_view token = vocabulary.substr(0, end);
    if (token.ends_with('\r')) token.remove_suffix(1);
    const auto [known, fresh] = ids_.emplace(token, static_cast<int32_t>(tokens_.size()));
    CONTEXTURE_DATA_REQUIRE(fresh, source, ":", tokens_.size() + 1, ": the token '", token,
                            "' is there already, on line ", known->second + 1,
                            ". A vocabulary lists each token once.");
    tokens_.emplace_back(token);
    longest_ = std::max(longest_, token.size());
    vocabulary.remove_prefix(std::min(end + 1, vocabulary.size()));
  }
  unknown_ = find(options_.unknown, source);
  begin_ = find(options_.begin, source);
  end_ = find(options_.end, source);
}

int32_t WordPiece::find(const std::string& token, const std::string& source) const {
  const auto found = ids_.find(token);
  CONTEXTURE_DATA_REQUIRE(found != ids_.end(), source, ": has no token '", token, "' among its ",
                          tokens_.size(),
                          ". It is no vocabulary of a BERT-family model, or is cut short.");
  return found->second;
}

WordPiece WordPiece::load(const std::filesystem::path& folder) {
  WordPieceOptions options;
  const auto config = folder / "tokenizer_config.json";
  if (std::filesystem::exists(config)) {
    const std::string where = config.string();
    const Json json = read_json_file(where);
    const std::string kind =
        json_get_or<std::string>(json, "tokenizer_class", "BertTokenizer", where);
    CONTEXTURE_DATA_REQUIRE(kind == "BertTokenizer" || kind == "BertTokenizerFast" ||
                                kind == "DistilBertTokenizer" || kind == "DistilBertTokenizerFast",
                            where, ": tokenizer_class is ", kind,
                            ". Only BERT's WordPiece tokenizer is read.");
    options.lower_case = json_get_or(json, "do_lower_case", true, where);
    options.strip_accents = json_get_or(json, "strip_accents", options.lower_case, where);
    options.split_cjk = json_get_or(json, "tokenize_chinese_chars", true, where);
    for (const auto& [key, token] :
         {std::pair{"unk_token", &options.unknown}, std::pair{"cls_token", &options.begin},
          std::pair{"sep_token", &options.end}}) {
      // A plain string, or an object around one.
      const Json given = json.value(key, Json());
      if (given.is_object()) *token = json_get<std::string>(given, "content", where);
      if (given.is_string()) *token = given.get<std::string>();
    }
  }
  const auto vocabulary = folder / "vocab.txt";
  CONTEXTURE_DATA_REQUIRE(std::filesystem::exists(vocabulary), folder.string(),
                          " has no vocab.txt. Encoders with a WordPiece vocabulary (BERT, MiniLM, "
                          "BGE, E5 and their like) are read.");
  return WordPiece(read_file(vocabulary, uint64_t{64} << 20), vocabulary.string(), options);
}

const std::string& WordPiece::token(int32_t id) const {
  CONTEXTURE_REQUIRE(id >= 0 && id < vocab_size(), "token id ", id, " is outside 0..",
                     vocab_size() - 1, ".");
  return tokens_[static_cast<size_t>(id)];
}

void WordPiece::add_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (static_cast<int64_t>(word.size()) > options_.max_word_chars &&
      internal::count_code_points(word) > options_.max_word_chars) {
    ids.push_back(unknown_);
    return;
  }
  const size_t before = ids.size();
  std::string piece;
  for (size_t at = 0; at < word.size();) {
    piece.assign(at == 0 ? "" : "##");
    const size_t prefix = piece.size();
    piece += word.substr(at, longest_);
    auto found = ids_.find(piece);
    while (found == ids_.end() && piece.size() > prefix) {
      piece.pop_back();  // an id never ends inside a character: no token is malformed
      found = ids_.find(piece);
    }
    if (piece.size() == prefix) {
      ids.resize(before);
      ids.push_back(unknown_);
      return;
    }
    ids.push_back(found->second);
    at += piece.size() - prefix;
  }
}

std::vector<int32_t> WordPiece::encode(std::string_view text, int64_t max_tokens) const {
  CONTEXTURE_REQUIRE(max_tokens >= 2, "A text of at most ", max_tokens,
                     " tokens was asked for; [CLS] and [SEP] alone are 2.");
  const size_t limit = static_cast<size_t>(max_tokens) - 1;
  std::vector<int32_t> ids{begin_};
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) add_word(word, ids);
    word.clear();
  };
  std::vector<uint32_t> parts;
  for (size_t at = 0; at < text.size() && ids.size() < limit;) {
    const uint32_t c = next_code_point(text, at);
    if (c == 0 || c == kReplacement || is_control(c)) continue;
    const bool apart = options_.split_cjk && is_cjk(c);
    if (apart) end_word();
    parts.clear();
    if (options_.strip_accents && c >= 0x80) {
      append_stripped(c, parts);
    } else {
      parts.push_back(c);
    }
    for (const uint32_t part : parts) {
      if (is_space(part)) {
        end_word();
      } else if (is_punctuation(part)) {
        end_word();
        append_utf8(part, word);
        end_word();
      } else if (options_.lower_case) {
        append_lower(part, word);
      } else {
        append_utf8(part, word);
      }
    }
    if (apart) end_word();
  }
  if (ids.size() < limit) end_word();
  if (ids.size() > limit) ids.resize(limit);
  ids.push_back(end_);
  return ids;
}

}  // namespace contexture::data
