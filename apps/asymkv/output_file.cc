#include "output_file.h"

#include <unistd.h>

#include "asymkv/base/error.h"

namespace asymkv::app {

namespace fs = std::filesystem;

void check_output_file(const fs::path& path, std::string_view option) {
  if (fs::is_directory(path)) throw_usage("{} {} is a folder: name a file", option, path.string());
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(folder)) throw_usage("{} {}: there is no folder {}", option, path.string(), folder.string());
  if (::access(folder.c_str(), W_OK) == 0) return;
  throw_usage("{} {}: the folder {} is not writable", option, path.string(), folder.string());
}

}  // namespace asymkv::app
