#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace asymkv {

// Whole file as text. Throws Error{kBadInput} naming the path.
std::string read_text_file(const std::filesystem::path& path);

// Writes through a temporary file in the same folder, fsync and rename, so that a reader (or a kill -9) sees either
// the old bytes or the new ones. Throws Error{kResourceExhausted} naming the path and the system's reason.
void write_file_atomic(const std::filesystem::path& path, std::string_view bytes);

// A read-only memory map of a whole file. Movable; unmaps on destruction. An empty file maps to an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error{kBadInput} if the path is missing, unreadable or not a regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Takes the pages out of this process's resident memory; reading them brings them back from the file.
  void drop_resident_pages() const;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace asymkv
