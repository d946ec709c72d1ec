// The two kinds of failure.
// A UserError is something the user can fix: its message says what happened, where, and what to
// change; its exit code is what the command line returns. A Bug is a broken promise of our own and
// names the source line. Nothing else is thrown on purpose.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace contexture {

class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message) : std::runtime_error(message) {}
  virtual int exit_code() const noexcept { return 1; }
};

// The command line or a setting is wrong.
class UsageError : public UserError {
 public:
  using UserError::UserError;
  int exit_code() const noexcept override { return 2; }
};

// A file's content is wrong.
class DataError : public UserError {
 public:
  using UserError::UserError;
  int exit_code() const noexcept override { return 3; }
};

// A rank, a link or a collective failed.
class DistributedError : public UserError {
 public:
  using UserError::UserError;
  int exit_code() const noexcept override { return 4; }
};

// An invariant of this program is broken; the message starts with file:line.
class Bug : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// All parts streamed into one string.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

// The system's words for an errno value.
std::string errno_text(int error_number);

[[noreturn]] void throw_bug(const char* file, int line, const char* condition,
                            const std::string& message);

}  // namespace contexture

#define CONTEXTURE_REQUIRE_AS(Error, condition, ...)                  \
  do {                                                                \
    if (!(condition)) throw Error(::contexture::concat(__VA_ARGS__)); \
  } while (false)

// Each takes the condition, then the parts of the message.
#define CONTEXTURE_REQUIRE(condition, ...) \
  CONTEXTURE_REQUIRE_AS(::contexture::UserError, condition, __VA_ARGS__)
#define CONTEXTURE_USAGE_REQUIRE(condition, ...) \
  CONTEXTURE_REQUIRE_AS(::contexture::UsageError, condition, __VA_ARGS__)
#define CONTEXTURE_DATA_REQUIRE(condition, ...) \
  CONTEXTURE_REQUIRE_AS(::contexture::DataError, condition, __VA_ARGS__)
#define CONTEXTURE_INVARIANT(condition, ...)                                        \
  do {                                                                              \
    if (!(condition))                                                               \
      ::contexture::throw_bug(__FILE__, __LINE__, #condition,                       \
                              ::contexture::concat("" __VA_OPT__(, ) __VA_ARGS__)); \
  } while (false)
