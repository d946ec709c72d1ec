// What a call's exception says, for tests of messages.
#pragma once
#include <exception>
#include <string>

namespace contexture {

// The message of the Error that `call` throws; "no error" or "another error: ..." otherwise.
template <typename Error, typename Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

}  // namespace contexture
