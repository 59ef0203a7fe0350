#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace asymkv {

namespace internal {
void write_note(std::string_view text);
}  // namespace internal

// Writes words for people on stderr. A closed or full stderr is no error: what was asked for does not depend on it.
template <typename... Args>
void print_note(fmt::format_string<Args...> format, Args&&... args) {
  internal::write_note(fmt::format(format, std::forward<Args>(args)...));
}

// "label: 12/200 cases, 3.1/s, 1m02s left" on stderr: redrawn in place on a terminal, one line every ten seconds
// elsewhere. Silent when ASYMKV_NO_PROGRESS is set. Never writes to stdout.
class Progress {
 public:
  Progress(std::string label, std::string unit, int64_t total, int64_t already_done = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void advance(int64_t count = 1);

 private:
  void print(bool last);
  std::string label_;
  std::string unit_;
  int64_t total_;
  int64_t done_;
  int64_t done_at_start_;
  bool terminal_;
  bool silent_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_print_;
};

// "42s", "3m05s", "2h10m".
std::string format_duration(double seconds);

}  // namespace asymkv
