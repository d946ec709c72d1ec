#include "core/error.h"

#include <system_error>

namespace contexture {

std::string errno_text(int error_number) {
  return std::error_code(error_number, std::generic_category()).message();
}

void throw_bug(const char* file, int line, const char* condition, const std::string& message) {
  throw Bug(concat(file, ":", line, ": broken invariant '", condition, "'",
                   message.empty() ? "" : ": ", message));
}

}  // namespace contexture
