#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "asymkv/base/error.h"
#include "asymkv/model/tokenizer/pattern.h"

namespace asymkv::tokenizer {
namespace {

// Insides of a class; each ends with a range, so that a hyphen behind it stays a hyphen. White space is Unicode's
// White_Space; PCRE2's \s also takes U+180E.
constexpr std::string_view kSpace =
    R"(\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{9}-\x{D})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027})"
    R"(\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";
// Alphabetic, marks, decimal digits, connectors; the ranges are the alphabetic symbols (Other_Alphabetic in So).
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";

constexpr std::string_view kHexDigits = "0123456789abcdefABCDEF";

bool is_ascii_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view field) : in_(pattern), field_(field) {}

  std::string run() {
    while (pos_ < in_.size()) translate_one();
    return std::move(out_);
  }

 private:
  void translate_one() {
    switch (in_[pos_]) {
      case '\\':
        return translate_escape(false);
      case '[':
        return translate_class();
      case '(':
        return translate_group_start();
      case '^':
      case '$':
        return refuse("an anchor", 1);
      case '{':
        return translate_interval();
      default:
        out_ += in_[pos_++];
    }
  }

  void translate_group_start() {
    if (peek(1) == '*') refuse("a verb", 2);
    if (peek(1) != '?') return copy(1);
    for (const std::string_view start : {"(?:", "(?i:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
      if (in_.substr(pos_).starts_with(start)) return copy(start.size());
    }
    refuse("a group", 4);
  }

  // Only {n}, {n,}, {n,m} and their lazy forms: the two dialects disagree on {,m}, {n}? and {n,m}+.
  void translate_interval() {
    const size_t close = in_.find('}', pos_);
    if (close == std::string_view::npos) refuse("a brace", 1);
    const std::string_view inside = in_.substr(pos_ + 1, close - pos_ - 1);
    const bool digits_only = inside.find_first_not_of("0123456789,") == std::string_view::npos;
    if (inside.empty() || inside[0] == ',' || !digits_only) refuse("an interval", close - pos_ + 1);
    copy(close - pos_ + 1);
    const bool exact = inside.find(',') == std::string_view::npos;
    if (peek(0) == '+' || (exact && peek(0) == '?')) refuse("a quantifier after an interval", 1);
  }

  void translate_class() {
    copy(1);
    if (peek(0) == '^') copy(1);
    if (peek(0) == ']') refuse("an empty class", 1);
    while (peek(0) != ']') {
      if (pos_ >= in_.size()) refuse("a class without end", 0);
      if (in_[pos_] == '[') refuse("a class inside a class", 1);
      if (in_.substr(pos_).starts_with("&&")) refuse("a class intersection", 2);
      if (in_[pos_] == '\\') {
        translate_escape(true);
      } else {
        copy(1);
      }
    }
    copy(1);
  }

  void translate_escape(bool in_class) {
    const char c = peek(1);
    if (in_class && std::string_view("sSdDwWpP").find(c) != std::string_view::npos) refuse_range_to_class();
    const auto put_class = [&](std::string_view inside, bool negated) {
      out_ += in_class ? std::string(inside) : fmt::format("[{}{}]", negated ? "^" : "", inside);
      pos_ += 2;
    };
    if (c == 's') return put_class(kSpace, false);
    if (c == 'S') return in_class ? put_class(kNotSpace, false) : put_class(kSpace, true);
    if (c == 'd') return put_class(R"(\p{Nd})", false);
    if (c == 'D') return put_class(R"(\P{Nd})", false);
    if (c == 'w') return put_class(kWord, false);
    if (c == 'W' && !in_class) return put_class(kWord, true);
    if (c == 'p' || c == 'P') return translate_property();
    if (c == 'x' || c == 'u') return translate_code_point();
    // \v is one character in Oniguruma, all vertical space in PCRE2.
    if (c == 'v') return put_literal(R"(\x{B})");
    if (c == 'r' || c == 'n' || c == 't' || c == 'f' || c == 'e') return copy(2);
    if (c == '\0' || is_ascii_letter_or_digit(c) || static_cast<unsigned char>(c) >= 0x80) refuse("an escape", 2);
    copy(2);
  }

  void translate_property() {
    const size_t close = in_.find('}', pos_);
    if (peek(2) != '{' || close == std::string_view::npos) refuse("a property", 2);
    std::string_view name = in_.substr(pos_ + 3, close - pos_ - 3);
    if (name.starts_with('^')) name.remove_prefix(1);
    for (const char c : name) {
      if (!is_ascii_letter_or_digit(c) && c != '_') refuse("a property", close - pos_ + 1);
    }
    copy(close - pos_ + 1);
  }

  // \xH, \xHH, \x{H..} and \uHHHH; always written as \x{..}.
  void translate_code_point() {
    size_t begin = pos_ + 2;
    size_t end = 0;
    if (peek(1) == 'x' && peek(2) == '{') {
      ++begin;
      end = in_.find('}', pos_);
      if (end == std::string_view::npos) refuse("an escape", 3);
    } else {
      const size_t longest = peek(1) == 'u' ? 4 : 2;
      end = std::min(in_.find_first_not_of(kHexDigits, begin), std::min(in_.size(), begin + longest));
      if (peek(1) == 'u' && end - begin != longest) refuse("an escape", 2);
    }
    const std::string digits(in_.substr(begin, end - begin));
    const bool hex = !digits.empty() && digits.find_first_not_of(kHexDigits) == std::string::npos;
    // Two-digit bytes above 7F are raw bytes in Oniguruma.
    const bool raw_byte = peek(1) == 'x' && peek(2) != '{' && digits.size() == 2 && digits[0] >= '8';
    if (!hex || digits.size() > 6 || raw_byte) refuse("an escape", 2);
    if (in_[begin - 1] == '{') ++end;
    out_ += fmt::format("\\x{{{}}}", digits);
    pos_ = end;
  }

  // "[a-\s]": a hyphen that would become a range once the class is spelled out.
  void refuse_range_to_class() const {
    const std::string_view before = in_.substr(0, pos_);
    const bool harmless =
        !before.ends_with('-') || before.ends_with("[-") || before.ends_with("[^-") || before.ends_with("\\-");
    if (!harmless) refuse("a range to a class", 2);
  }

  void put_literal(std::string_view text) {
    out_ += text;
    pos_ += 2;
  }

  char peek(size_t ahead) const { return pos_ + ahead < in_.size() ? in_[pos_ + ahead] : '\0'; }

  void copy(size_t length) {
    out_ += in_.substr(pos_, length);
    pos_ = std::min(in_.size(), pos_ + length);
  }

  [[noreturn]] void refuse(std::string_view what, size_t length) const {
    throw_unsupported("{}: pattern has {} that is not supported, \"{}\" at byte {}", field_, what,
                      in_.substr(std::min(pos_, in_.size()), length), pos_);
  }

  std::string_view in_;
  std::string_view field_;
  size_t pos_ = 0;
  std::string out_;
};

}  // namespace

std::string translate_pattern(std::string_view pattern, std::string_view field) {
  return Translator(pattern, field).run();
}

}  // namespace asymkv::tokenizer
