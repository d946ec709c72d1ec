// SLURM's short forms of host names and task counts.
#include <charconv>

#include "parallel/launch_env.h"

namespace contexture::parallel {
namespace {

constexpr int64_t kMost = 1 << 20;  // nodes of a list: more is a typing error, and memory

int64_t parse(const std::string& digits, const std::string& whole) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  CONTEXTURE_USAGE_REQUIRE(
      !digits.empty() && error == std::errc() && end == digits.data() + digits.size() && value >= 0,
      "cannot read the SLURM list ", whole, ": '", digits, "' is no number.");
  return value;
}

// Splits at commas outside brackets.
std::vector<std::string> split(const std::string& text, const std::string& whole) {
  std::vector<std::string> out(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    CONTEXTURE_USAGE_REQUIRE(depth == 0 || depth == 1, "cannot read the SLURM list ", whole,
                             ": its brackets do not match.");
    if (c == ',' && depth == 0) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  CONTEXTURE_USAGE_REQUIRE(depth == 0, "cannot read the SLURM list ", whole,
                           ": its brackets do not match.");
  return out;
}

// Every value of "08-10,20", with its zeros.
std::vector<std::string> expand_ranges(const std::string& text, const std::string& whole) {
  std::vector<std::string> out;
  for (const std::string& range : split(text, whole)) {
    const size_t dash = range.find('-');
    const std::string low = range.substr(0, dash),
                      high = dash == std::string::npos ? low : range.substr(dash + 1);
    const int64_t first = parse(low, whole), last = parse(high, whole);
    CONTEXTURE_USAGE_REQUIRE(first <= last && last - first < kMost, "cannot read the SLURM list ",
                             whole, ": ", range, " is no range.");
    for (int64_t i = first; i <= last; ++i) {
      std::string digits = concat(i);
      if (digits.size() < low.size()) digits.insert(0, low.size() - digits.size(), '0');
      out.push_back(std::move(digits));
    }
  }
  return out;
}

}  // namespace

std::vector<std::string> expand_nodelist(const std::string& text) {
  std::vector<std::string> out;
  for (const std::string& part : split(text, text)) {
    std::vector<std::string> names{""};
    for (size_t at = 0; at < part.size();) {  // letters and brackets in turn: rack[1-2]node[3,4]
      const size_t open = part.find('[', at), close = part.find(']', open);
      const std::string letters = part.substr(at, open == std::string::npos ? open : open - at);
      const std::vector<std::string> ends =
          open == std::string::npos ? std::vector<std::string>{""}
                                    : expand_ranges(part.substr(open + 1, close - open - 1), text);
      CONTEXTURE_USAGE_REQUIRE(static_cast<int64_t>(names.size() * ends.size()) <= kMost,
                               "the SLURM list ", text, " has too many nodes.");
      std::vector<std::string> longer;
      for (const std::string& name : names) {
        for (const std::string& end : ends) longer.push_back(name + letters + end);
      }
      names = std::move(longer);
      at = open == std::string::npos ? part.size() : close + 1;
    }
    for (const std::string& name : names) {
      CONTEXTURE_USAGE_REQUIRE(!name.empty(), "cannot read the SLURM list '", text,
                               "': it has an empty name.");
      out.push_back(name);
    }
  }
  return out;
}

std::vector<int> expand_tasks_per_node(const std::string& text) {
  std::vector<int> out;
  for (const std::string& part : split(text, text)) {
    const size_t open = part.find("(x");
    const int64_t tasks = parse(part.substr(0, open), text);
    int64_t times = 1;
    if (open != std::string::npos) {
      CONTEXTURE_USAGE_REQUIRE(part.back() == ')', "cannot read the SLURM list ", text, ".");
      times = parse(part.substr(open + 2, part.size() - open - 3), text);
    }
    CONTEXTURE_USAGE_REQUIRE(tasks <= kMost && times <= kMost, "the SLURM list ", text,
                             " has too many tasks.");
    out.insert(out.end(), static_cast<size_t>(times), static_cast<int>(tasks));
  }
  return out;
}

}  // namespace contexture::parallel
