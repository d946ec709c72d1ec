#include "data/internal/delimited.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "data/internal/lines.h"
#include "data/internal/utf8.h"

namespace contexture::data::internal {
namespace {

struct Row {
  std::vector<std::string> cells;
  size_t end = 0;  // where the next row begins
};

// The row at `begin`, or nothing when a quote in it is not closed.
std::optional<Row> read_row(std::string_view text, size_t begin, char delimiter) {
  Row row;
  const size_t limit = std::min(text.size(), begin + kMaxRowBytes);
  size_t at = begin;
  while (true) {
    std::string cell;
    if (at < limit && text[at] == '"') {
      ++at;
      while (true) {
        const size_t quote = text.substr(0, limit).find('"', at);
        if (quote == std::string_view::npos) return std::nullopt;
        cell += text.substr(at, quote - at);
        at = quote + 1;
        if (at >= limit || text[at] != '"') break;
        cell += '"';
        ++at;
      }
    }
    const size_t end = std::min({text.find(delimiter, at), text.find('\n', at), text.size()});
    cell += text.substr(at, end - at);
    at = end;
    const bool last = at >= text.size() || text[at] == '\n';
    if (last && !cell.empty() && cell.back() == '\r') cell.pop_back();
    row.cells.push_back(std::move(cell));
    if (last) break;
    ++at;
  }
  row.end = at + 1;
  return row;
}

class PythonList {
 public:
  explicit PythonList(std::string_view text) : text_(text) {}

  std::vector<std::string> parse() {
    std::vector<std::string> out;
    expect('[');
    while (next() != ']') {
      out.push_back(strings());
      if (next() != ',') break;
      ++at_;
    }
    expect(']');
    next();
    require(at_ == text_.size(), "the end");
    return out;
  }

 private:
  void require(bool good, const char* what) const {
    CONTEXTURE_DATA_REQUIRE(good, "not a Python list of strings: expected ", what, " at character ",
                            at_ + 1, " of ", text_.substr(0, 60), text_.size() > 60 ? "..." : "");
  }

  char next() {
    while (at_ < text_.size() &&
           std::string_view(" \t\r\n\f").find(text_[at_]) != std::string_view::npos)
      ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  void expect(char c) {
    require(next() == c, c == '[' ? "'['" : "',' or ']'");
    ++at_;
  }

  bool at_string() {
    const char c = next();
    const size_t quote = at_ + (c == 'u' || c == 'U' ? 1 : 0);
    return quote < text_.size() && (text_[quote] == '\'' || text_[quote] == '"');
  }

  // One string, or several in a row, which Python joins.
  std::string strings() {
    require(at_string(), "a string");
    std::string out;
    while (at_string()) {
      if (text_[at_] == 'u' || text_[at_] == 'U') ++at_;
      const char quote = text_[at_];
      require(text_.substr(at_, 3) != std::string(3, quote), "a string in single quotes");
      ++at_;
      while (true) {
        require(at_ < text_.size() && text_[at_] != '\n', "the end of the string");
        const char c = text_[at_++];
        if (c == quote) break;
        if (c == '\\') {
          escape(out);
        } else {
          out += c;
        }
      }
    }
    return out;
  }

  uint32_t digits(size_t count, int base) {
    uint32_t value = 0;
    for (size_t i = 0; i < count; ++i, ++at_) {
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : 99;
      if (base == 8 && digit > 7 && i > 0) break;
      require(digit < base, "a digit of an escape");
      value = value * static_cast<uint32_t>(base) + static_cast<uint32_t>(digit);
    }
    return value;
  }

  void escape(std::string& out) {
    require(at_ < text_.size(), "the rest of an escape");
    constexpr std::string_view kNames = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
    const char c = text_[at_++];
    uint32_t code = 0;
    if (const size_t simple = kNames.find(c); simple != std::string_view::npos) {
      out += kMeanings[simple];
      return;
    } else if (c == '\n') {
      return;
    } else if (c == 'x') {
      code = digits(2, 16);
    } else if (c == 'u') {
      code = digits(4, 16);
    } else if (c == 'U') {
      code = digits(8, 16);
    } else if (c >= '0' && c <= '7') {
      --at_;
      code = digits(3, 8);
    } else {
      require(c != 'N', "no name of a character (\\N{...})");
      out += '\\';  // Python keeps what is no escape
      out += c;
      return;
    }
    require(code != 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff),
            "an escape of a character");
    append_utf8(code, out);
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

void for_each_row(std::string_view text, const std::string& name, char delimiter, BadRecords& bad,
                  const std::function<void(const std::string&, std::vector<std::string>)>& visit) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  refuse_utf16(text, name);
  if (text.substr(0, kMark.size()) == kMark) text.remove_prefix(kMark.size());
  int64_t line = 1;
  for (size_t begin = 0; begin < text.size();) {
    const std::string where = concat(name, ":", line);
    auto row = read_row(text, begin, delimiter);
    const size_t end = row.has_value() ? std::min(row->end, text.size())
                                       : std::min(text.find('\n', begin), text.size() - 1) + 1;
    line += std::count(text.begin() + static_cast<int64_t>(begin),
                       text.begin() + static_cast<int64_t>(end), '\n');
    begin = end;
    if (!row.has_value()) {
      bad.add(where, "quote not closed");
      continue;
    }
    const auto damaged = [](const std::string& cell) {
      return !valid_utf8(cell) || cell.find('\0') != std::string::npos;
    };
    if (std::any_of(row->cells.begin(), row->cells.end(), damaged)) {
      bad.add(where, "not UTF-8 text");
      continue;
    }
    if (row->cells.size() > 1 || row->cells[0].find_first_not_of(" \t") != std::string::npos)
      visit(where, std::move(row->cells));
  }
}

std::vector<std::string> parse_python_list(std::string_view text) {
  return PythonList(text).parse();
}

}  // namespace contexture::data::internal
