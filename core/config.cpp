#include "core/config.h"

#include <algorithm>

#include "core/did_you_mean.h"
#include "core/error.h"
#include "core/format.h"
#include "core/internal/config_fields.h"
#include "core/json.h"

namespace contexture::config_detail {
namespace {

void apply_object(const Fields& fields, const Json& object, const std::string& pointer,
                  const std::string& dotted, const Places& places) {
  for (const auto& [name, value] : object.items()) {
    const std::string member_pointer = pointer + "/" + json_pointer_token(name);
    const Field* field = find_field(fields, name);
    if (field == nullptr) throw_unknown_key(places.of_key(member_pointer), fields, dotted, name);
    apply_value(*field, value, member_pointer, dotted + name, places);
  }
}

[[noreturn]] void throw_wrong_type(const std::string& where, const std::string& dotted,
                                   const std::string& expected, const Json& value) {
  throw UsageError(
      concat(where, ": ", dotted, " must be ", expected, ", found ", json_excerpt(value)));
}

// One line of help, before its columns are aligned.
struct HelpLine {
  std::string name;  // empty: a heading
  std::string type;
  std::string text;
};

void collect_help(const Fields& fields, const std::string& prefix, std::vector<HelpLine>* lines);

void collect_help(const Field& field, const std::string& name, std::vector<HelpLine>* lines) {
  const auto setting = [&](const char* type, const Json& fallback) {
    lines->push_back({name, type, concat(field.help, " [", fallback.dump(), "]")});
  };
  std::visit(
      Overloaded{
          [&](bool* value) { setting("bool", *value); },
          [&](int* value) { setting("int", *value); },
          [&](int64_t* value) { setting("int", *value); },
          [&](uint64_t* value) { setting("uint", *value); },
          [&](double* value) { setting("float", *value); },
          [&](std::string* value) { setting("string", *value); },
          [&](std::vector<int64_t>* value) { setting("ints", *value); },
          [&](std::vector<double>* value) { setting("floats", *value); },
          [&](std::vector<std::string>* value) { setting("strings", *value); },
          [&](std::map<std::string, double>* value) { setting("name:float", *value); },
          [&](const Fields& children) {
            lines->push_back({"", "", concat(name, ": ", field.help)});
            collect_help(children, name + ".", lines);
          },
          [&](const StructList& list) {
            lines->push_back({"", "", concat(name, ": ", field.help, " (a list; per element:)")});
            collect_help(list.fresh(), name + ".N.", lines);
          },
      },
      field.target);
}

// Plain settings first, so that none stands under the heading of a struct that it is not part of.
void collect_help(const Fields& fields, const std::string& prefix, std::vector<HelpLine>* lines) {
  for (const bool nested : {false, true}) {
    for (const Field& field : fields) {
      const bool is_nested = std::holds_alternative<Fields>(field.target) ||
                             std::holds_alternative<StructList>(field.target);
      if (is_nested == nested) collect_help(field, prefix + field.name, lines);
    }
  }
}

Json value_of(const Field& field) {
  return std::visit(Overloaded{
                        [](const Fields& children) { return to_json(children); },
                        [](const StructList& list) {
                          Json elements = Json::array();
                          for (size_t i = 0; i < list.size(); ++i) {
                            elements.push_back(to_json(list.element(i)));
                          }
                          return elements;
                        },
                        [](const auto* value) { return Json(*value); },
                    },
                    field.target);
}

}  // namespace

const Field* find_field(const Fields& fields, std::string_view name) {
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [&](const Field& field) { return field.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

void throw_unknown_key(const std::string& where, const Fields& fields, const std::string& dotted,
                       const std::string& name) {
  std::vector<std::string> known;
  for (const Field& field : fields) known.push_back(field.name);
  std::string message = concat(where, ": unknown key '", dotted, name, "'.");
  const std::string nearest = did_you_mean(name, known);
  if (!nearest.empty()) {
    message += concat(" Did you mean '", dotted, nearest, "'?");
  } else {
    message += " Known here:";
    for (const std::string& key : known) message += " " + key;
  }
  throw UsageError(message);
}

void apply_value(const Field& field, const Json& value, const std::string& pointer,
                 const std::string& dotted, const Places& places) {
  std::visit(Overloaded{
                 [&](const Fields& children) {
                   if (!value.is_object()) {
                     throw_wrong_type(places.of_value(pointer), dotted, "an object", value);
                   }
                   apply_object(children, value, pointer, dotted + ".", places);
                 },
                 [&](const StructList& list) {
                   if (!value.is_array()) {
                     throw_wrong_type(places.of_value(pointer), dotted, "a list of objects", value);
                   }
                   list.resize(0);
                   list.resize(value.size());
                   for (size_t i = 0; i < value.size(); ++i) {
                     const std::string at = concat(pointer, "/", i), name = concat(dotted, ".", i);
                     if (!value[i].is_object()) {
                       throw_wrong_type(places.of_value(at), name, "an object", value[i]);
                     }
                     apply_object(list.element(i), value[i], at, name + ".", places);
                   }
                 },
                 [&]<typename T>(T* member) {
                   if (!json_convert(value, member)) {
                     throw_wrong_type(places.of_value(pointer), dotted, json_expected<T>(), value);
                   }
                 },
             },
             field.target);
}

void apply_json(const Fields& fields, std::string_view text, const std::string& file_name) {
  LocatedJson located;
  try {
    located = parse_json_located(text, file_name);
  } catch (const DataError& error) {
    throw UsageError(error.what());  // a configuration is the user's command, not input data
  }
  const auto place_in = [&](const std::map<std::string, TextPlace>& places) {
    return [&file_name, &places](const std::string& pointer) {
      const TextPlace place = places.at(pointer);
      return concat(file_name, ":", place.line, ":", place.column);
    };
  };
  const Places places = {place_in(located.keys), place_in(located.values)};
  if (!located.value.is_object()) {
    throw_wrong_type(places.of_value(""), "the configuration", "an object", located.value);
  }
  apply_object(fields, located.value, "", "", places);
}

Json to_json(const Fields& fields) {
  Json object = Json::object();
  for (const Field& field : fields) {
    CONTEXTURE_INVARIANT(!object.contains(field.name), "setting '", field.name,
                         "' is declared twice");
    object[field.name] = value_of(field);
  }
  return object;
}

std::string help_text(const Fields& fields) {
  std::vector<HelpLine> lines;
  collect_help(fields, "", &lines);
  size_t name_width = 0, type_width = 0;
  for (const HelpLine& line : lines) {
    name_width = std::max(name_width, std::min<size_t>(line.name.size(), 36));
    type_width = std::max(type_width, line.type.size());
  }
  std::string text;
  for (const HelpLine& line : lines) {
    if (line.name.empty()) {
      text += line.text + "\n";
    } else {
      text += "  " + line.name +
              std::string(name_width - std::min(name_width, line.name.size()), ' ') + "  " +
              line.type + std::string(type_width - line.type.size(), ' ') + "  " + line.text + "\n";
    }
  }
  return text;
}

}  // namespace contexture::config_detail
