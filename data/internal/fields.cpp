#include "data/internal/fields.h"

#include "core/error.h"

namespace contexture::data::internal {
namespace {

// The member, or nullptr when it is missing or null (an error if required).
const Json* find(const Json& record, const char* key, bool required) {
  CONTEXTURE_DATA_REQUIRE(record.is_object(), "holds ", json_excerpt(record), ", not an object");
  const auto found = record.find(key);
  const bool there = found != record.end() && !found->is_null();
  CONTEXTURE_DATA_REQUIRE(there || !required, "field '", key, "' is missing");
  return there ? &*found : nullptr;
}

std::string as_text(const Json& value, const char* key) {
  if (value.is_number() || value.is_boolean()) return value.dump();
  CONTEXTURE_DATA_REQUIRE(value.is_string(), "field '", key, "' holds ", json_excerpt(value),
                          ", not a text");
  return value.get<std::string>();
}

}  // namespace

std::string id_field(const Json& record, const char* key, bool required) {
  const Json* value = find(record, key, required);
  if (value == nullptr) return {};
  if (value->is_number_integer()) return value->dump();
  CONTEXTURE_DATA_REQUIRE(value->is_string() && !value->get_ref<const std::string&>().empty(),
                          "field '", key, "' holds ", json_excerpt(*value),
                          ", not an id (a string or a whole number)");
  return value->get<std::string>();
}

std::string text_field(const Json& record, const char* key, bool required) {
  const Json* value = find(record, key, required);
  return value == nullptr ? std::string() : as_text(*value, key);
}

std::vector<std::string> texts_field(const Json& record, const char* key) {
  const Json* value = find(record, key, false);
  if (value == nullptr) return {};
  if (!value->is_array()) return {as_text(*value, key)};
  std::vector<std::string> texts;
  for (const Json& text : *value) texts.push_back(as_text(text, key));
  return texts;
}

const Json& list_field(const Json& record, const char* key) {
  static const Json kNone = Json::array();
  const Json* value = find(record, key, false);
  if (value == nullptr) return kNone;
  CONTEXTURE_DATA_REQUIRE(value->is_array(), "field '", key, "' holds ", json_excerpt(*value),
                          ", not a list");
  return *value;
}

const char* first_of(const Json& record, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (find(record, key, false) != nullptr) return key;
  }
  return nullptr;
}

std::string_view strip(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace contexture::data::internal
