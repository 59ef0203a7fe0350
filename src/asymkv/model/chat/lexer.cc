#include "asymkv/model/chat/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "asymkv/model/chat/text.h"

namespace asymkv::chat {
namespace {

constexpr std::array<std::string_view, 26> kOperators = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*",
                                                         "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                                         "]",  "{",  "}",  ".",  ":",  "|",  ",", ";"};

bool is_name_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// CRLF and CR become LF, and one newline at the end goes.
std::string normalize_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

void append_code_point(uint32_t code, std::string& out, const Context& context) {
  if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) context.fail("the escape U+{:X} is no character", code);
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int extra = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  const uint32_t lead = extra == 1 ? 0xC0U : extra == 2 ? 0xE0U : 0xF0U;
  out += static_cast<char>(lead | (code >> (6 * extra)));
  for (int i = extra - 1; i >= 0; --i) out += static_cast<char>(0x80U | ((code >> (6 * i)) & 0x3FU));
}

class Lexer {
 public:
  Lexer(std::string_view source, Context& context) : text_(normalize_newlines(source)), context_(context) {}

  std::vector<Token> run() {
    while (pos_ < text_.size()) read_data();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool starts(std::string_view what) const { return text_.compare(pos_, what.size(), what) == 0; }
  char peek(size_t ahead = 0) const { return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\0'; }

  // Moves on, keeping count of lines and columns.
  void advance(size_t count) {
    for (; count > 0; --count, ++pos_) {
      if (text_[pos_] == '\n') {
        ++at_.line;
        at_.column = 1;
      } else {
        ++at_.column;
      }
    }
  }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), at_}); }

  void skip_space() { advance(text_.size() - pos_ - strip_left(std::string_view(text_).substr(pos_)).size()); }

  // Text up to the next tag, then the tag.
  void read_data() {
    const size_t end = find_tag();
    std::string_view data = std::string_view(text_).substr(pos_, end - pos_);
    if (end < text_.size()) data = strip_before_tag(data, end);
    if (!data.empty()) add(TokenKind::kData, std::string(data));
    advance(end - pos_);
    if (pos_ < text_.size()) read_tag();
  }

  size_t find_tag() const {
    for (size_t i = pos_; i + 1 < text_.size(); ++i) {
      if (text_[i] == '{' && (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#')) return i;
    }
    return text_.size();
  }

  // `-` strips all white space before the tag; without a sign a block or comment strips what is between it and the
  // begin of its line.
  std::string_view strip_before_tag(std::string_view data, size_t tag) const {
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    if (sign == '-') return strip_right(data);
    if (sign == '+' || text_[tag + 1] == '{') return data;
    const size_t line = data.rfind('\n') + 1;  // 0 if there is none
    const bool at_line_begin = line > 0 || pos_ == 0 || text_[pos_ - 1] == '\n';
    return at_line_begin && strip_left(data.substr(line)).empty() ? data.substr(0, line) : data;
  }

  void read_tag() {
    context_.at = at_;
    const char kind = peek(1);
    if (kind == '#') return skip_comment();
    const size_t sign = peek(2) == '-' || peek(2) == '+' ? 1 : 0;
    if (kind == '%' && is_raw(pos_ + 2 + sign)) return read_raw(2 + sign);
    add(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, "");
    advance(2 + sign);
    read_expression(kind == '%');
  }

  // Behind a tag that closes with `close`: `-` strips white space, else a block takes one newline with it.
  void finish_tag(std::string_view close, bool trim_newline) {
    const bool strip = peek() == '-';
    if (strip || peek() == '+') advance(1);
    advance(close.size());
    if (strip) {
      skip_space();
    } else if (trim_newline && text_[pos_ - close.size() - 1] != '+' && peek() == '\n') {
      advance(1);
    }
  }

  void skip_comment() {
    const size_t end = text_.find("#}", pos_ + 2);
    if (end == std::string::npos) context_.fail("the comment has no end (\"#}}\")");
    const bool signed_end = end > pos_ + 2 && (text_[end - 1] == '-' || text_[end - 1] == '+');
    advance(end - pos_ - (signed_end ? 1 : 0));
    finish_tag("#}", true);
  }

  bool is_word(size_t& pos, std::string_view word) const {
    while (pos < text_.size() && std::isspace(static_cast<unsigned char>(text_[pos])) != 0) ++pos;
    if (text_.compare(pos, word.size(), word) != 0) return false;
    pos += word.size();
    while (pos < text_.size() && std::isspace(static_cast<unsigned char>(text_[pos])) != 0) ++pos;
    return true;
  }

  bool is_raw(size_t pos) const {
    if (!is_word(pos, "raw")) return false;
    return text_.compare(pos, 2, "%}") == 0 || text_.compare(pos, 3, "-%}") == 0;
  }

  // Whether a block ends here, with a sign or without.
  bool closes_block(size_t pos) const {
    const size_t sign = text_.compare(pos, 1, "-") == 0 || text_.compare(pos, 1, "+") == 0 ? 1 : 0;
    return text_.compare(pos + sign, 2, "%}") == 0;
  }

  void read_raw(size_t opening) {
    advance(opening);
    while (peek() != '%' && peek() != '-') advance(1);
    const bool strip = peek() == '-';
    advance(strip ? 3 : 2);
    if (strip) {
      skip_space();
    } else if (peek() == '\n') {
      advance(1);
    }
    for (size_t end = text_.find("{%", pos_); end != std::string::npos; end = text_.find("{%", end + 2)) {
      size_t pos = end + 2;
      if (text_.compare(pos, 1, "-") == 0 || text_.compare(pos, 1, "+") == 0) ++pos;
      if (!is_word(pos, "endraw") || !closes_block(pos)) continue;
      const std::string_view data = strip_before_tag(std::string_view(text_).substr(pos_, end - pos_), end);
      if (!data.empty()) add(TokenKind::kData, std::string(data));
      advance(pos - pos_);
      return finish_tag("%}", true);
    }
    context_.fail("the raw block has no end");
  }

  // Tokens up to the end of the tag.
  void read_expression(bool block) {
    const Position begin = at_;
    const std::string_view close = block ? "%}" : "}}";
    while (true) {
      skip_space();
      if (pos_ >= text_.size()) {
        context_.at = begin;
        context_.fail("the tag has no end (\"{}\")", close);
      }
      const size_t sign = peek() == '-' || (block && peek() == '+') ? 1 : 0;
      if (brackets_.empty() && text_.compare(pos_ + sign, 2, close) == 0) {
        add(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, "");
        return finish_tag(close, block);
      }
      read_token();
    }
  }

  void read_token() {
    context_.at = at_;
    const char c = peek();
    if (c == '"' || c == '\'') return read_string();
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) return read_number();
    if (is_name_char(c)) {
      size_t end = pos_;
      while (end < text_.size() && is_name_char(text_[end])) ++end;
      return take(TokenKind::kName, end);
    }
    for (const std::string_view op : kOperators) {
      if (!starts(op)) continue;
      track_brackets(op);
      return take(TokenKind::kOperator, pos_ + op.size());
    }
    context_.fail("unexpected character \"{}\"", c);
  }

  void take(TokenKind kind, size_t end) {
    add(kind, text_.substr(pos_, end - pos_));
    advance(end - pos_);
  }

  void track_brackets(std::string_view op) {
    if (op == "(" || op == "[" || op == "{") {
      brackets_ += op == "(" ? ')' : op == "[" ? ']' : '}';
    } else if (op == ")" || op == "]" || op == "}") {
      if (brackets_.empty() || brackets_.back() != op[0]) context_.fail("unexpected \"{}\"", op);
      brackets_.pop_back();
    }
  }

  void read_number() {
    const bool behind_dot =
        !tokens_.empty() && tokens_.back().kind == TokenKind::kOperator && tokens_.back().text == ".";
    const auto is_digit = [&](size_t i) {
      return i < text_.size() && std::isdigit(static_cast<unsigned char>(text_[i])) != 0;
    };
    size_t end = pos_;
    while (is_digit(end) || (end < text_.size() && text_[end] == '_' && is_digit(end + 1))) ++end;
    bool is_float = false;
    if (!behind_dot && end < text_.size() && text_[end] == '.' && is_digit(end + 1)) {
      is_float = true;
      for (++end; is_digit(end);) ++end;
    }
    if (!behind_dot && end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const size_t sign = end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-') ? 2 : 1;
      if (is_digit(end + sign)) {
        is_float = true;
        for (end += sign; is_digit(end);) ++end;
      }
    }
    if (end < text_.size() && is_name_char(text_[end]))
      context_.refuse("the number \"{}\" is not supported", text_.substr(pos_, end + 1 - pos_));
    std::string digits = text_.substr(pos_, end - pos_);
    std::erase(digits, '_');
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, std::move(digits));
    advance(end - pos_);
  }

  void read_string() {
    const char quote = peek();
    size_t end = pos_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2U : 1U;
    if (end >= text_.size()) context_.fail("the string has no end");
    add(TokenKind::kString, unescape(std::string_view(text_).substr(pos_ + 1, end - pos_ - 1)));
    advance(end + 1 - pos_);
  }

  std::string unescape(std::string_view raw) const {
    std::string out;
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '\\' || i + 1 == raw.size()) {
        out += raw[i];
        continue;
      }
      ++i;
      constexpr std::string_view kFrom = "nrtabfv\\'\"";
      constexpr std::string_view kTo = "\n\r\t\a\b\f\v\\'\"";
      if (const size_t known = kFrom.find(raw[i]); known != std::string_view::npos) {
        out += kTo[known];
      } else if (raw[i] == 'x' || raw[i] == 'u' || raw[i] == 'U') {
        const size_t digits = raw[i] == 'x' ? 2 : raw[i] == 'u' ? 4 : 8;
        append_code_point(hex(raw.substr(i + 1), digits), out, context_);
        i += digits;
      } else if (raw[i] >= '0' && raw[i] <= '7') {
        uint32_t code = 0;
        size_t digits = 0;
        for (; digits < 3 && i + digits < raw.size() && raw[i + digits] >= '0' && raw[i + digits] <= '7'; ++digits) {
          code = code * 8 + static_cast<uint32_t>(raw[i + digits] - '0');
        }
        append_code_point(code, out, context_);
        i += digits - 1;
      } else if (raw[i] == 'N') {
        context_.refuse("the escape \\N in a string is not supported");
      } else if (raw[i] != '\n') {
        out.append(1, '\\').append(1, raw[i]);  // Python keeps an escape it does not know
      }
    }
    return out;
  }

  uint32_t hex(std::string_view text, size_t digits) const {
    uint32_t code = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = i < text.size() ? text[i] : '\0';
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0)
        context_.fail("a \\x or \\u escape needs {} digits", digits);
      const auto value =
          static_cast<uint32_t>(std::isdigit(static_cast<unsigned char>(c)) != 0 ? c - '0' : (c | 0x20) - 'a' + 10);
      code = code * 16 + value;
    }
    return code;
  }

  const std::string text_;
  Context& context_;
  size_t pos_ = 0;
  Position at_;
  std::string brackets_;  // closing ones that are due
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, Context& context) {
  return Lexer(source, context).run();
}

}  // namespace asymkv::chat
