#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "asymkv/model/chat/context.h"
#include "asymkv/model/chat/value.h"

// Syntax tree of a chat template.
namespace asymkv::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Expression {
  enum class Kind {
    kLiteral,      // literal
    kName,         // text
    kList,         // operands
    kTuple,        // operands
    kDict,         // operands: key, value, key, value ...
    kAttribute,    // operands[0].text
    kIndex,        // operands[0][operands[1]]
    kSlice,        // operands[0][operands[1] : [2] : [3]], null where left out
    kCall,         // operands[0](operands[1] ..., named)
    kFilter,       // operands[0] | text(operands[1] ..., named); operands[0] is null for a block's filter
    kTest,         // operands[0] is text(operands[1] ...)
    kNot,          // operands[0]
    kNegate,       // operands[0]
    kPlus,         // operands[0]
    kAnd,          // operands
    kOr,           // operands
    kBinary,       // operands[0] text operands[1]: + - * / // % **
    kConcat,       // operands joined as text (~)
    kCompare,      // operands[0] operators[0] operands[1] operators[1] ...
    kConditional,  // operands[0] if operands[1] else operands[2] (null: undefined)
  };
  Kind kind = Kind::kLiteral;
  Position at;
  int depth = 1;  // of the tree from here
  std::string text;
  Value literal;
  std::vector<ExpressionPtr> operands;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> operators;
};

struct Statement;
using Block = std::vector<std::unique_ptr<const Statement>>;

// What a value is assigned to: a name, "name.attribute" of a namespace, or several names.
struct Target {
  std::vector<std::string> names;
  std::string attribute;  // not empty: of the namespace names[0]
  bool unpack = false;
};

struct Parameter {
  std::string name;
  ExpressionPtr fallback;  // null: undefined
};

struct Statement {
  enum class Kind {
    kText,    // text
    kOutput,  // value
    kIf,      // branches; a branch without condition is else
    kFor,     // target in value [if condition]: body, otherwise
    kSet,     // target = value, or (value null) the body's text through `filter`
    kMacro,   // text(parameters): body
    kCall,    // value is a call, `parameters` are the caller's, body
    kFilter,  // the body's text through `filter`
    kWith,    // assignments, body
    kScope,   // body (generation blocks)
    kBreak,
    kContinue,
  };
  struct Branch {
    ExpressionPtr condition;
    Block body;
  };
  Kind kind = Kind::kText;
  Position at;
  std::string text;
  ExpressionPtr value;
  ExpressionPtr condition;
  ExpressionPtr filter;
  Target target;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  Block body;
  Block otherwise;
};

// Throws Error{kBadInput} for what jinja2 would refuse too and Error{kUnsupported} for a statement, filter, test or
// form of expression that is not served; both name line and column.
Block parse_template(std::string_view source, Context& context);

// Whether the evaluator has them.
bool is_known_filter(std::string_view name);
bool is_known_test(std::string_view name);

}  // namespace asymkv::chat
