// UTF-8, decoded with checks; and which characters make up words.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace contexture::data::internal {

// The code point at `at`, which moves past it. Malformed bytes give U+FFFD and move by one.
uint32_t next_code_point(std::string_view text, size_t& at);
bool valid_utf8(std::string_view text);
void append_utf8(uint32_t code_point, std::string& text);
int64_t count_code_points(std::string_view text);

// Letters, digits and marks in any script (a table of ranges: what is no punctuation, symbol or
// space).
bool is_word_character(uint32_t code_point);

}  // namespace contexture::data::internal
