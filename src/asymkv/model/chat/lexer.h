#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "asymkv/model/chat/context.h"

namespace asymkv::chat {

enum class TokenKind {
  kData,           // text between tags, white space control applied
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,  // text: the string's value
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  Position at;
};

// Cuts a template into tokens as jinja2 does with trim_blocks and lstrip_blocks on (transformers' environment):
// comments and raw blocks resolved, `-` and `+` obeyed, one newline at the end dropped. Ends with kEnd. Throws
// Error{kBadInput} through `context` naming line and column.
std::vector<Token> tokenize(std::string_view source, Context& context);

}  // namespace asymkv::chat
