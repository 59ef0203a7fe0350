#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace asymkv {

// Offset of the first byte that is not part of well-formed UTF-8 (RFC 3629); npos if there is none.
size_t find_invalid_utf8(std::string_view text);
// Throws Error{kBadInput} with that offset unless the text is well-formed; `origin` (a path, "--option") is named.
void require_utf8(std::string_view text, std::string_view origin);

// Code point at `pos` of well-formed text; moves `pos` behind it.
char32_t next_code_point(std::string_view text, size_t& pos);

void append_utf8(char32_t code_point, std::string& out);

// Moves text out of `bytes`. Each maximal ill-formed part becomes one U+FFFD (Unicode 3.9, "substitution of maximal
// subparts"; what Rust's from_utf8_lossy and Python's errors="replace" do). An incomplete sequence at the end stays in
// `bytes`, unless `end_of_text` says that nothing follows: then it is ill-formed too.
std::string take_utf8(std::string& bytes, bool end_of_text);

}  // namespace asymkv
