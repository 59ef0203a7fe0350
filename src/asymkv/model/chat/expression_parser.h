#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/model/chat/lexer.h"
#include "asymkv/model/chat/syntax.h"

namespace asymkv::chat {

// Reads expressions from a list of tokens, with jinja2's grammar and precedence.
class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, Context& context) : tokens_(std::move(tokens)), context_(context) {}

  const Token& current() const { return tokens_[next_]; }
  const Token& look_ahead() const { return tokens_[std::min(next_ + 1, tokens_.size() - 1)]; }
  Token take();
  bool is_operator(std::string_view op) const { return is(TokenKind::kOperator, op); }
  bool is_name(std::string_view name) const { return is(TokenKind::kName, name); }
  bool take_operator(std::string_view op);
  bool take_name(std::string_view name);
  void expect_operator(std::string_view op);
  void expect_name(std::string_view name);
  std::string expect_identifier();
  void expect(TokenKind kind, std::string_view what);
  [[noreturn]] void fail_unexpected(std::string_view expected);

  ExpressionPtr parse_expression() { return parse_conditional(true); }
  // Without "... if ... else ...": what a for loop iterates over.
  ExpressionPtr parse_or();
  // One expression, or several with commas between (a tuple).
  ExpressionPtr parse_tuple(bool with_conditional = true);
  // "| name(...) | name ..." behind `input` (null in a filter block).
  ExpressionPtr parse_filter_chain(ExpressionPtr input);

 protected:
  Context& context() { return context_; }

 private:
  using Kind = Expression::Kind;
  class Builder;

  bool is(TokenKind kind, std::string_view text) const { return current().kind == kind && current().text == text; }
  ExpressionPtr parse_conditional(bool with_conditional);
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  std::string take_comparison();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filter);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_postfix(ExpressionPtr operand);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr operand);
  ExpressionPtr parse_subscript(ExpressionPtr operand);
  ExpressionPtr parse_call(ExpressionPtr callee);
  ExpressionPtr parse_filter(ExpressionPtr input);
  ExpressionPtr parse_test(ExpressionPtr operand);
  ExpressionPtr parse_parenthesised();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_number();
  void parse_arguments(Builder& into);
  bool test_argument_follows() const;

  const std::vector<Token> tokens_;
  size_t next_ = 0;
  Context& context_;
  int depth_ = 0;
};

}  // namespace asymkv::chat
