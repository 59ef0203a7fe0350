#include <algorithm>
#include <initializer_list>

#include "asymkv/model/chat/expression_parser.h"

namespace asymkv::chat {
namespace {

constexpr int kMaxBlocks = 100;  // nested statements

class StatementParser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Block parse_all() {
    Block block = parse_block({});
    return block;
  }

 private:
  using Kind = Statement::Kind;
  using Node = std::unique_ptr<Statement>;
  using Names = std::initializer_list<std::string_view>;

  static Node make(Kind kind, Position at) {
    auto node = std::make_unique<Statement>();
    node->kind = kind;
    node->at = at;
    return node;
  }

  // Statements up to a block that begins with one of `ends` (its "{%" taken, its name not), or the end of the template.
  Block parse_block(Names ends) {
    if (++depth_ > kMaxBlocks) context().fail("statements are nested more than {} deep", kMaxBlocks);
    const Position begin = current().at;
    Block block;
    while (current().kind != TokenKind::kEnd) {
      const Token token = take();
      if (token.kind == TokenKind::kData) {
        Node node = make(Kind::kText, token.at);
        node->text = token.text;
        block.push_back(std::move(node));
      } else if (token.kind == TokenKind::kVariableBegin) {
        Node node = make(Kind::kOutput, token.at);
        node->value = parse_tuple();
        expect(TokenKind::kVariableEnd, "\"}}\"");
        block.push_back(std::move(node));
      } else {
        if (std::ranges::any_of(ends, [this](std::string_view end) { return is_name(end); })) {
          --depth_;
          return block;
        }
        block.push_back(parse_statement());
      }
    }
    if (ends.size() > 0) {
      context().at = begin;
      context().fail("the block that begins here has no \"{}\"", *(ends.end() - 1));
    }
    --depth_;
    return block;
  }

  Block parse_body(Names ends) {
    expect(TokenKind::kBlockEnd, "\"%}\"");
    return parse_block(ends);
  }

  Block parse_scope_body(Names ends) {
    ++scopes_;
    Block block = parse_body(ends);
    --scopes_;
    return block;
  }

  void finish(std::string_view end) {
    expect_name(end);
    expect(TokenKind::kBlockEnd, "\"%}\"");
  }

  Node parse_statement() {
    const Token keyword = current();
    if (keyword.kind != TokenKind::kName) fail_unexpected("a statement");
    take();
    if (keyword.text == "if") return parse_if(keyword.at);
    if (keyword.text == "for") return parse_for(keyword.at);
    if (keyword.text == "set") return parse_set(keyword.at);
    if (keyword.text == "macro") return parse_macro(keyword.at);
    if (keyword.text == "call") return parse_call_block(keyword.at);
    if (keyword.text == "filter") return parse_filter_block(keyword.at);
    if (keyword.text == "with") return parse_with(keyword.at);
    if (keyword.text == "generation") return parse_scope(keyword.at);
    if (keyword.text == "break") return parse_jump(Kind::kBreak, keyword.at);
    if (keyword.text == "continue") return parse_jump(Kind::kContinue, keyword.at);
    for (const std::string_view known :
         {"block", "extends", "include", "import", "from", "autoescape", "do", "trans", "debug"}) {
      if (keyword.text == known) context().refuse("the statement \"{}\" is not supported", known);
    }
    context().fail("unknown or misplaced statement \"{}\"", keyword.text);
  }

  Node parse_if(Position at) {
    Node node = make(Kind::kIf, at);
    ExpressionPtr condition = parse_tuple();
    while (true) {
      Block body = parse_body({"elif", "else", "endif"});
      node->branches.push_back({std::move(condition), std::move(body)});
      if (take_name("elif")) {
        condition = parse_tuple();
        continue;
      }
      if (take_name("else")) node->branches.push_back({nullptr, parse_body({"endif"})});
      finish("endif");
      return node;
    }
  }

  Target parse_target() {
    Target target;
    const bool brackets = take_operator("(");
    target.names.push_back(expect_identifier());
    while (take_operator(",")) {
      target.unpack = true;
      if (current().kind == TokenKind::kName && !is_name("in")) target.names.push_back(expect_identifier());
    }
    if (brackets) expect_operator(")");
    for (const std::string& name : target.names) {
      for (const std::string_view reserved : {"true", "false", "none", "True", "False", "None"}) {
        if (name == reserved) context().fail("\"{}\" cannot be assigned to", name);
      }
    }
    return target;
  }

