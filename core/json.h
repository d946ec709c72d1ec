// JSON as the rest of the program reads it: strict, with places for error messages.
// Refused, each naming file:line:column: syntax errors, trailing text, invalid UTF-8, raw NUL bytes
// (nlohmann takes one for the end of input), duplicate keys, nesting deeper than the cap, numbers
// out of range. A UTF-8 byte-order mark is skipped; UTF-16 text gets a message that says how to
// convert it.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/json_fwd.h"

namespace contexture {

struct JsonOptions {
  int max_depth = 200;                // nested arrays and objects
  bool allow_duplicate_keys = false;  // true: the last one wins
  int first_line = 1;  // line number of the text's first line, for one line of a JSONL file
};

// `source` names the text in messages: a file name, usually. Throws DataError.
Json parse_json(std::string_view text, const std::string& source, const JsonOptions& options = {});

// As parse_json, of a whole file. UserError when the file can't be read.
Json read_json_file(const std::string& path, const JsonOptions& options = {});

// 1-based; columns count bytes.
struct TextPlace {
  int line = 0;
  int column = 0;
};

// A parsed text with the place of every key and value, by JSON pointer ("/train/steps").
struct LocatedJson {
  Json value;
  std::map<std::string, TextPlace> keys;    // where an object member's name starts
  std::map<std::string, TextPlace> values;  // where a value starts; "" is the root
};
LocatedJson parse_json_located(std::string_view text, const std::string& source,
                               const JsonOptions& options = {});

// One step of a JSON pointer, escaped: "a/b" -> "a~1b".
std::string json_pointer_token(std::string_view key);

// Member `key` of object `json` as type T. DataError naming `where` ("corpus.jsonl:12") and the key
// when it is missing or of another type. Numbers must fit: 1.5 is no int, 300 no uint8_t, -1 no
// uint64_t.
template <typename T>
T json_get(const Json& json, const std::string& key, const std::string& where);
// As json_get; `fallback` when the member is missing or null.
template <typename T>
T json_get_or(const Json& json, const std::string& key, T fallback, const std::string& where);

// The conversion itself, false when value and type do not fit; and what fits, in words ("a whole
// number").
template <typename T>
bool json_convert(const Json& json, T* out);
template <typename T>
std::string json_expected();
// All four exist for bool, int, int64_t, uint64_t, double, std::string, vectors of the last four,
// and std::map<std::string, double>.

// At most about 80 bytes of a value, to quote in a message.
std::string json_excerpt(const Json& json);

}  // namespace contexture
