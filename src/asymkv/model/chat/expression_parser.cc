#include "asymkv/model/chat/expression_parser.h"

#include <algorithm>
#include <charconv>

namespace asymkv::chat {
namespace {

constexpr int kMaxDepth = 200;  // of nested expressions; published templates stay below 30

ExpressionPtr literal(Value value, Position at) {
  auto node = std::make_unique<Expression>();
  node->literal = std::move(value);
  node->at = at;
  return node;
}

}  // namespace

// A node under construction; keeps count of the tree's depth, which the evaluator's and destructor's recursion follow.
class ExpressionParser::Builder {
 public:
  Builder(ExpressionParser& parser, Kind kind, Position at) : parser_(parser), node_(std::make_unique<Expression>()) {
    node_->kind = kind;
    node_->at = at;
  }
  Builder& text(std::string text) {
    node_->text = std::move(text);
    return *this;
  }
  Builder& add(ExpressionPtr operand) {
    if (operand != nullptr) grow(operand->depth);
    node_->operands.push_back(std::move(operand));
    return *this;
  }
  void add_named(std::string name, ExpressionPtr operand) {
    grow(operand->depth);
    node_->named.emplace_back(std::move(name), std::move(operand));
  }
  void add_operator(std::string op) { node_->operators.push_back(std::move(op)); }
  size_t size() const { return node_->operands.size(); }
  ExpressionPtr done() { return std::move(node_); }

 private:
  void grow(int depth) {
    node_->depth = std::max(node_->depth, depth + 1);
    if (node_->depth > kMaxDepth) parser_.context_.fail("expressions are nested more than {} deep", kMaxDepth);
  }
  ExpressionParser& parser_;
  std::unique_ptr<Expression> node_;
};

Token ExpressionParser::take() {
  context_.at = current().at;
  Token token = current();
  if (next_ + 1 < tokens_.size()) ++next_;
  return token;
}

bool ExpressionParser::take_operator(std::string_view op) {
  if (!is_operator(op)) return false;
  take();
  return true;
}

bool ExpressionParser::take_name(std::string_view name) {
  if (!is_name(name)) return false;
  take();
  return true;
}

void ExpressionParser::fail_unexpected(std::string_view expected) {
  context_.at = current().at;
  std::string found = "\"" + current().text + "\"";
  if (current().kind == TokenKind::kEnd) found = "the end of the template";
  if (current().kind == TokenKind::kBlockEnd) found = "\"%}\"";
  if (current().kind == TokenKind::kVariableEnd) found = "\"}}\"";
  context_.fail("expected {}, found {}", expected, found);
}

void ExpressionParser::expect_operator(std::string_view op) {
  if (!take_operator(op)) fail_unexpected("\"" + std::string(op) + "\"");
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!take_name(name)) fail_unexpected("\"" + std::string(name) + "\"");
}

std::string ExpressionParser::expect_identifier() {
  if (current().kind != TokenKind::kName) fail_unexpected("a name");
  return take().text;
}

void ExpressionParser::expect(TokenKind kind, std::string_view what) {
  if (current().kind != kind) fail_unexpected(what);
  take();
}

ExpressionPtr ExpressionParser::parse_conditional(bool with_conditional) {
  if (++depth_ > kMaxDepth) context_.fail("expressions are nested more than {} deep", kMaxDepth);
  ExpressionPtr value = parse_or();
  while (with_conditional && is_name("if")) {
    Builder node(*this, Kind::kConditional, take().at);
    node.add(std::move(value)).add(parse_or());
    node.add(take_name("else") ? parse_conditional(true) : nullptr);
    value = node.done();
  }
  --depth_;
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr left = parse_and();
  if (!is_name("or")) return left;
  Builder node(*this, Kind::kOr, current().at);
  node.add(std::move(left));
  while (take_name("or")) node.add(parse_and());
  return node.done();
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  if (!is_name("and")) return left;
  Builder node(*this, Kind::kAnd, current().at);
  node.add(std::move(left));
  while (take_name("and")) node.add(parse_not());
  return node.done();
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_comparison();
  if (++depth_ > kMaxDepth) context_.fail("expressions are nested more than {} deep", kMaxDepth);
  Builder node(*this, Kind::kNot, take().at);
  node.add(parse_not());
  --depth_;
  return node.done();
}

// Empty if no comparison follows; else the operator, taken.
std::string ExpressionParser::take_comparison() {
  if (is_name("not") && look_ahead().kind == TokenKind::kName && look_ahead().text == "in") {
    take();
    take();
    return "not in";
  }
  if (take_name("in")) return "in";
  for (const std::string_view op : {"==", "!=", "<=", ">=", "<", ">"}) {
    if (take_operator(op)) return std::string(op);
  }
  return {};
}

