// A setting is declared once, in its struct's for_each; defaults, JSON files, --set, help and the
// dump of the resolved configuration all visit that declaration.
//
//   struct TrainConfig {
//     int64_t steps = 1000;
//     template <typename Visitor> void for_each(Visitor&& visit) {
//       visit("steps", steps, "optimizer steps");
//     }
//   };
//
// Member types: bool, int, int64_t, uint64_t, double, std::string,
// std::vector<int64_t|double|std::string>, std::map<std::string, double>, another such struct, and
// a std::vector of such structs. In a file an object merges into a struct; an array or a map
// replaces the member's former content. Unknown keys, wrong types and numbers out of range throw
// UsageError naming file:line:column (or the --set text), the dotted key, and the nearest known
// key. A failed call may leave the struct partly changed.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/json_fwd.h"

namespace contexture {
namespace config_detail {

struct Field;
using Fields = std::vector<Field>;

// A std::vector of structs with its element type erased.
struct StructList {
  std::function<size_t()> size;
  std::function<void(size_t)> resize;     // new elements are fresh
  std::function<Fields(size_t)> element;  // fields of element i, valid until the next resize
  std::function<Fields()> fresh;          // fields of an element of its own, kept alive by `owner`
};

struct Field {
  std::string name;
  std::string help;
  std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*, std::vector<int64_t>*,
               std::vector<double>*, std::vector<std::string>*, std::map<std::string, double>*,
               Fields, StructList>
      target;
  std::shared_ptr<void> owner;  // set only for the fields of a fresh list element
};

template <typename C>
Fields fields_of(C& config);

template <typename C>
concept Struct = requires(C& config) {
  config.for_each([](const char*, auto&, const char*) {});
};

struct Collector {
  Fields& fields;

  template <typename T>
  void operator()(const char* name, T& member, const char* help) {
    if constexpr (Struct<T>) {
      fields.push_back({name, help, fields_of(member), nullptr});
    } else {
      fields.push_back({name, help, &member, nullptr});
    }
  }

  template <typename T>
  requires Struct<T>
  void operator()(const char* name, std::vector<T>& member, const char* help) {
    StructList list;
    list.size = [&member] { return member.size(); };
    list.resize = [&member](size_t n) { member.resize(n); };
    list.element = [&member](size_t i) { return fields_of(member.at(i)); };
    list.fresh = [] {
      auto element = std::make_shared<T>();
      Fields of_element = fields_of(*element);
      for (Field& field : of_element) field.owner = element;
      return of_element;
    };
    fields.push_back({name, help, std::move(list), nullptr});
  }
};

template <typename C>
Fields fields_of(C& config) {
  Fields fields;
  config.for_each(Collector{fields});
  return fields;
}

void apply_json(const Fields& fields, std::string_view text, const std::string& file_name);
void apply_set(const Fields& fields, std::string_view assignment);
Json to_json(const Fields& fields);
std::string help_text(const Fields& fields);

}  // namespace config_detail

// Applies a JSON text; `file_name` is for messages. UsageError on a bad key or value, DataError on
// bad JSON.
template <typename C>
void apply_json(C& config, std::string_view text, const std::string& file_name) {
  config_detail::apply_json(config_detail::fields_of(config), text, file_name);
}

// Applies "a.b=c". A string takes c as it stands; a list is "1,2,3" or a JSON array; a struct, a
// list of structs or a map takes JSON; "sources.0.weight=2" reaches into a list, "weights.name=2"
// into a map.
template <typename C>
void apply_set(C& config, std::string_view assignment) {
  config_detail::apply_set(config_detail::fields_of(config), assignment);
}

// Everything, resolved, as Json (include core/json.h to use it); apply_json of its dump gives an
// equal config.
template <typename C>
auto to_json(C config) {
  return config_detail::to_json(config_detail::fields_of(config));
}

// One line per setting: dotted name, type, default, help. Pass a fresh struct, never a parsed one.
template <typename C>
std::string help_text(C fresh) {
  return config_detail::help_text(config_detail::fields_of(fresh));
}

}  // namespace contexture
