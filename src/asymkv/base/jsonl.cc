#include "asymkv/base/jsonl.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"

namespace asymkv {

JsonlRepair read_jsonl_repair(const std::filesystem::path& path) {
  JsonlRepair result;
  if (!std::filesystem::exists(path)) return result;
  const std::string text = read_text_file(path);
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    result.lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  result.torn_bytes = static_cast<int64_t>(text.size() - begin);
  if (result.torn_bytes > 0) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    const bool ok = fd >= 0 && ::ftruncate(fd, static_cast<off_t>(begin)) == 0 && ::fsync(fd) == 0;
    const int error = errno;
    if (fd >= 0) ::close(fd);
    if (!ok) throw_bad_input("cannot cut the torn last line off {}: {}", path.string(), std::strerror(error));
  }
  return result;
}

JsonlAppender::JsonlAppender(const std::filesystem::path& path)
    : path_(path), fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (fd_ < 0) throw_error(ErrorCode::kResourceExhausted, "cannot open {}: {}", path.string(), std::strerror(errno));
}

JsonlAppender::~JsonlAppender() {
  ::close(fd_);
}

void JsonlAppender::append(std::string_view lines) {
  ASYMKV_CHECK(!lines.empty() && lines.back() == '\n', "append to {} without a final newline", path_.string());
  size_t done = 0;
  while (done < lines.size()) {
    const ssize_t n = ::write(fd_, lines.data() + done, lines.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      throw_error(ErrorCode::kResourceExhausted, "cannot append to {}: {}", path_.string(), std::strerror(errno));
    done += static_cast<size_t>(n);
  }
  if (::fsync(fd_) != 0) {
    throw_error(ErrorCode::kResourceExhausted, "cannot sync {}: {}", path_.string(), std::strerror(errno));
  }
}

}  // namespace asymkv
