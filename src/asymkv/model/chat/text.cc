#include "asymkv/model/chat/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <functional>

namespace asymkv::chat {
namespace {

constexpr utf8proc_int32_t kIllFormed = -1;

struct Character {
  utf8proc_int32_t code = kIllFormed;
  size_t bytes = 1;
};

Character character_at(std::string_view text, size_t pos) {
  utf8proc_int32_t code = 0;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + pos;
  const utf8proc_ssize_t used = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - pos), &code);
  if (used <= 0) return {};
  return {code, static_cast<size_t>(used)};
}

// Character that ends before `end`.
Character character_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) --begin;
  const Character found = character_at(text, begin);
  return begin + found.bytes == end ? found : Character{};
}

// Python's str.isspace.
bool is_space(utf8proc_int32_t c) {
  return (c >= 0x9 && c <= 0xD) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

void append(std::string& out, utf8proc_int32_t code) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(code, bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

using CaseOf = std::function<utf8proc_int32_t(utf8proc_int32_t)>;

std::string map_characters(std::string_view text, const CaseOf& map) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Character c = character_at(text, pos);
    if (c.code == kIllFormed) {
      out += text[pos];
    } else {
      append(out, map(c.code));
    }
    pos += c.bytes;
  }
  return out;
}

bool is_cased(utf8proc_int32_t code) {
  return utf8proc_toupper(code) != code || utf8proc_tolower(code) != code;
}

bool in_set(std::string_view text, size_t pos, size_t bytes, std::string_view characters) {
  return characters.find(text.substr(pos, bytes)) != std::string_view::npos;
}

}  // namespace

std::vector<size_t> character_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t pos = 0; pos < text.size(); pos += character_at(text, pos).bytes) offsets.push_back(pos);
  offsets.push_back(text.size());
  return offsets;
}

size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (size_t pos = 0; pos < text.size(); pos += character_at(text, pos).bytes) ++count;
  return count;
}

std::string_view strip_left(std::string_view text) {
  while (!text.empty()) {
    const Character c = character_at(text, 0);
    if (!is_space(c.code)) break;
    text.remove_prefix(c.bytes);
  }
  return text;
}

std::string_view strip_right(std::string_view text) {
  while (!text.empty()) {
    const Character c = character_before(text, text.size());
    if (!is_space(c.code)) break;
    text.remove_suffix(c.bytes);
  }
  return text;
}

std::string_view strip_left(std::string_view text, std::string_view characters) {
  while (!text.empty()) {
    const size_t bytes = character_at(text, 0).bytes;
    if (!in_set(text, 0, bytes, characters)) break;
    text.remove_prefix(bytes);
  }
  return text;
}

std::string_view strip_right(std::string_view text, std::string_view characters) {
  while (!text.empty()) {
    const size_t bytes = character_before(text, text.size()).bytes;
    if (!in_set(text, text.size() - bytes, bytes, characters)) break;
    text.remove_suffix(bytes);
  }
  return text;
}

std::string to_upper(std::string_view text) {
  return map_characters(text, utf8proc_toupper);
}

std::string to_lower(std::string_view text) {
  return map_characters(text, utf8proc_tolower);
}

std::string to_title(std::string_view text) {
  bool in_word = false;
  return map_characters(text, [&in_word](utf8proc_int32_t code) {
    const utf8proc_int32_t mapped = in_word ? utf8proc_tolower(code) : utf8proc_totitle(code);
    in_word = is_cased(code);
    return mapped;
  });
}

std::string to_capitalized(std::string_view text) {
  bool first = true;
  return map_characters(text, [&first](utf8proc_int32_t code) {
    const utf8proc_int32_t mapped = first ? utf8proc_totitle(code) : utf8proc_tolower(code);
    first = false;
    return mapped;
  });
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    constexpr std::string_view kSpecial = "&<>'\"";
    constexpr std::string_view kEscapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const size_t special = kSpecial.find(c);
    if (special == std::string_view::npos) {
      out += c;
    } else {
      out += kEscapes[special];
    }
  }
  return out;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to, long count) {
  std::string out;
  size_t begin = 0;
  for (; count != 0; --count) {
    const size_t found = text.find(from, begin);
    if (found == std::string_view::npos) break;
    out.append(text.substr(begin, found - begin)).append(to);
    begin = found + from.size();
  }
  return out.append(text.substr(begin));
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const Character c = character_at(text, pos);
    const bool is_break = (c.code >= 0xA && c.code <= 0xD) || (c.code >= 0x1C && c.code <= 0x1E) || c.code == 0x85 ||
                          c.code == 0x2028 || c.code == 0x2029;
    size_t next = pos + c.bytes;
    if (is_break) {
      lines.push_back(text.substr(begin, pos - begin));
      if (text[pos] == '\r' && next < text.size() && text[next] == '\n') ++next;
      begin = next;
    }
    pos = next;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::vector<std::string_view> split_space(std::string_view text, long limit) {
  std::vector<std::string_view> parts;
  text = strip_left(text);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<long>(parts.size()) == limit) {
      parts.push_back(strip_right(text));
      break;
    }
    size_t end = 0;
    while (end < text.size() && !is_space(character_at(text, end).code)) end += character_at(text, end).bytes;
    parts.push_back(text.substr(0, end));
    text = strip_left(text.substr(end));
  }
  return parts;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, long limit) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (; limit != 0; --limit) {
    const size_t found = text.find(separator, begin);
    if (found == std::string_view::npos) break;
    parts.push_back(text.substr(begin, found - begin));
    begin = found + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string_view> split_at_right(std::string_view text, std::string_view separator, long limit) {
  std::vector<std::string_view> parts;
  for (; limit != 0 && text.size() >= separator.size(); --limit) {
    const size_t found = text.rfind(separator);
    if (found == std::string_view::npos) break;
    parts.push_back(text.substr(found + separator.size()));
    text = text.substr(0, found);
  }
  parts.push_back(text);
  std::ranges::reverse(parts);
  return parts;
}

}  // namespace asymkv::chat
