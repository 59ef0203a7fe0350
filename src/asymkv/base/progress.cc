#include "asymkv/base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace asymkv {

void internal::write_note(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

std::string format_duration(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (total < 60) return fmt::format("{}s", total);
  if (total < 3600) return fmt::format("{}m{:02d}s", total / 60, total % 60);
  return fmt::format("{}h{:02d}m", total / 3600, total % 3600 / 60);
}

Progress::Progress(std::string label, std::string unit, int64_t total, int64_t already_done)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      done_(already_done),
      done_at_start_(already_done),
      terminal_(::isatty(STDERR_FILENO) == 1),
      silent_(std::getenv("ASYMKV_NO_PROGRESS") != nullptr),
      start_(std::chrono::steady_clock::now()),
      last_print_(start_) {}

Progress::~Progress() {
  if (done_ > done_at_start_) print(true);
}

void Progress::advance(int64_t count) {
  done_ += count;
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::duration<double> quiet = now - last_print_;
  if (quiet.count() < (terminal_ ? 0.2 : 10.0)) return;
  last_print_ = now;
  print(false);
}

void Progress::print(bool last) {
  if (silent_) return;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  const double rate = static_cast<double>(done_ - done_at_start_) / std::max(1e-9, elapsed.count());
  std::string text = fmt::format("{}: {}/{} {}, {:.3g}/s", label_, done_, total_, unit_, rate);
  if (last) {
    text += fmt::format(", took {}", format_duration(elapsed.count()));
  } else if (rate > 0) {
    text += fmt::format(", {} left", format_duration(static_cast<double>(total_ - done_) / rate));
  }
  print_note("{}{}{}", terminal_ ? "\r\033[K" : "", text, terminal_ && !last ? "" : "\n");
}

}  // namespace asymkv
