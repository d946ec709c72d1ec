#include "core/json.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "core/files.h"

namespace contexture {
namespace {

// Feeds nlohmann's lexer and shows how far it has read, which its SAX events do not tell.
class TrackingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackingIterator(const char* at, const char** read_up_to) : at_(at), read_up_to_(read_up_to) {}
  reference operator*() const { return *at_; }
  TrackingIterator& operator++() {
    *read_up_to_ = ++at_;
    return *this;
  }
  bool operator==(const TrackingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const TrackingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** read_up_to_;
};

// Builds the document; remembers places when asked.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, const std::string& source, const JsonOptions& options,
          LocatedJson* located)
      : text_(text), source_(source), options_(options), located_(located), read_(text.data()) {
    previous_end_ = text.data();
    place_.line = options.first_line;
    place_.column = 1;
    placed_ = text.data();
  }

  Json parse() {
    const char* end = text_.data() + text_.size();
    const bool complete = Json::sax_parse(TrackingIterator(text_.data(), &read_),
                                          TrackingIterator(end, &read_), this);
    CONTEXTURE_INVARIANT(complete, "an incomplete parse must have thrown");
    return std::move(root_);
  }

  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(number_integer_t value) override { return scalar(value); }
  bool number_unsigned(number_unsigned_t value) override { return scalar(value); }
  bool number_float(number_float_t value, const string_t&) override { return scalar(value); }
  bool string(string_t& value) override { return scalar(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // text JSON has none

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    const TextPlace place = token_place();
    Level& level = levels_.back();
    auto [slot, is_new] = level.container->get_ref<Json::object_t&>().try_emplace(name, nullptr);
    if (!is_new && !options_.allow_duplicate_keys) {
      fail(place, concat("the key ", Json(name).dump(), " occurs twice in one object"));
    }
    level.slot = &slot->second;
    if (located_ != nullptr) {
      level.token = json_pointer_token(name);
      located_->keys[pointer()] = place;
    }
    token_done();
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    const char* at = read_ > text_.data() ? read_ - 1 : read_;
    // nlohmann's text: "[json.exception.parse_error.101] parse error at line 1, column 2: syntax
    // error ..."
    std::string what = error.what();
    const size_t place_end = what.find(": ");
    if (place_end != std::string::npos) what = what.substr(place_end + 2);
    // At an unexpected word, number or string its start is the place; a lexer's complaint is about
    // the last byte.
    const bool whole_token = what.find("unexpected ") != std::string::npos &&
                             what.find("unexpected '") == std::string::npos &&
                             what.find("unexpected end") == std::string::npos;
    fail(whole_token ? token_place() : place_of(at), what);
  }

 private:
  struct Level {
    Json* container;
    Json* slot = nullptr;  // where the value of the current key goes
    std::string token;     // current key or index, as a pointer token
    size_t next_index = 0;
  };

  [[noreturn]] void fail(TextPlace place, const std::string& what) const {
    throw DataError(
        concat(source_, ":", place.line, ":", place.column, ": not valid JSON: ", what));
  }

  // Places are asked for in ascending order, so counting goes on from the last one.
  TextPlace place_of(const char* at) {
    for (; placed_ < at; ++placed_) {
      if (*placed_ == '\n') {
        ++place_.line;
        place_.column = 1;
      } else {
        ++place_.column;
      }
    }
    return place_;
  }

  // Start of the token whose event is being delivered. A number's event comes after its delimiter
  // was read, which may be a comma: so the search starts at the end of the previous event and skips
  // delimiters.
  TextPlace token_place() {
    const char* end = text_.data() + text_.size();
    const char* at = previous_end_;
    while (at < end && std::strchr(" \t\r\n,:", *at) != nullptr) ++at;
    return place_of(at);
  }
  void token_done() { previous_end_ = read_; }

  std::string pointer() const {
    std::string path;
    for (const Level& level : levels_) path += "/" + level.token;
    return path;
  }

  Json* add(Json&& value) {
    if (located_ != nullptr && !levels_.empty() && levels_.back().container->is_array()) {
      levels_.back().token = std::to_string(levels_.back().next_index++);
    }
    if (located_ != nullptr) located_->values[pointer()] = token_place();
    token_done();
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.container->is_array()) {
      level.container->push_back(std::move(value));
      return &level.container->back();
    }
    *level.slot = std::move(value);
    return level.slot;
  }

  bool scalar(Json value) {
    add(std::move(value));
    return true;
  }

  bool open(Json&& container) {
    if (static_cast<int>(levels_.size()) >= options_.max_depth) {
      fail(token_place(), concat("nested deeper than ", options_.max_depth, " levels"));
    }
    Json* added = add(std::move(container));
    levels_.push_back({added, nullptr, "", 0});
    return true;
  }

  bool close() {
    levels_.pop_back();
    token_done();
    return true;
  }

  std::string_view text_;
  const std::string& source_;
  const JsonOptions& options_;
  LocatedJson* located_;
  const char* read_;
  const char* previous_end_;
  const char* placed_;
  TextPlace place_;
  Json root_;
  std::vector<Level> levels_;
};

// What has to be refused before the lexer sees it.
std::string_view checked_text(std::string_view text, const std::string& source, int first_line) {
  const auto is_nul = [&](size_t i) { return text[i] == '\0'; };
  const bool marked = text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff");
  // Two ASCII letters without a mark: every other byte is 0.
  const bool unmarked = text.size() >= 4 && is_nul(0) == is_nul(2) && is_nul(1) == is_nul(3) &&
                        is_nul(0) != is_nul(1);
  if (marked || unmarked) {
    throw DataError(concat(source, ":", first_line,
                           ": the text is UTF-16, not UTF-8. Convert it: "
                           "iconv -f UTF-16 -t UTF-8 in.json > out.json"));
  }
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    const auto line = first_line + std::count(text.begin(), text.begin() + nul, '\n');
    throw DataError(concat(source, ":", line, ": not valid JSON: a raw NUL byte (byte ", nul,
                           " of the text); the file may be damaged or cut short"));
  }
  const bool blank = text.find_first_not_of(" \t\r\n") == std::string_view::npos;
  CONTEXTURE_DATA_REQUIRE(!blank, source, ":", first_line, ": not valid JSON: the text is empty");
  return text;
}

}  // namespace

