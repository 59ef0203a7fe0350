#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace asymkv {

// What kind of refusal an Error is. The command line maps it to an exit code once, HTTP to a status once.
enum class ErrorCode {
  kUsage,              // bad argument or option
  kBadInput,           // a file or value from outside is malformed
  kUnsupported,        // well-formed, but this build, device or format cannot serve it
  kResourceExhausted,  // memory, pages, disk
  kInterrupted,        // stopped by the user; state on disk is resumable
  kInternal,           // our own bug: a violated invariant
};

// Stable lower-case name, as printed in JSON: "usage", "bad_input", ...
std::string_view error_code_name(ErrorCode code);

// Process exit code of docs/cli: usage 2, bad_input 3, unsupported 4, resource_exhausted 5, interrupted 6, internal 70.
int exit_code(ErrorCode code);

// The one exception type of the library. The message is one sentence that names the file, field or value at fault
// and says what to do about it.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

template <typename... Args>
[[noreturn]] void throw_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
[[noreturn]] void throw_usage(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kUsage, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
[[noreturn]] void throw_bad_input(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kBadInput, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
[[noreturn]] void throw_unsupported(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kUnsupported, fmt::format(format, std::forward<Args>(args)...));
}

namespace internal {
[[noreturn]] void check_failed(const char* expression, const char* file, int line, const std::string& detail);
}  // namespace internal

}  // namespace asymkv

// ASYMKV_CHECK(condition, "format", args...): our own invariant. Throws Error{kInternal} with the printed values.
// Input from outside is never judged with it: use throw_bad_input and friends.
#define ASYMKV_CHECK(condition, ...)                                                                \
  do {                                                                                              \
    if (!(condition)) [[unlikely]]                                                                  \
      ::asymkv::internal::check_failed(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
  } while (false)
