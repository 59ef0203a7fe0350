#include "asymkv/model/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "asymkv/base/utf8.h"

namespace asymkv::tokenizer {
namespace {

constexpr char32_t kAlphabetEnd = 0x144;  // 256 + the 68 bytes that have no printable Latin-1 character

struct Alphabet {
  std::array<std::string, 256> character;
  std::array<int16_t, kAlphabetEnd> byte;  // by code point, -1 for none

  Alphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      const char32_t code_point = printable ? b : next++;
      append_utf8(code_point, character[b]);
      byte[code_point] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

std::string_view byte_level_char(unsigned char byte) {
  return alphabet().character[byte];
}

std::string to_byte_level(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += byte_level_char(static_cast<unsigned char>(c));
  return out;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  if (find_invalid_utf8(text) != std::string_view::npos) return std::nullopt;
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t code_point = next_code_point(text, pos);
    if (code_point >= kAlphabetEnd || alphabet().byte[code_point] < 0) return std::nullopt;
    out += static_cast<char>(alphabet().byte[code_point]);
  }
  return out;
}

}  // namespace asymkv::tokenizer
