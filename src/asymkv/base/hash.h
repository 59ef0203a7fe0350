#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace asymkv {

// Incremental SHA-256 (OpenSSL). hex_digest() may be called once.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  std::string hex_digest();

 private:
  void* context_;
};

std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view text);
// SHA-256 of a file's bytes. Throws Error{kBadInput} naming the path if it cannot be read.
std::string sha256_file_hex(const std::filesystem::path& path);

}  // namespace asymkv
