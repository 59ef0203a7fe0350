#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "asymkv/base/json.h"

namespace asymkv {

// Calls `row` with each line's value and its origin ("outcomes/N.jsonl:17"), in order. Throws Error{kBadInput} naming
// file and line for a line that is not JSON, an empty line, and a last line without its newline. Changes nothing.
void read_jsonl(const std::filesystem::path& path,
                const std::function<void(const Json& value, const std::string& origin)>& row);

}  // namespace asymkv
