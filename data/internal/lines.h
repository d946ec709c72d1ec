// Lines of a text file, and the columns of a line, as views into the text.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace contexture::data::internal {

// Calls visit(number, line) for every line that is not blank; numbers start at 1. Carriage returns
// and byte-order marks at the ends of a line are left out. Throws DataError for UTF-16 text.
void for_each_line(std::string_view text, const std::string& name,
                   const std::function<void(int64_t, std::string_view)>& visit);

// Throws DataError, saying how to convert it, when the text looks like UTF-16.
void refuse_utf16(std::string_view text, const std::string& name);

// The text between runs of blanks and tabs.
std::vector<std::string_view> columns(std::string_view line);

// The whole text as a number; false when it is anything else, NaN and infinities included.
bool to_finite(std::string_view text, double* out);
bool to_integer(std::string_view text, int64_t* out);

}  // namespace contexture::data::internal
