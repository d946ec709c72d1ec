// Fields of foreign records: like core/json.h's json_get, with the leniency those files need.
// Every one throws DataError that names the field and what it holds.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace contexture::data::internal {

// A string or a whole number as its digits; "" when missing or null and not required.
std::string id_field(const Json& record, const char* key, bool required = true);
// A string; a number or boolean as JSON writes it; "" when missing or null and not required.
std::string text_field(const Json& record, const char* key, bool required = true);
// A list of texts as above, or one text; empty when missing or null.
std::vector<std::string> texts_field(const Json& record, const char* key);
// The member if it is a list, an empty list when missing or null.
const Json& list_field(const Json& record, const char* key);
// The first of the keys that the record has, or nullptr.
const char* first_of(const Json& record, std::initializer_list<const char*> keys);

std::string_view strip(std::string_view text);  // without white space (ASCII) at its ends

}  // namespace contexture::data::internal
