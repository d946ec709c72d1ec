// --set a.b=c: find the field that the dotted key names, make a JSON value of the text by the
// field's type.
#include <charconv>
#include <optional>

#include "core/error.h"
#include "core/internal/config_fields.h"

namespace contexture::config_detail {
namespace {

struct Assignment {
  std::string_view key;
  std::string_view text;
  std::string where;  // "--set a.b=c", for messages
};

[[noreturn]] void refuse(const Assignment& assignment, const std::string& why) {
  throw UsageError(concat(assignment.where, ": ", why));
}

void collect_keys(const Fields& fields, const std::string& prefix, std::vector<std::string>* keys) {
  for (const Field& field : fields) {
    keys->push_back(prefix + field.name);
    if (const Fields* children = std::get_if<Fields>(&field.target)) {
      collect_keys(*children, keys->back() + ".", keys);
    }
  }
}

// The text as it was meant for a member of this type; nothing when it can't be one.
std::optional<Json> parsed(std::string_view text) {
  try {
    return parse_json(text, "");
  } catch (const DataError&) {
    return std::nullopt;
  }
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
    if (text.empty()) parts.push_back(text);
  }
  return parts;
}

Json value_for(const Field& field, const Assignment& assignment) {
  const std::string_view text = assignment.text;
  const auto or_text = [&](std::string_view part) {
    return parsed(part).value_or(Json(std::string(part)));  // text: refused later, and quoted then
  };
  return std::visit(Overloaded{
                        [&](std::string*) { return Json(std::string(text)); },
                        [&]<typename T>(std::vector<T>*) {
                          if (text.starts_with('[')) return or_text(text);
                          Json list = Json::array();
                          for (const std::string_view part : split(text)) {
                            list.push_back(std::is_same_v<T, std::string> ? Json(std::string(part))
                                                                          : or_text(part));
                          }
                          return list;
                        },
                        [&](const auto&) { return or_text(text); },
                    },
                    field.target);
}

// Follows the key through structs and lists. A list index equal to the list's size appends an
// element.
class Walk {
 public:
  Walk(const Assignment& assignment, const Places& places)
      : assignment_(assignment), places_(places) {}

  void assign(const Fields& root) { in_struct(root, "", assignment_.key, root); }

 private:
  void in_struct(const Fields& fields, const std::string& prefix, std::string_view rest,
                 const Fields& root) {
    const size_t dot = rest.find('.');
    const std::string name(rest.substr(0, dot));
    const Field* field = find_field(fields, name);
    if (field == nullptr) {
      // "steps" where "train.steps" is meant: the name exists, elsewhere.
      std::vector<std::string> keys;
      collect_keys(root, "", &keys);
      for (const std::string& key : keys) {
        if (key.ends_with("." + name) && dot == std::string_view::npos) {
          refuse(assignment_,
                 concat("unknown key '", prefix, name, "'. Did you mean '", key, "'?"));
        }
      }
      throw_unknown_key(assignment_.where, fields, prefix, name);
    }
    if (dot == std::string_view::npos) {
      apply_value(*field, value_for(*field, assignment_), "", prefix + name, places_);
    } else {
      inside(*field, prefix + name, rest.substr(dot + 1), root);
    }
  }

  void inside(const Field& field, const std::string& dotted, std::string_view rest,
              const Fields& root) {
    if (const auto* children = std::get_if<Fields>(&field.target)) {
      in_struct(*children, dotted + ".", rest, root);
    } else if (const auto* list = std::get_if<StructList>(&field.target)) {
      in_list(*list, dotted, rest, root);
    } else if (const auto* map = std::get_if<std::map<std::string, double>*>(&field.target)) {
      Json entries(**map);
      entries[std::string(rest)] =
          parsed(assignment_.text).value_or(Json(std::string(assignment_.text)));
      apply_value(field, entries, "", dotted, places_);
    } else {
      refuse(assignment_, concat("'", dotted, "' is a single setting; nothing is below it"));
    }
  }

  void in_list(const StructList& list, const std::string& dotted, std::string_view rest,
               const Fields& root) {
    const std::string_view index_text = rest.substr(0, rest.find('.'));
    size_t index = 0;
    const auto [end, error] =
        std::from_chars(index_text.data(), index_text.data() + index_text.size(), index);
    if (error != std::errc() || end != index_text.data() + index_text.size() ||
        index > list.size()) {
      refuse(assignment_,
             concat("'", dotted, "' is a list of ", list.size(), "; '", index_text,
                    "' must be a number from 0 to ", list.size(), " (the last one appends)"));
    }
    if (index_text.size() == rest.size()) {
      refuse(assignment_,
             concat("name a setting of the element: ", dotted, ".", index, ".<name>=..."));
    }
    if (index == list.size()) list.resize(index + 1);
    in_struct(list.element(index), concat(dotted, ".", index, "."),
              rest.substr(index_text.size() + 1), root);
  }

  const Assignment& assignment_;
  const Places& places_;
};

}  // namespace

void apply_set(const Fields& fields, std::string_view assignment_text) {
  const size_t equals = assignment_text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw UsageError(
        concat("--set ", assignment_text, ": expected key=value, as in train.steps=100"));
  }
  const Assignment assignment = {assignment_text.substr(0, equals),
                                 assignment_text.substr(equals + 1),
                                 concat("--set ", assignment_text)};
  try {
    (void)Json(std::string(assignment_text)).dump();
  } catch (const Json::exception&) {
    throw UsageError("--set: the text is not valid UTF-8");
  }
  const auto where = [&](const std::string&) { return assignment.where; };
  const Places places = {where, where};
  Walk(assignment, places).assign(fields);
}

}  // namespace contexture::config_detail
