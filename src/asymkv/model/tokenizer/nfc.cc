#include "asymkv/model/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/utf8.h"

namespace asymkv::tokenizer {
namespace {

using CodePoints = std::vector<utf8proc_int32_t>;

// No character below this one changes under NFC, whatever stands beside it.
constexpr char32_t kFirstThatMayChange = 0x300;

bool may_change(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    if (next_code_point(text, pos) >= kFirstThatMayChange) return true;
  }
  return false;
}

CodePoints decompose(std::string_view text) {
  // The longest canonical decomposition of one character is four (U+1F82 and its like).
  std::array<utf8proc_int32_t, 32> parts;
  CodePoints out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const auto code_point = static_cast<utf8proc_int32_t>(next_code_point(text, pos));
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
    const auto count = utf8proc_decompose_char(code_point, parts.data(), parts.size(), options, nullptr);
    ASYMKV_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()), "decomposition of U+{:04X}: {}",
                 code_point, count);
    out.insert(out.end(), parts.begin(), parts.begin() + count);
  }
  return out;
}

int combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// Canonical ordering. utf8proc's own pass is an insertion sort, quadratic in a run of marks: an easy attack.
void sort_marks(CodePoints& text) {
  const auto is_mark = [](utf8proc_int32_t c) { return combining_class(c) != 0; };
  for (auto begin = std::find_if(text.begin(), text.end(), is_mark); begin != text.end();) {
    const auto end = std::find_if_not(begin, text.end(), is_mark);
    std::ranges::stable_sort(begin, end, {}, combining_class);
    begin = std::find_if(end, text.end(), is_mark);
  }
}

}  // namespace

std::string normalize_nfc(std::string_view text) {
  if (!may_change(text)) return std::string(text);
  CodePoints points = decompose(text);
  sort_marks(points);
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto count = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), options);
  ASYMKV_CHECK(count >= 0, "utf8proc: {}", utf8proc_errmsg(count));
  std::string out;
  out.reserve(text.size());
  for (const auto code_point : std::span(points).first(static_cast<size_t>(count))) {
    append_utf8(static_cast<char32_t>(code_point), out);
  }
  return out;
}

}  // namespace asymkv::tokenizer