Json parse_json(std::string_view text, const std::string& source, const JsonOptions& options) {
  return Builder(checked_text(text, source, options.first_line), source, options, nullptr).parse();
}

Json read_json_file(const std::string& path, const JsonOptions& options) {
  return parse_json(read_file(path), path, options);
}

LocatedJson parse_json_located(std::string_view text, const std::string& source,
                               const JsonOptions& options) {
  LocatedJson located;
  located.value =
      Builder(checked_text(text, source, options.first_line), source, options, &located).parse();
  return located;
}

std::string json_pointer_token(std::string_view key) {
  std::string token;
  for (const char c : key) {
    if (c == '~') {
      token += "~0";
    } else if (c == '/') {
      token += "~1";
    } else {
      token += c;
    }
  }
  return token;
}

namespace {

template <typename T>
struct is_vector : std::false_type {};
template <typename T>
struct is_vector<std::vector<T>> : std::true_type {};

using NumberMap = std::map<std::string, double>;

}  // namespace

template <typename T>
std::string json_expected() {
  if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "a string";
  } else if constexpr (std::is_same_v<T, double>) {
    return "a number";
  } else if constexpr (std::is_same_v<T, NumberMap>) {
    return "an object of numbers";
  } else if constexpr (is_vector<T>::value) {
    return "a list, each element " + json_expected<typename T::value_type>();
  } else if constexpr (std::is_unsigned_v<T>) {
    return "a whole number, 0 or more";
  } else {
    return concat("a whole number from ", std::numeric_limits<T>::min(), " to ",
                  std::numeric_limits<T>::max());
  }
}

template <typename T>
bool json_convert(const Json& json, T* out) {
  if constexpr (is_vector<T>::value) {
    if (!json.is_array()) return false;
    T list(json.size());
    for (size_t i = 0; i < list.size(); ++i) {
      if (!json_convert(json[i], &list[i])) return false;
    }
    *out = std::move(list);
  } else if constexpr (std::is_same_v<T, NumberMap>) {
    if (!json.is_object()) return false;
    NumberMap map;
    for (const auto& [key, value] : json.items()) {
      if (!json_convert(value, &map[key])) return false;
    }
    *out = std::move(map);
  } else {
    if constexpr (std::is_same_v<T, bool>) {
      if (!json.is_boolean()) return false;
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!json.is_string()) return false;
    } else if constexpr (std::is_same_v<T, double>) {
      if (!json.is_number()) return false;
    } else if (json.is_number_unsigned()) {
      if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<T>::max())) return false;
    } else {
      // A negative number, or none at all.
      if (!json.is_number_integer() || std::is_unsigned_v<T>) return false;
      if (json.get<int64_t>() < static_cast<int64_t>(std::numeric_limits<T>::min())) return false;
    }
    *out = json.get<T>();
  }
  return true;
}

std::string json_excerpt(const Json& json) {
  // Not dump(): of a large value that would build all of it.
  if (json.is_structured() && json.size() > 20) {
    return concat(json.is_array() ? "a list of " : "an object of ", json.size());
  }
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 80) {
    size_t end = 77;
    while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not inside a letter
    text = text.substr(0, end) + "...";
  }
  return text;
}

template <typename T>
T json_get(const Json& json, const std::string& key, const std::string& where) {
  CONTEXTURE_DATA_REQUIRE(json.is_object(), where, ": expected an object with the key '", key,
                          "', found ", json.type_name());
  const auto member = json.find(key);
  CONTEXTURE_DATA_REQUIRE(member != json.end(), where, ": the key '", key, "' is missing");
  T value{};
  CONTEXTURE_DATA_REQUIRE(json_convert(*member, &value), where, ": '", key, "' must be ",
                          json_expected<T>(), ", found ", json_excerpt(*member));
  return value;
}

template <typename T>
T json_get_or(const Json& json, const std::string& key, T fallback, const std::string& where) {
  CONTEXTURE_DATA_REQUIRE(json.is_object(), where, ": expected an object, found ",
                          json.type_name());
  const auto member = json.find(key);
  if (member == json.end() || member->is_null()) return fallback;
  return json_get<T>(json, key, where);
}

#define CONTEXTURE_INSTANTIATE(T)                                              \
  template bool json_convert<T>(const Json&, T*);                              \
  template std::string json_expected<T>();                                     \
  template T json_get<T>(const Json&, const std::string&, const std::string&); \
  template T json_get_or<T>(const Json&, const std::string&, T, const std::string&);
CONTEXTURE_INSTANTIATE(bool)
CONTEXTURE_INSTANTIATE(int)
CONTEXTURE_INSTANTIATE(int64_t)
CONTEXTURE_INSTANTIATE(uint64_t)
CONTEXTURE_INSTANTIATE(double)
CONTEXTURE_INSTANTIATE(std::string)
CONTEXTURE_INSTANTIATE(std::vector<int64_t>)
CONTEXTURE_INSTANTIATE(std::vector<uint64_t>)
CONTEXTURE_INSTANTIATE(std::vector<double>)
CONTEXTURE_INSTANTIATE(std::vector<std::string>)
CONTEXTURE_INSTANTIATE(NumberMap)
#undef CONTEXTURE_INSTANTIATE

}  // namespace contexture
