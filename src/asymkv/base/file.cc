#include "asymkv/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void throw_write_error(const std::filesystem::path& path, const char* step) {
  throw_error(ErrorCode::kResourceExhausted, "cannot write {}: {}: {}", path.string(), step, std::strerror(errno));
}

void sync_folder(const std::filesystem::path& folder) {
  const FileDescriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0) ::fsync(fd.get());
}

}  // namespace

std::string read_text_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

void write_file_atomic(const std::filesystem::path& path, std::string_view bytes) {
  const std::filesystem::path temporary = path.string() + fmt::format(".tmp{}", ::getpid());
  {
    const FileDescriptor fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (fd.get() < 0) throw_write_error(temporary, "open");
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t n = ::write(fd.get(), bytes.data() + done, bytes.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw_write_error(temporary, "write");
      done += static_cast<size_t>(n);
    }
    if (::fsync(fd.get()) != 0) throw_write_error(temporary, "fsync");
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) throw_write_error(path, "rename");
  sync_folder(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK: opening a pipe without a writer must not wait; it is refused below. Regular files do not care.
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) throw_bad_input("cannot open {}: {}", path.string(), std::strerror(errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_bad_input("cannot stat {}: {}", path.string(), std::strerror(errno));
  if (!S_ISREG(info.st_mode)) throw_bad_input("{} is not a regular file", path.string());
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) {
    const ErrorCode code = errno == ENOMEM ? ErrorCode::kResourceExhausted : ErrorCode::kBadInput;
    throw_error(code, "cannot map {} ({} bytes): {}", path.string(), size_, std::strerror(errno));
  }
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop_resident_pages() const {
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace asymkv
