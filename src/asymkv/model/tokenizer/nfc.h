#pragma once

#include <string>
#include <string_view>

namespace asymkv::tokenizer {

// Unicode normal form C of well-formed UTF-8. Time is n log n at worst, also for long runs of combining marks.
std::string normalize_nfc(std::string_view text);

}  // namespace asymkv::tokenizer
