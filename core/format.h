// format("step {} loss {:.4f}", step, loss): fmt's syntax without fmt in the header.
#pragma once
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace contexture {
namespace format_detail {

using Argument = std::variant<bool, int64_t, uint64_t, double, std::string>;

template <typename T>
Argument argument(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value;
  } else if constexpr (std::is_same_v<T, char>) {
    return std::string(1, value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<double>(value);
  } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    return static_cast<int64_t>(value);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<uint64_t>(value);
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return std::string(std::string_view(value));
  } else {
    std::ostringstream out;
    out << value;
    return std::move(out).str();
  }
}

std::string format(std::string_view pattern, const std::vector<Argument>& arguments);

}  // namespace format_detail

// Anything with an operator<< can be an argument. Bug when pattern and arguments do not fit.
template <typename... Args>
std::string format(std::string_view pattern, const Args&... args) {
  return format_detail::format(pattern, {format_detail::argument(args)...});
}

}  // namespace contexture
