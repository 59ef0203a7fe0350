#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace asymkv {

struct JsonlRepair {
  std::vector<std::string> lines;  // complete lines, without their newline
  int64_t torn_bytes = 0;          // bytes after the last newline that were cut off the file
};

// Reads a line-per-record file that a process may have died writing: a last line without its newline is cut off the
// file (truncate + fsync) and reported in torn_bytes. A missing file gives no lines. Throws Error{kBadInput}.
JsonlRepair read_jsonl_repair(const std::filesystem::path& path);

// Appends whole lines; each append is one write(2) followed by fsync, so that a committed line survives a crash.
class JsonlAppender {
 public:
  // Throws Error{kResourceExhausted} naming the path.
  explicit JsonlAppender(const std::filesystem::path& path);
  ~JsonlAppender();
  JsonlAppender(const JsonlAppender&) = delete;
  JsonlAppender& operator=(const JsonlAppender&) = delete;
  // `lines` is one or more complete lines, each ended by '\n'.
  void append(std::string_view lines);

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace asymkv
