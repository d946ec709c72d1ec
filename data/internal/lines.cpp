#include "data/internal/lines.h"

#include <charconv>
#include <cmath>

#include "core/error.h"

namespace contexture::data::internal {
namespace {

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

template <typename Number>
bool whole_number(std::string_view text, Number* out) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

void refuse_utf16(std::string_view text, const std::string& name) {
  const bool marked = starts_with(text, "\xFF\xFE") || starts_with(text, "\xFE\xFF");
  const bool unmarked =
      text.size() >= 4 && ((text[0] != 0 && text[1] == 0 && text[2] != 0 && text[3] == 0) ||
                           (text[0] == 0 && text[1] != 0 && text[2] == 0 && text[3] != 0));
  CONTEXTURE_DATA_REQUIRE(!marked && !unmarked, name,
                          ": this is UTF-16 text. Convert it: iconv -f UTF-16 -t UTF-8 IN > OUT.");
}

void for_each_line(std::string_view text, const std::string& name,
                   const std::function<void(int64_t, std::string_view)>& visit) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  refuse_utf16(text, name);
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    while (starts_with(line, kMark)) line.remove_prefix(kMark.size());
    while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.find_first_not_of(" \t") != std::string_view::npos) visit(number, line);
  }
}

std::vector<std::string_view> columns(std::string_view line) {
  std::vector<std::string_view> out;
  size_t begin = line.find_first_not_of(" \t");
  while (begin != std::string_view::npos) {
    const size_t end = std::min(line.find_first_of(" \t", begin), line.size());
    out.push_back(line.substr(begin, end - begin));
    begin = line.find_first_not_of(" \t", end);
  }
  return out;
}

bool to_finite(std::string_view text, double* out) {
  return whole_number(text, out) && std::isfinite(*out);
}

bool to_integer(std::string_view text, int64_t* out) { return whole_number(text, out); }

}  // namespace contexture::data::internal
