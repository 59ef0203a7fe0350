#pragma once

#include <filesystem>
#include <string_view>

namespace asymkv::app {

// Refuses an output file that could not be written, before the work that fills it. Nothing is created. `option` is
// named in the error. Throws Error{kUsage} for a folder and for a file in a folder that is missing or not writable.
void check_output_file(const std::filesystem::path& path, std::string_view option);

}  // namespace asymkv::app
