#include "asymkv/base/error.h"

namespace asymkv {

std::string_view error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
      return "usage";
    case ErrorCode::kBadInput:
      return "bad_input";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kResourceExhausted:
      return "resource_exhausted";
    case ErrorCode::kInterrupted:
      return "interrupted";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "internal";
}

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
      return 2;
    case ErrorCode::kBadInput:
      return 3;
    case ErrorCode::kUnsupported:
      return 4;
    case ErrorCode::kResourceExhausted:
      return 5;
    case ErrorCode::kInterrupted:
      return 6;
    case ErrorCode::kInternal:
      return 70;
  }
  return 70;
}

namespace internal {

void check_failed(const char* expression, const char* file, int line, const std::string& detail) {
  throw Error(ErrorCode::kInternal, fmt::format("{}:{}: check `{}` failed: {}", file, line, expression, detail));
}

}  // namespace internal
}  // namespace asymkv
