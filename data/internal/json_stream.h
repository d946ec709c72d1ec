// The records of one big JSON file, one at a time: the file is scanned for where each begins and
// ends, and only that part is parsed.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "core/json.h"
#include "data/records.h"

namespace contexture::data::internal {

// `where` is "file:line (record n)". Records that are no JSON are reported to `bad`; so is a place
// where the outer structure breaks, which ends the reading.
using VisitRecord = std::function<void(const std::string& where, Json record)>;

// The elements of the list at the root, or of the list under `member` of the object at the root.
// DataError when there is no such list.
void for_each_element(std::string_view text, const std::string& name, const std::string& member,
                      BadRecords& bad, const VisitRecord& visit);

// The members of the object at the root.
void for_each_member(
    std::string_view text, const std::string& name, BadRecords& bad,
    const std::function<void(const std::string& where, const std::string& key, Json value)>& visit);

// The first character that is no white space, or '\0': '[' and '{' tell the kinds of file apart.
char first_character(std::string_view text);

// Whether the text is JSONL: an object on the first line that is not blank, and more than that.
bool looks_like_jsonl(std::string_view text);

}  // namespace contexture::data::internal