ExpressionPtr ExpressionParser::parse_comparison() {
  ExpressionPtr left = parse_sum();
  const Position at = current().at;
  std::string op = take_comparison();
  if (op.empty()) return left;
  Builder node(*this, Kind::kCompare, at);
  node.add(std::move(left));
  for (; !op.empty(); op = take_comparison()) {
    node.add_operator(op);
    node.add(parse_sum());
  }
  return node.done();
}

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr left = parse_concat();
  while (is_operator("+") || is_operator("-")) {
    Token op = take();
    Builder node(*this, Kind::kBinary, op.at);
    left = node.text(std::move(op.text)).add(std::move(left)).add(parse_concat()).done();
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concat() {
  ExpressionPtr left = parse_product();
  if (!is_operator("~")) return left;
  Builder node(*this, Kind::kConcat, current().at);
  node.add(std::move(left));
  while (take_operator("~")) node.add(parse_product());
  return node.done();
}

ExpressionPtr ExpressionParser::parse_product() {
  ExpressionPtr left = parse_power();
  while (is_operator("*") || is_operator("/") || is_operator("//") || is_operator("%")) {
    Token op = take();
    Builder node(*this, Kind::kBinary, op.at);
    left = node.text(std::move(op.text)).add(std::move(left)).add(parse_power()).done();
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr left = parse_unary(true);
  while (is_operator("**")) {
    Token op = take();
    Builder node(*this, Kind::kBinary, op.at);
    left = node.text(std::move(op.text)).add(std::move(left)).add(parse_unary(true)).done();
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filter) {
  ExpressionPtr node;
  if (is_operator("-") || is_operator("+")) {
    if (++depth_ > kMaxDepth) context_.fail("expressions are nested more than {} deep", kMaxDepth);
    const Token sign = take();
    Builder builder(*this, sign.text == "-" ? Kind::kNegate : Kind::kPlus, sign.at);
    node = builder.add(parse_unary(false)).done();
    --depth_;
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Token token = current();
  switch (token.kind) {
    case TokenKind::kName: {
      take();
      if (token.text == "true" || token.text == "True") return literal(Value::boolean(true), token.at);
      if (token.text == "false" || token.text == "False") return literal(Value::boolean(false), token.at);
      if (token.text == "none" || token.text == "None") return literal(Value::none(), token.at);
      Builder node(*this, Kind::kName, token.at);
      return node.text(token.text).done();
    }
    case TokenKind::kString: {
      std::string text;
      while (current().kind == TokenKind::kString) text += take().text;  // adjacent strings are one
      return literal(Value::string(std::move(text)), token.at);
    }
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return parse_number();
    default:
      break;
  }
  if (is_operator("(")) return parse_parenthesised();
  if (is_operator("[")) return parse_list();
  if (is_operator("{")) return parse_dict();
  fail_unexpected("an expression");
}

ExpressionPtr ExpressionParser::parse_number() {
  const Token token = take();
  const char* begin = token.text.data();
  const char* end = begin + token.text.size();
  if (token.kind == TokenKind::kFloat) {
    double value = 0;
    if (std::from_chars(begin, end, value).ec != std::errc()) context_.fail("\"{}\" is no number", token.text);
    return literal(Value::number(value), token.at);
  }
  int64_t value = 0;
  if (std::from_chars(begin, end, value).ec != std::errc()) {
    context_.refuse("the integer {} does not fit 64 bits", token.text);
  }
  return literal(Value::integer(value), token.at);
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_conditional) {
  const Position at = current().at;
  ExpressionPtr first = parse_conditional(with_conditional);
  if (!is_operator(",")) return first;
  Builder node(*this, Kind::kTuple, at);
  node.add(std::move(first));
  const auto ends = [this] {
    return current().kind == TokenKind::kBlockEnd || current().kind == TokenKind::kVariableEnd || is_operator(")");
  };
  while (take_operator(",") && !ends()) node.add(parse_conditional(with_conditional));
  return node.done();
}

ExpressionPtr ExpressionParser::parse_parenthesised() {
  const Position at = take().at;
  if (take_operator(")")) {
    Builder node(*this, Kind::kTuple, at);
    return node.done();
  }
  ExpressionPtr inner = parse_tuple();
  expect_operator(")");
  return inner;
}

ExpressionPtr ExpressionParser::parse_list() {
  Builder node(*this, Kind::kList, take().at);
  while (!is_operator("]")) {
    if (node.size() > 0) expect_operator(",");
    if (is_operator("]")) break;
    node.add(parse_conditional(true));
  }
  expect_operator("]");
  return node.done();
}

ExpressionPtr ExpressionParser::parse_dict() {
  Builder node(*this, Kind::kDict, take().at);
  while (!is_operator("}")) {
    if (node.size() > 0) expect_operator(",");
    if (is_operator("}")) break;
    node.add(parse_conditional(true));
    expect_operator(":");
    node.add(parse_conditional(true));
  }
  expect_operator("}");
  return node.done();
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr operand) {
  while (true) {
    if (is_operator(".") || is_operator("[")) {
      operand = parse_subscript(std::move(operand));
    } else if (is_operator("(")) {
      operand = parse_call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr operand) {
  const Token open = take();
  if (open.text == ".") {
    const Token name = current();
    if (name.kind == TokenKind::kInteger) {
      Builder node(*this, Kind::kIndex, open.at);
      return node.add(std::move(operand)).add(parse_number()).done();
    }
    Builder node(*this, Kind::kAttribute, name.at);
    return node.text(expect_identifier()).add(std::move(operand)).done();
  }
  ExpressionPtr parts[3];
  size_t colons = 0;
  while (!is_operator("]")) {
    if (take_operator(":")) {
      if (++colons > 2) context_.fail("a slice has at most three parts");
      continue;
    }
    if (parts[colons] != nullptr) fail_unexpected("\"]\"");
    parts[colons] = parse_conditional(true);
    if (is_operator(",")) context_.refuse("a subscript with commas is not supported");
  }
  expect_operator("]");
  if (colons == 0 && parts[0] == nullptr) context_.fail("the subscript is empty");
  Builder node(*this, colons == 0 ? Kind::kIndex : Kind::kSlice, open.at);
  node.add(std::move(operand)).add(std::move(parts[0]));
  if (colons > 0) node.add(std::move(parts[1])).add(std::move(parts[2]));
  return node.done();
}

void ExpressionParser::parse_arguments(Builder& into) {
  expect_operator("(");
  bool first = true;
  bool named = false;
  while (!is_operator(")")) {
    if (!first) expect_operator(",");
    first = false;
    if (is_operator(")")) break;
    if (is_operator("*") || is_operator("**")) {
      context_.at = current().at;
      context_.refuse("\"{}\" in a call is not supported", current().text);
    }
    if (current().kind == TokenKind::kName && look_ahead().kind == TokenKind::kOperator && look_ahead().text == "=") {
      std::string name = take().text;
      take();
      into.add_named(std::move(name), parse_conditional(true));
      named = true;
    } else {
      if (named) fail_unexpected("a named argument");
      into.add(parse_conditional(true));
    }
  }
  expect_operator(")");
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr callee) {
  Builder node(*this, Kind::kCall, current().at);
  node.add(std::move(callee));
  parse_arguments(node);
  return node.done();
}

ExpressionPtr ExpressionParser::parse_filters_and_tests(ExpressionPtr operand) {
  while (true) {
    if (is_operator("|")) {
      operand = parse_filter(std::move(operand));
    } else if (is_name("is")) {
      operand = parse_test(std::move(operand));
    } else if (is_operator("(")) {
      operand = parse_call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr input) {
  if (input != nullptr || is_operator("|")) expect_operator("|");
  Builder node(*this, Kind::kFilter, current().at);
  std::string name = expect_identifier();
  if (!is_known_filter(name)) context_.refuse("the filter \"{}\" is not supported", name);
  node.text(std::move(name)).add(std::move(input));
  if (is_operator("(")) parse_arguments(node);
  return node.done();
}

ExpressionPtr ExpressionParser::parse_filter_chain(ExpressionPtr input) {
  input = parse_filter(std::move(input));
  while (is_operator("|")) input = parse_filter(std::move(input));
  return input;
}

bool ExpressionParser::test_argument_follows() const {
  switch (current().kind) {
    case TokenKind::kName:
      return !is_name("else") && !is_name("or") && !is_name("and");
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return true;
    default:
      return is_operator("[") || is_operator("{");
  }
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr operand) {
  const Position at = take().at;
  const bool negated = take_name("not");
  Builder test(*this, Kind::kTest, current().at);
  std::string name = expect_identifier();
  if (!is_known_test(name)) context_.refuse("the test \"{}\" is not supported", name);
  test.text(std::move(name)).add(std::move(operand));
  if (is_operator("(")) {
    parse_arguments(test);
  } else if (test_argument_follows()) {
    if (is_name("is")) context_.fail("tests cannot be chained with \"is\"");
    test.add(parse_postfix(parse_primary()));
  }
  if (!negated) return test.done();
  Builder node(*this, Kind::kNot, at);
  return node.add(test.done()).done();
}

}  // namespace asymkv::chat
