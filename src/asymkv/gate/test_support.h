#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "asymkv/base/error_testkit.h"

namespace asymkv::test {

// A folder that is gone when the test ends.
class TempFolder {
 public:
  TempFolder() {
    static std::atomic<int> next = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("asymkv-gate-" + std::to_string(::getpid()) + "-" + std::to_string(next++));
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace asymkv::test
