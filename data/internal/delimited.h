// Rows of tab- or comma-separated text as Python's csv module reads them: a cell that begins with a
// quote ends at the next single one, doubled quotes stand for one, and such a cell may hold line
// ends.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/records.h"

namespace contexture::data::internal {

constexpr size_t kMaxRowBytes = size_t{64} << 20;

// Calls visit(where, cells) for each row that is not blank; where is "file:line" of its first line.
// Bad records: a quote that is not closed (reading goes on at the next line), a cell that is no
// UTF-8 or holds a NUL, a row over kMaxRowBytes. DataError for UTF-16.
void for_each_row(
    std::string_view text, const std::string& name, char delimiter, BadRecords& bad,
    const std::function<void(const std::string& where, std::vector<std::string> cells)>& visit);

// The strings of a Python list literal, as in "['a', \"b's\"]": escapes, u'' prefixes, adjacent
// strings and a trailing comma as Python has them. Nothing is ever run. Throws DataError, saying
// where, for anything else.
std::vector<std::string> parse_python_list(std::string_view text);

}  // namespace contexture::data::internal
