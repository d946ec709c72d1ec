#include "data/internal/utf8.h"

namespace contexture::data::internal {
namespace {

constexpr uint32_t kReplacement = 0xFFFD;

}  // namespace

uint32_t next_code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(text[i]));
  };
  const uint32_t lead = byte(at++);
  if (lead < 0x80) return lead;
  const int extra = lead >= 0xF0 && lead < 0xF5   ? 3
                    : lead >= 0xE0 && lead < 0xF0 ? 2
                    : lead >= 0xC2 && lead < 0xE0 ? 1
                                                  : 0;
  if (extra == 0 || text.size() - at < static_cast<size_t>(extra)) return kReplacement;
  uint32_t code_point = lead & (0x3FU >> extra);
  for (int i = 0; i < extra; ++i) {
    const uint32_t next = byte(at + static_cast<size_t>(i));
    if ((next & 0xC0) != 0x80) return kReplacement;
    code_point = code_point << 6 | (next & 0x3F);
  }
  const uint32_t least = extra == 1 ? 0x80 : extra == 2 ? 0x800 : 0x10000;
  if (code_point < least || code_point > 0x10FFFF || (code_point >= 0xD800 && code_point < 0xE000))
    return kReplacement;
  at += static_cast<size_t>(extra);
  return code_point;
}

bool valid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    // A genuine U+FFFD takes three bytes; a malformed byte moves by one.
    if (next_code_point(text, at) == kReplacement && at - start == 1) return false;
  }
  return true;
}

void append_utf8(uint32_t c, std::string& text) {
  const auto put = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)),
        put(0x80 | (c & 0x3F));
  }
}

int64_t count_code_points(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) next_code_point(text, at);
  return count;
}

bool is_word_character(uint32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  if (c < 0xC0) return c == 0xAA || c == 0xB5 || c == 0xBA;  // Latin-1 signs
  if (c == 0xD7 || c == 0xF7) return false;                  // multiplication and division signs
  if (c >= 0x2000 && c <= 0x2BFF)
    return c >= 0x2070 && c <= 0x209F;           // punctuation, arrows, symbols
  if (c >= 0x2E00 && c <= 0x2E7F) return false;  // more punctuation
  if (c >= 0x3000 && c <= 0x3020) return c == 0x3005 || c == 0x3007;  // CJK punctuation
  if (c >= 0xFF00 && c <= 0xFF0F) return false;                       // full-width punctuation
  if (c >= 0xFE10 && c <= 0xFE6F) return c >= 0xFE20 && c <= 0xFE2F;  // vertical and small forms
  if (c == kReplacement || c == 0xFEFF || c == 0x1680) return false;
  return c < 0x1F000 || c >= 0x20000;  // pictographs
}

}  // namespace contexture::data::internal
