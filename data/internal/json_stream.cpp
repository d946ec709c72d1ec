#include "data/internal/json_stream.h"

#include <algorithm>

#include "core/error.h"
#include "data/internal/lines.h"

namespace contexture::data::internal {
namespace {

constexpr std::string_view kMark = "\xEF\xBB\xBF";

struct Slice {
  std::string_view text;
  int64_t line = 1;
};

// Finds values without parsing them. Throws DataError where the structure breaks.
class Scanner {
 public:
  Scanner(std::string_view text, const std::string& name) : text_(text), name_(name) {
    refuse_utf16(text, name);
    while (text_.substr(at_, kMark.size()) == kMark) at_ += kMark.size();
  }

  std::string where() const { return concat(name_, ":", line_); }

  // Moves past white space; the next character, '\0' at the end.
  char next() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      advance();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool take(char c) {
    if (next() != c) return false;
    advance();
    return true;
  }

  void expect(char c) {
    CONTEXTURE_DATA_REQUIRE(take(c), "expected '", std::string(1, c), "' here");
  }

  Slice value() {
    const char first = next();
    const Slice begin{text_.substr(at_), line_};
    const size_t start = at_;
    if (first == '"') {
      string();
    } else if (first == '{' || first == '[') {
      nested();
    } else {
      while (at_ < text_.size() &&
             std::string_view(",]} \n\r\t").find(text_[at_]) == std::string_view::npos)
        advance();
      CONTEXTURE_DATA_REQUIRE(at_ > start, "expected a value here");
    }
    return {begin.text.substr(0, at_ - start), begin.line};
  }

 private:
  void advance() { line_ += text_[at_++] == '\n' ? 1 : 0; }

  void string() {
    advance();
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\\') advance();
      if (at_ < text_.size()) advance();
    }
    CONTEXTURE_DATA_REQUIRE(at_ < text_.size(), "the file ends within a string");
    advance();
  }

  void nested() {
    int64_t depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        string();
        continue;
      }
      depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
      advance();
      if (depth == 0) return;
    }
    throw DataError("the file ends within a record");
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

Json parse(const Slice& slice, const std::string& name) {
  return parse_json(slice.text, name, {.first_line = static_cast<int>(slice.line)});
}

void elements(Scanner& scanner, const std::string& name, BadRecords& bad,
              const VisitRecord& visit) {
  scanner.expect('[');
  if (scanner.take(']')) return;
  for (int64_t n = 1;; ++n) {
    const Slice slice = scanner.value();
    const std::string where = concat(name, ":", slice.line, " (record ", n, ")");
    Json record;
    bool good = true;
    try {
      record = parse(slice, name);
    } catch (const DataError& error) {
      bad.add(where, "not JSON", error.what());
      good = false;
    }
    if (good) visit(where, std::move(record));
    if (scanner.take(']')) return;
    scanner.expect(',');
  }
}

// Calls visit(key) at each member's value, which it must scan.
void members(Scanner& scanner, const std::string& name,
             const std::function<void(const std::string&)>& visit) {
  scanner.expect('{');
  if (scanner.take('}')) return;
  do {
    CONTEXTURE_DATA_REQUIRE(scanner.next() == '"', "expected a name in quotes here");
    const std::string key = parse(scanner.value(), name).get<std::string>();
    scanner.expect(':');
    visit(key);
  } while (scanner.take(','));
  scanner.expect('}');
}

// What breaks the structure is one bad record, after which nothing can be found. Errors that a
// visitor throws (policy "fail") pass.
class StructureGuard {
 public:
  StructureGuard(Scanner& scanner, BadRecords& bad) : scanner_(scanner), bad_(bad) {}

  void run(const std::function<void()>& read) {
    const int64_t before = bad_.count;
    try {
      read();
    } catch (const DataError& error) {
      if (bad_.policy == BadRecords::Policy::kFail && bad_.count > before) throw;
      bad_.add(scanner_.where(), "not JSON", error.what());
    }
  }

 private:
  Scanner& scanner_;
  BadRecords& bad_;
};

}  // namespace

void for_each_element(std::string_view text, const std::string& name, const std::string& member,
                      BadRecords& bad, const VisitRecord& visit) {
  Scanner scanner(text, name);
  bool found = member.empty();
  StructureGuard(scanner, bad).run([&] {
    if (member.empty()) {
      elements(scanner, name, bad, visit);
      return;
    }
    members(scanner, name, [&](const std::string& key) {
      if (key == member && scanner.next() == '[') {
        found = true;
        elements(scanner, name, bad, visit);
      } else {
        scanner.value();
      }
    });
  });
  CONTEXTURE_DATA_REQUIRE(found, name, ": no list under '", member, "'");
}

void for_each_member(
    std::string_view text, const std::string& name, BadRecords& bad,
    const std::function<void(const std::string&, const std::string&, Json)>& visit) {
  Scanner scanner(text, name);
  int64_t n = 0;
  StructureGuard(scanner, bad).run([&] {
    members(scanner, name, [&](const std::string& key) {
      const Slice slice = scanner.value();
      const std::string where = concat(name, ":", slice.line, " (record ", ++n, ")");
      Json value;
      try {
        value = parse(slice, name);
      } catch (const DataError& error) {
        bad.add(where, "not JSON", error.what());
        return;
      }
      visit(where, key, std::move(value));
    });
  });
}

char first_character(std::string_view text) {
  while (text.substr(0, kMark.size()) == kMark) text.remove_prefix(kMark.size());
  const size_t at = text.find_first_not_of(" \t\r\n");
  return at == std::string_view::npos ? '\0' : text[at];
}

bool looks_like_jsonl(std::string_view text) {
  if (first_character(text) != '{') return false;
  const size_t begin = text.find('{');
  const std::string_view line =
      text.substr(begin, std::min(text.find('\n', begin), text.size()) - begin);
  const size_t last = line.find_last_not_of(" \t\r");
  return last != std::string_view::npos && last > 0 && line[last] == '}';
}

}  // namespace contexture::data::internal
