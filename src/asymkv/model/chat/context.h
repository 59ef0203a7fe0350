#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "asymkv/base/error.h"

namespace asymkv::chat {

// Place in a template; columns count bytes. Both from 1.
struct Position {
  int32_t line = 1;
  int32_t column = 1;
};

// Bounds of one rendering. A published template needs some hundred steps a message and a few copies of the text.
struct Limits {
  int64_t steps = 20'000'000;               // expressions evaluated, statements run, list items made
  int64_t text_bytes = int64_t{256} << 20;  // of all strings made on the way, the output among them
  int depth = 1000;                         // nested statements, expressions and macro calls
};
inline constexpr int kMaxNesting = 64;  // of lists and mappings

// Where a rendering stands and what it may still use; every refusal goes through here, so that it names the place.
class Context {
 public:
  Context(std::string_view origin, const Limits& limits) : origin_(origin), limits_(limits) {}

  Position at;

  void charge_steps(int64_t count) {
    if (count > limits_.steps - steps_) fail_limit("steps", limits_.steps);
    steps_ += count;
  }
  void charge_text(size_t bytes) {
    if (bytes > static_cast<size_t>(limits_.text_bytes - text_bytes_)) fail_limit("bytes of text", limits_.text_bytes);
    text_bytes_ += static_cast<int64_t>(bytes);
  }
  void enter() {
    if (++depth_ > limits_.depth) fail_limit("levels", limits_.depth);
  }
  void leave() { --depth_; }

  std::string where() const { return fmt::format("{}: line {}, column {}", origin_, at.line, at.column); }
  // A fault of the template or of what it was given.
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw_bad_input("{}: {}", where(), fmt::format(format, std::forward<Args>(args)...));
  }
  // Well-formed, but not served here.
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw_unsupported("{}: {}", where(), fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  [[noreturn]] void fail_limit(std::string_view what, int64_t limit) const {
    throw_bad_input("{}: the chat template needs more than {} {}, which no published one does", where(), limit, what);
  }
  std::string origin_;
  Limits limits_;
  int64_t steps_ = 0;
  int64_t text_bytes_ = 0;
  int depth_ = 0;
};

}  // namespace asymkv::chat
