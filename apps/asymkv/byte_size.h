#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace asymkv::app {

// "40GiB", "36MiB", "512KiB", "1TiB", decimal "24GB" (also kB, MB, TB) or plain bytes ("1048576", "1048576B"): whole
// numbers only, so that the bytes are exact. Throws Error{kUsage} naming the option and the text.
int64_t parse_byte_size(std::string_view text, std::string_view option);

// "37.3535 GiB": four decimals, for people.
std::string gib_text(int64_t bytes);

}  // namespace asymkv::app
