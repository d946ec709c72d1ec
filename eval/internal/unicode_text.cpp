#include "eval/internal/unicode_text.h"

#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/unistr.h>

#include <algorithm>

#include "core/error.h"

namespace contexture::eval::internal {
namespace {

icu::UnicodeString from_utf32(std::u32string_view text) {
  return icu::UnicodeString::fromUTF32(reinterpret_cast<const UChar32*>(text.data()),
                                       static_cast<int32_t>(text.size()));
}

std::u32string code_points(const icu::UnicodeString& text) {
  std::u32string out;
  out.reserve(static_cast<size_t>(text.length()));
  for (int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1))
    out.push_back(static_cast<char32_t>(text.char32At(i)));
  return out;
}

bool is_ascii(std::u32string_view text) {
  return std::all_of(text.begin(), text.end(), [](char32_t c) { return c < 0x80; });
}

}  // namespace

// Most text is ASCII, for which the conversions below are not worth ICU's allocations.

std::u32string to_utf32(std::string_view text) {
  return code_points(icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<int32_t>(text.size()))));
}

std::string to_utf8(std::u32string_view text) {
  if (is_ascii(text)) return {text.begin(), text.end()};
  std::string out;
  from_utf32(text).toUTF8String(out);
  return out;
}

std::u32string lower(std::u32string_view text) {
  if (is_ascii(text)) {
    std::u32string out(text);
    for (char32_t& c : out) c += c >= U'A' && c <= U'Z' ? 0x20 : 0;
    return out;
  }
  return code_points(from_utf32(text).toLower(icu::Locale::getRoot()));
}

std::u32string nfd(std::u32string_view text) {
  if (is_ascii(text)) return std::u32string(text);
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = icu::Normalizer2::getNFDInstance(error);
  CONTEXTURE_INVARIANT(U_SUCCESS(error), "ICU has no NFD: ", u_errorName(error));
  const icu::UnicodeString out = normalizer->normalize(from_utf32(text), error);
  CONTEXTURE_INVARIANT(U_SUCCESS(error), "NFD failed: ", u_errorName(error));
  return code_points(out);
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

bool is_digit(char32_t c) { return (category(c) & U_GC_ND_MASK) != 0; }

std::u32string_view strip(std::u32string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::u32string> split(std::u32string_view text) {
  std::vector<std::u32string> words;
  size_t i = 0;
  while (i < text.size()) {
    size_t end = i;
    while (end < text.size() && !is_space(text[end])) ++end;
    if (end > i) words.emplace_back(text.substr(i, end - i));
    i = end + 1;
  }
  return words;
}

}  // namespace contexture::eval::internal
