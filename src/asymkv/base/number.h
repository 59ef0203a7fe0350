#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace asymkv {

// The whole text as one decimal number, or nothing: no blanks, no plus sign, no other letters, no number out of range.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace asymkv