  Node parse_for(Position at) {
    Node node = make(Kind::kFor, at);
    node->target = parse_target();
    expect_name("in");
    node->value = parse_tuple(false);
    if (take_name("if")) node->condition = parse_expression();
    if (is_name("recursive")) context().refuse("a recursive loop is not supported");
    ++loops_;
    node->body = parse_scope_body({"else", "endfor"});
    --loops_;
    if (take_name("else")) node->otherwise = parse_body({"endfor"});
    finish("endfor");
    return node;
  }

  Node parse_jump(Kind kind, Position at) {
    if (loops_ == 0) context().fail("\"break\" and \"continue\" belong into a loop");
    Node node = make(kind, at);
    expect(TokenKind::kBlockEnd, "\"%}\"");
    return node;
  }

  Node parse_set(Position at) {
    Node node = make(Kind::kSet, at);
    if (look_ahead().kind == TokenKind::kOperator && look_ahead().text == ".") {
      node->target.names.push_back(expect_identifier());
      take();
      node->target.attribute = expect_identifier();
    } else {
      node->target = parse_target();
    }
    if (take_operator("=")) {
      node->value = parse_tuple();
      expect(TokenKind::kBlockEnd, "\"%}\"");
      return node;
    }
    if (is_operator("|")) node->filter = parse_filter_chain(nullptr);
    node->body = parse_scope_body({"endset"});
    finish("endset");
    return node;
  }

  void parse_parameters(Statement& node) {
    expect_operator("(");
    while (!is_operator(")")) {
      if (!node.parameters.empty()) expect_operator(",");
      if (is_operator(")")) break;
      Parameter parameter{expect_identifier(), nullptr};
      if (take_operator("=")) {
        parameter.fallback = parse_expression();
      } else if (!node.parameters.empty() && node.parameters.back().fallback != nullptr) {
        context().fail("the parameter \"{}\" without a default follows one that has one", parameter.name);
      }
      node.parameters.push_back(std::move(parameter));
    }
    expect_operator(")");
  }

  Node parse_macro(Position at) {
    // Elsewhere it would see variables that are gone when it is called.
    if (scopes_ > 0) context().refuse("a macro that is not at the top level is not supported");
    Node node = make(Kind::kMacro, at);
    node->text = expect_identifier();
    parse_parameters(*node);
    const int loops = std::exchange(loops_, 0);
    node->body = parse_scope_body({"endmacro"});
    loops_ = loops;
    finish("endmacro");
    return node;
  }

  Node parse_call_block(Position at) {
    Node node = make(Kind::kCall, at);
    if (is_operator("(")) parse_parameters(*node);
    node->value = parse_expression();
    if (node->value->kind != Expression::Kind::kCall) context().fail("\"call\" needs a call of a macro");
    const int loops = std::exchange(loops_, 0);  // a caller's body cannot leave the loop around it
    node->body = parse_scope_body({"endcall"});
    loops_ = loops;
    finish("endcall");
    return node;
  }

  Node parse_filter_block(Position at) {
    Node node = make(Kind::kFilter, at);
    node->filter = parse_filter_chain(nullptr);
    node->body = parse_scope_body({"endfilter"});
    finish("endfilter");
    return node;
  }

  Node parse_with(Position at) {
    Node node = make(Kind::kWith, at);
    while (current().kind != TokenKind::kBlockEnd) {
      if (!node->assignments.empty()) expect_operator(",");
      Target target;
      target.names.push_back(expect_identifier());
      expect_operator("=");
      node->assignments.emplace_back(std::move(target), parse_expression());
    }
    node->body = parse_scope_body({"endwith"});
    finish("endwith");
    return node;
  }

  // {% generation %}: marks what the assistant wrote, for training; it is no part of the text.
  Node parse_scope(Position at) {
    Node node = make(Kind::kScope, at);
    const int loops = std::exchange(loops_, 0);
    node->body = parse_scope_body({"endgeneration"});
    loops_ = loops;
    finish("endgeneration");
    return node;
  }

  int depth_ = 0;
  int loops_ = 0;
  int scopes_ = 0;  // blocks with variables of their own
};

}  // namespace

Block parse_template(std::string_view source, Context& context) {
  return StatementParser(tokenize(source, context), context).parse_all();
}

}  // namespace asymkv::chat
