// What config.cpp and config_set.cpp share: applying one JSON value to one declared field.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "core/config.h"
#include "core/json.h"

namespace contexture::config_detail {

// Names the place of a JSON pointer in messages: "run.json:3:12", or the text of a --set.
struct Places {
  std::function<std::string(const std::string& pointer)> of_key;
  std::function<std::string(const std::string& pointer)> of_value;
};

void apply_value(const Field& field, const Json& value, const std::string& pointer,
                 const std::string& dotted, const Places& places);

// `dotted` is the prefix of `fields` ("train.", or "" at the root). The message ends with the
// nearest known key, or lists them.
[[noreturn]] void throw_unknown_key(const std::string& where, const Fields& fields,
                                    const std::string& dotted, const std::string& name);

const Field* find_field(const Fields& fields, std::string_view name);

// Visits the alternatives of Field::target, in config.h's order, by overloads.
template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;  // clang 14 has no deduction for aggregates

}  // namespace contexture::config_detail
