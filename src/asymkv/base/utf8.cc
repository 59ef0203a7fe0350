#include "asymkv/base/utf8.h"

#include <algorithm>
#include <cstdint>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

enum class SequenceKind { kWellFormed, kIllFormed, kIncomplete };
struct Sequence {
  SequenceKind kind;
  size_t length;  // bytes; of an ill-formed one, its maximal subpart
};

// Bounds of the second byte after `lead` (Unicode table 3-7): they exclude overlong forms, surrogates and > U+10FFFF.
struct SecondByte {
  uint8_t low, high;
};
SecondByte second_byte_bounds(uint8_t lead) {
  switch (lead) {
    case 0xE0:
      return {0xA0, 0xBF};
    case 0xED:
      return {0x80, 0x9F};
    case 0xF0:
      return {0x90, 0xBF};
    case 0xF4:
      return {0x80, 0x8F};
    default:
      return {0x80, 0xBF};
  }
}

size_t sequence_length(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

Sequence scan_sequence(std::string_view text, size_t pos) {
  const auto byte_at = [&](size_t i) { return static_cast<uint8_t>(text[pos + i]); };
  const size_t length = sequence_length(byte_at(0));
  if (length == 0) return {SequenceKind::kIllFormed, 1};
  const size_t available = std::min(length, text.size() - pos);
  SecondByte bounds = second_byte_bounds(byte_at(0));
  for (size_t i = 1; i < available; ++i) {
    if (byte_at(i) < bounds.low || byte_at(i) > bounds.high) return {SequenceKind::kIllFormed, i};
    bounds = {0x80, 0xBF};
  }
  return {available == length ? SequenceKind::kWellFormed : SequenceKind::kIncomplete, available};
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const Sequence sequence = scan_sequence(text, pos);
    if (sequence.kind != SequenceKind::kWellFormed) return pos;
    pos += sequence.length;
  }
  return std::string_view::npos;
}

void require_utf8(std::string_view text, std::string_view origin) {
  if (const size_t bad = find_invalid_utf8(text); bad != std::string_view::npos) {
    throw_bad_input("{} is not valid UTF-8 at byte {}", origin, bad);
  }
}

char32_t next_code_point(std::string_view text, size_t& pos) {
  const auto lead = static_cast<uint8_t>(text[pos]);
  const size_t length = sequence_length(lead);
  char32_t value = length == 1 ? lead : lead & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) value = (value << 6) | (static_cast<uint8_t>(text[pos + i]) & 0x3FU);
  pos += length;
  return value;
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto continuation = [&](unsigned shift) { out += static_cast<char>(0x80U | ((code_point >> shift) & 0x3FU)); };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xC0U | (code_point >> 6));
    continuation(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xE0U | (code_point >> 12));
    continuation(6);
    continuation(0);
  } else {
    out += static_cast<char>(0xF0U | (code_point >> 18));
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

std::string take_utf8(std::string& bytes, bool end_of_text) {
  std::string text;
  text.reserve(bytes.size());
  size_t pos = 0;
  while (pos < bytes.size()) {
    const Sequence sequence = scan_sequence(bytes, pos);
    if (sequence.kind == SequenceKind::kIncomplete && !end_of_text) break;
    if (sequence.kind == SequenceKind::kWellFormed) {
      text.append(bytes, pos, sequence.length);
    } else {
      text += kReplacement;
    }
    pos += sequence.length;
  }
  bytes.erase(0, pos);
  return text;
}

}  // namespace asymkv
