// Text as the reference scorers (Python) see it: code points, with Python's idea of white space.
#pragma once
#include <unicode/uchar.h>

#include <string>
#include <string_view>
#include <vector>

namespace contexture::eval::internal {

// UTF-8 to code points and back; bytes that are no UTF-8 become U+FFFD.
std::u32string to_utf32(std::string_view text);
std::string to_utf8(std::u32string_view text);

std::u32string lower(std::u32string_view text);  // Python's str.lower()
std::u32string nfd(std::u32string_view text);    // canonical decomposition

bool is_space(char32_t c);  // Python's str.isspace()
bool is_digit(char32_t c);  // decimal digits of any script: \d of a Python pattern

std::u32string_view strip(std::u32string_view text);          // str.strip()
std::vector<std::u32string> split(std::u32string_view text);  // str.split()

// The bit of c's general category, to test against U_GC_*_MASK.
inline uint32_t category(char32_t c) { return U_GET_GC_MASK(static_cast<UChar32>(c)); }

}  // namespace contexture::eval::internal
