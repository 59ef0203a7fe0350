#pragma once

#include <string>

namespace asymkv::app {

// Reads messages from standard input: a line, lines joined by a backslash at their end, or a block between lines that
// begin and end with """. Prompts are written only where both standard input and output are terminals.
class ChatInput {
 public:
  enum class Event { kMessage, kInterrupted, kEnd };

  ChatInput();
  bool is_terminal() const { return terminal_; }
  // kInterrupted: Ctrl-C while waiting; what had been typed is dropped. kEnd: end of input, all messages delivered.
  Event next(std::string& message);

 private:
  Event read_line(const char* prompt, std::string& line);

  bool terminal_;
  bool at_end_ = false;
  std::string buffer_;  // read but not yet delivered
};

}  // namespace asymkv::app
