#include "asymkv/model/tokenizer/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "asymkv/base/utf8.h"

namespace asymkv::tokenizer {
namespace {

// Code point that ends before `pos`; moves `pos` to its begin.
char32_t previous_code_point(std::string_view text, size_t& pos) {
  do {
    --pos;
  } while (pos > 0 && (static_cast<unsigned char>(text[pos]) & 0xC0U) == 0x80U);
  size_t begin = pos;
  return next_code_point(text, begin);
}

// Unicode's White_Space.
bool is_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Unicode's word characters (UTS 18): alphabetic, marks, decimal digits, connectors, join controls.
bool is_word(char32_t c) {
  const bool alphabetic_symbol = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                                 (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  if (alphabetic_symbol || c == 0x200C || c == 0x200D) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

bool is_single_word(std::string_view text, size_t begin, size_t end) {
  if (begin > 0) {
    size_t pos = begin;
    if (is_word(previous_code_point(text, pos))) return false;
  }
  return end == text.size() || !is_word(next_code_point(text, end));
}

size_t strip_left(std::string_view text, size_t begin, size_t lowest) {
  while (begin > lowest) {
    size_t pos = begin;
    if (!is_space(previous_code_point(text, pos))) break;
    begin = pos;
  }
  return std::max(begin, lowest);
}

size_t strip_right(std::string_view text, size_t end) {
  while (end < text.size()) {
    size_t pos = end;
    if (!is_space(next_code_point(text, pos))) break;
    end = pos;
  }
  return end;
}

}  // namespace

void AddedTokenSet::add(std::string_view spelling, const AddedToken& token) {
  if (spelling.empty()) return;
  uint32_t node = 0;
  for (const char c : spelling) {
    const auto [it, is_new] = nodes_[node].next.try_emplace(c, static_cast<uint32_t>(nodes_.size()));
    node = it->second;
    if (is_new) nodes_.emplace_back();
  }
  if (nodes_[node].token == nullptr) nodes_[node].token = &token;
  is_first_byte_[static_cast<unsigned char>(spelling[0])] = true;
}

AddedTokenSet::Found AddedTokenSet::longest_at(std::string_view text, size_t pos) const {
  Found found;
  uint32_t node = 0;
  for (size_t i = pos; i < text.size(); ++i) {
    const auto it = nodes_[node].next.find(text[i]);
    if (it == nodes_[node].next.end()) break;
    node = it->second;
    if (nodes_[node].token != nullptr) found = {nodes_[node].token, i + 1 - pos};
  }
  return found;
}

bool touches(std::span<const TextRange> ranges, TextRange range) {
  const auto next = std::ranges::upper_bound(ranges, range.begin, {}, &TextRange::end);
  return next != ranges.end() && next->begin < range.end;
}

std::vector<Segment> AddedTokenSet::split(std::string_view text, bool parse_special,
                                          std::span<const TextRange> plain) const {
  std::vector<Segment> segments;
  size_t covered = 0;
  for (size_t pos = 0; pos < text.size() && !empty();) {
    const bool may_begin = is_first_byte_[static_cast<unsigned char>(text[pos])];
    const Found found = may_begin ? longest_at(text, pos) : Found{};
    if (found.token == nullptr) {
      ++pos;
      continue;
    }
    size_t begin = pos;
    size_t end = pos + found.length;
    pos = end;
    if (found.token->special && (!parse_special || touches(plain, {begin, end}))) continue;
    if (found.token->single_word && !is_single_word(text, begin, end)) continue;
    if (found.token->lstrip) begin = strip_left(text, begin, std::min(covered, begin));
    if (found.token->rstrip) end = strip_right(text, end);
    if (begin > covered) segments.push_back({text.substr(covered, begin - covered)});
    segments.push_back({text.substr(begin, end - begin), found.token});
    covered = std::max(covered, end);
  }
  if (covered < text.size()) segments.push_back({text.substr(covered)});
  return segments;
}

}  // namespace asymkv::tokenizer
