#include "chat_input.h"

#include <fmt/format.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "asymkv/base/error.h"
#include "asymkv/base/interrupt.h"

namespace asymkv::app {
namespace {

constexpr std::string_view kBlockMark = "\"\"\"";
constexpr size_t kMaxMessageBytes = 16 << 20;  // ours: far beyond any context

}  // namespace

ChatInput::ChatInput() : terminal_(::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0) {}

ChatInput::Event ChatInput::read_line(const char* prompt, std::string& line) {
  if (terminal_) {
    fmt::print("{}", prompt);
    std::fflush(stdout);
  }
  while (true) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return Event::kMessage;
    }
    if (at_end_) {
      line = std::exchange(buffer_, {});
      return line.empty() ? Event::kEnd : Event::kMessage;
    }
    if (buffer_.size() > kMaxMessageBytes) throw_bad_input("a line of input has more than {} bytes", kMaxMessageBytes);
    // poll, unlike read, returns when a signal comes.
    pollfd wait{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    const int ready = interrupted() ? -1 : ::poll(&wait, 1, -1);
    if (interrupted()) {
      if (terminal_) ::tcflush(STDIN_FILENO, TCIFLUSH);
      buffer_.clear();
      return Event::kInterrupted;
    }
    if (ready < 0) continue;
    char chunk[4096];
    const ssize_t size = ::read(STDIN_FILENO, chunk, sizeof(chunk));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) throw_bad_input("standard input cannot be read: {}", std::strerror(errno));
    if (size == 0) at_end_ = true;
    buffer_.append(chunk, static_cast<size_t>(size));
  }
}

ChatInput::Event ChatInput::next(std::string& message) {
  std::string line;
  Event event = read_line("> ", line);
  message.clear();
  if (event == Event::kMessage && line.starts_with(kBlockMark)) {
    line.erase(0, kBlockMark.size());
    while (event == Event::kMessage && !line.ends_with(kBlockMark)) {
      if (!message.empty() || !line.empty()) message += line + "\n";
      if (message.size() > kMaxMessageBytes) throw_bad_input("a message has more than {} bytes", kMaxMessageBytes);
      event = read_line(". ", line);
    }
    if (event == Event::kInterrupted) return event;
    if (event == Event::kEnd) throw_bad_input("the block of input has no end: close it with {}", kBlockMark);
    message += line.substr(0, line.size() - kBlockMark.size());
    if (message.ends_with('\n')) message.pop_back();
    return Event::kMessage;
  }
  while (event == Event::kMessage && line.ends_with('\\')) {
    line.back() = '\n';
    message += line;
    event = read_line(". ", line);
  }
  if (event == Event::kInterrupted) return event;
  if (event == Event::kMessage) message += line;
  return event == Event::kEnd && message.empty() ? Event::kEnd : Event::kMessage;
}

}  // namespace asymkv::app
