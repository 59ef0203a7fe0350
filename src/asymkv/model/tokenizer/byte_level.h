#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace asymkv::tokenizer {

// GPT-2's reversible map between the 256 byte values and 256 printable characters, in which published vocabularies
// are written: bytes 33..126, 161..172 and 174..255 stand for themselves, the others for U+0100 upwards in order.
std::string_view byte_level_char(unsigned char byte);

std::string to_byte_level(std::string_view bytes);

// The bytes a byte-level string stands for; empty if it holds a character outside the alphabet. The argument may be
// any bytes (GGUF strings are not checked to be UTF-8).
std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace asymkv::tokenizer
