#include "core/format.h"

#include <fmt/args.h>
#include <fmt/format.h>

#include "core/error.h"

namespace contexture::format_detail {

std::string format(std::string_view pattern, const std::vector<Argument>& arguments) {
  fmt::dynamic_format_arg_store<fmt::format_context> store;
  for (const Argument& argument : arguments) {
    std::visit([&](const auto& value) { store.push_back(value); }, argument);
  }
  try {
    return fmt::vformat(pattern, store);
  } catch (const fmt::format_error& error) {
    throw Bug(concat("format pattern '", pattern, "': ", error.what()));
  }
}

}  // namespace contexture::format_detail
