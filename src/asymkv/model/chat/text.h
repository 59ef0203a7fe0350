#pragma once

#include <string>
#include <string_view>
#include <vector>

// Python's string operations on UTF-8. Ill-formed bytes are treated as one character each.
namespace asymkv::chat {

// Begin of each character, and the size at the end.
std::vector<size_t> character_offsets(std::string_view text);
size_t count_characters(std::string_view text);

// Without white space (Python's str.isspace), or without the given characters, at the begin or the end.
std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);
std::string_view strip_left(std::string_view text, std::string_view characters);
std::string_view strip_right(std::string_view text, std::string_view characters);

// One-to-one case mappings: a character whose other case is several ("ß") stays as it is.
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);        // first letter of every word upper, others lower
std::string to_capitalized(std::string_view text);  // first character upper, others lower

std::string escape_html(std::string_view text);
// `from` is not empty; at most `count` replacements, negative: all.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to, long count);
std::vector<std::string_view> split_lines(std::string_view text);
// At white space (runs count once), or at a separator; at most `limit` cuts, negative: all.
std::vector<std::string_view> split_space(std::string_view text, long limit);
std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, long limit);
std::vector<std::string_view> split_at_right(std::string_view text, std::string_view separator, long limit);

}  // namespace asymkv::chat
