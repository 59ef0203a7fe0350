#include "asymkv/model/chat/evaluator.h"

#include <algorithm>
#include <cmath>

#include "asymkv/model/chat/functions.h"
#include "asymkv/model/chat/text.h"

namespace asymkv::chat {
namespace {

using Kind = Value::Kind;

// Variables of one scope. Names live in the syntax tree or in literals.
struct Frame {
  explicit Frame(Frame* outer) : parent(outer) {}
  Frame* parent;
  std::vector<std::pair<std::string_view, Value>> variables;

  void set(std::string_view name, Value value) {
    for (auto& [known, old] : variables) {
      if (known == name) {
        old = std::move(value);
        return;
      }
    }
    variables.emplace_back(name, std::move(value));
  }
  const Value* find(std::string_view name) const {
    for (const Frame* frame = this; frame != nullptr; frame = frame->parent) {
      for (const auto& [known, value] : frame->variables) {
        if (known == name) return &value;
      }
    }
    return nullptr;
  }
};

enum class Flow { kNext, kBreak, kContinue };

// Counts one level of nesting for its lifetime.
class Level {
 public:
  Level(Context& context, Position at) : context_(context) {
    context_.at = at;
    context_.charge_steps(1);
    context_.enter();
  }
  ~Level() { context_.leave(); }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Context& context_;
};

class Evaluator {
 public:
  Evaluator(const Entries& variables, std::time_t now, Context& context)
      : variables_(variables), now_(now), context_(context) {}

  std::string render(const Block& block) {
    std::string out;
    run(block, globals_, out);
    return out;
  }

 private:
  using E = Expression::Kind;
  using S = Statement::Kind;

  // ---- statements ----

  void emit(std::string_view text, std::string& out) {
    context_.charge_text(text.size());
    out += text;
  }

  Flow run(const Block& block, Frame& frame, std::string& out) {
    for (const auto& statement : block) {
      const Flow flow = run_statement(*statement, frame, out);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow run_statement(const Statement& node, Frame& frame, std::string& out) {
    const Level level(context_, node.at);
    switch (node.kind) {
      case S::kText:
        emit(node.text, out);
        return Flow::kNext;
      case S::kOutput:
        emit(to_text(evaluate(*node.value, frame)), out);
        return Flow::kNext;
      case S::kIf:
        for (const Statement::Branch& branch : node.branches) {
          if (branch.condition == nullptr || evaluate(*branch.condition, frame).truthy()) {
            return run(branch.body, frame, out);
          }
        }
        return Flow::kNext;
      case S::kFor:
        return run_for(node, frame, out);
      case S::kSet:
        run_set(node, frame);
        return Flow::kNext;
      case S::kMacro:
        frame.set(node.text, Value::callable(node.text, [this, &node](const Arguments& arguments) {
                    return call_macro(node, arguments, globals_);
                  }));
        return Flow::kNext;
      case S::kCall:
        emit(to_text(run_call_block(node, frame)), out);
        return Flow::kNext;
      case S::kFilter:
        emit(to_text(filter_body(node, frame)), out);
        return Flow::kNext;
      case S::kWith:
        return run_with(node, frame, out);
      case S::kScope: {
        Frame inner(&frame);
        return run(node.body, inner, out);
      }
      case S::kBreak:
        return Flow::kBreak;
      case S::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  Flow run_with(const Statement& node, Frame& frame, std::string& out) {
    Frame inner(&frame);
    for (const auto& [target, value] : node.assignments) assign(target, evaluate(*value, frame), inner);
    return run(node.body, inner, out);
  }

  std::shared_ptr<const ListData> loop_items(const Statement& node, Frame& frame) {
    const auto all = iterate(context_, evaluate(*node.value, frame));
    if (node.condition == nullptr) return all;
    Items kept;
    for (const Value& item : all->items) {
      Frame inner(&frame);
      assign(node.target, item, inner);
      if (evaluate(*node.condition, inner).truthy()) kept.push_back(item);
    }
    return Value::list(context_, std::move(kept)).as_list();
  }

  Flow run_for(const Statement& node, Frame& frame, std::string& out) {
    const auto list = loop_items(node, frame);
    if (list->items.empty()) return run(node.otherwise, frame, out);
    for (size_t i = 0; i < list->items.size(); ++i) {
      context_.charge_steps(1);
      Frame inner(&frame);
      inner.set("loop", Value::loop(std::make_shared<LoopData>(LoopData{list, i})));
      assign(node.target, list->items[i], inner);
      if (run(node.body, inner, out) == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  void assign(const Target& target, const Value& value, Frame& frame) {
    if (!target.attribute.empty()) {
      const Value* found = frame.find(target.names[0]);
      if (found == nullptr || !found->is(Kind::kNamespace)) {
        context_.fail("\"{}\" is no namespace, so \"{}.{}\" cannot be set", target.names[0], target.names[0],
                      target.attribute);
      }
      if (value.is(Kind::kNamespace)) context_.refuse("a namespace inside a namespace is not supported");
      Entries& entries = found->as_namespace().entries;
      const auto it = std::ranges::find(entries, target.attribute, &Entry::first);
      if (it == entries.end()) {
        entries.emplace_back(target.attribute, value);
      } else {
        it->second = value;
      }
      return;
    }
    if (!target.unpack) return frame.set(target.names[0], value);
    const auto list = iterate(context_, value);
    if (list->items.size() != target.names.size()) {
      context_.fail("{} values cannot be assigned to {} names", list->items.size(), target.names.size());
    }
    for (size_t i = 0; i < target.names.size(); ++i) frame.set(target.names[i], list->items[i]);
  }

  void run_set(const Statement& node, Frame& frame) {
    assign(node.target, node.value == nullptr ? filter_body(node, frame) : evaluate(*node.value, frame), frame);
  }

  Value filter_body(const Statement& node, Frame& frame) {
    Frame inner(&frame);
    std::string text;
    run(node.body, inner, text);
    Value value = Value::string(std::move(text));
    return node.filter == nullptr ? value : evaluate_filter(*node.filter, &value, frame);
  }

  Value run_call_block(const Statement& node, Frame& frame) {
    // The caller may be kept longer than the frame it sees lives.
    const auto alive = std::make_shared<Frame*>(&frame);
    Value caller = Value::callable("caller", [this, &node, alive](const Arguments& arguments) {
      if (*alive == nullptr) context_.fail("caller() is called after its block has ended");
      return call_macro(node, arguments, **alive);
    });
    const Expression& call = *node.value;
    const Value callee = evaluate(*call.operands[0], frame);
    Arguments arguments = evaluate_arguments(call, frame);
    arguments.named.emplace_back("caller", std::move(caller));
    context_.at = call.at;
    Value result = call_value(callee, arguments);
    *alive = nullptr;
    return result;
  }

  Value call_macro(const Statement& node, const Arguments& arguments, Frame& scope) {
    const Level level(context_, context_.at);
    Frame frame(&scope);
    if (arguments.positional.size() > node.parameters.size()) {
      context_.fail("the macro \"{}\" takes {} arguments, found {}", node.text, node.parameters.size(),
                    arguments.positional.size());
    }
    for (const auto& [name, value] : arguments.named) {
      const bool known = std::ranges::find(node.parameters, name, &Parameter::name) != node.parameters.end();
      if (!known && name != "caller") context_.fail("the macro \"{}\" has no parameter \"{}\"", node.text, name);
      frame.set(name, value);
    }
    for (size_t i = 0; i < node.parameters.size(); ++i) {
      const Parameter& parameter = node.parameters[i];
      if (i < arguments.positional.size()) {
        frame.set(parameter.name, arguments.positional[i]);
      } else if (std::ranges::find(arguments.named, parameter.name, &Entry::first) == arguments.named.end()) {
        frame.set(parameter.name,
                  parameter.fallback != nullptr
                      ? evaluate(*parameter.fallback, frame)
                      : Value::undefined(fmt::format("the parameter \"{}\" was not given", parameter.name)));
      }
    }
    std::string text;
    run(node.body, frame, text);
    return Value::string(std::move(text));
  }

  // ---- expressions ----

  Value evaluate(const Expression& node, Frame& frame) {
    const Level level(context_, node.at);
    switch (node.kind) {
      case E::kLiteral:
        return node.literal;
      case E::kName:
        return name_value(node.text, frame);
      case E::kList:
      case E::kTuple:
        return Value::list(context_, evaluate_operands(node, 0, frame), node.kind == E::kTuple);
      case E::kDict:
        return make_dict(node, frame);
      case E::kAttribute: {
        const Value object = evaluate(*node.operands[0], frame);
        context_.at = node.at;
        return attribute_of(context_, object, node.text);
      }
      case E::kIndex: {
        const Value object = evaluate(*node.operands[0], frame);
        const Value key = evaluate(*node.operands[1], frame);
        context_.at = node.at;
        return item_of(context_, object, key);
      }
      case E::kSlice:
        return slice(node, frame);
      case E::kCall: {
        const Value callee = evaluate(*node.operands[0], frame);
        const Arguments arguments = evaluate_arguments(node, frame);
        context_.at = node.at;
        return call_value(callee, arguments);
      }
      case E::kFilter:
        return evaluate_filter(node, nullptr, frame);
      case E::kTest: {
        const Value input = evaluate(*node.operands[0], frame);
        const Arguments arguments = evaluate_arguments(node, frame);
        context_.at = node.at;
        return Value::boolean(apply_test(context_, node.text, input, arguments));
      }
      default:
        return evaluate_operator(node, frame);
    }
  }

  Value evaluate_operator(const Expression& node, Frame& frame) {
    const auto operand = [&](size_t i) { return evaluate(*node.operands[i], frame); };
    switch (node.kind) {
      case E::kNot:
        return Value::boolean(!operand(0).truthy());
      case E::kNegate:
      case E::kPlus: {
        const Value value = operand(0);
        if (!value.is_number()) context_.fail("a {} has no sign", value.kind_name());
        if (value.is(Kind::kFloat))
          return Value::number(node.kind == E::kNegate ? -value.as_double() : value.as_double());
        return node.kind == E::kPlus ? Value::integer(value.as_int()) : arithmetic("-", Value::integer(0), value);
      }
      case E::kAnd:
      case E::kOr: {
        Value value = operand(0);
        for (size_t i = 1; i < node.operands.size() && value.truthy() == (node.kind == E::kAnd); ++i)
          value = operand(i);
        return value;
      }
      case E::kBinary: {
        const Value left = operand(0);
        const Value right = operand(1);
        context_.at = node.at;
        return arithmetic(node.text, left, right);
      }
      case E::kConcat: {
        std::string text;
        for (size_t i = 0; i < node.operands.size(); ++i) emit(to_text(operand(i)), text);
        return Value::string(std::move(text));
      }
      case E::kCompare:
        return compare_chain(node, frame);
      case E::kConditional:
        if (operand(1).truthy()) return operand(0);
        if (node.operands[2] != nullptr) return operand(2);
        return Value::undefined("the condition is false and there is no else");
      default:
        break;
    }
    ASYMKV_CHECK(false, "expression kind {}", static_cast<int>(node.kind));
    return {};
  }

  Value name_value(const std::string& name, const Frame& frame) {
    if (const Value* found = frame.find(name)) return *found;
    const auto it = std::ranges::find(variables_, name, &Entry::first);
    if (it != variables_.end()) return it->second;
    return global_function(context_, name, now_);
  }

  Items evaluate_operands(const Expression& node, size_t first, Frame& frame) {
    Items items;
    for (size_t i = first; i < node.operands.size(); ++i) items.push_back(evaluate(*node.operands[i], frame));
    return items;
  }

  Arguments evaluate_arguments(const Expression& node, Frame& frame) {
    Arguments arguments{evaluate_operands(node, 1, frame), {}};
    for (const auto& [name, value] : node.named) arguments.named.emplace_back(name, evaluate(*value, frame));
    return arguments;
  }

  // `body`: what a filter block or a block assignment is applied to; its chain ends with a missing operand.
  Value evaluate_filter(const Expression& node, const Value* body, Frame& frame) {
    const Level level(context_, node.at);
    const Expression* input = node.operands[0].get();
    Value value;
    if (input == nullptr) {
      value = *body;
    } else {
      value = input->kind == E::kFilter ? evaluate_filter(*input, body, frame) : evaluate(*input, frame);
    }
    const Arguments arguments = evaluate_arguments(node, frame);
    context_.at = node.at;
    return apply_filter(context_, node.text, value, arguments);
  }

  Value call_value(const Value& callee, const Arguments& arguments) {
    if (callee.is(Kind::kUndefined)) context_.fail("{}, so it cannot be called", callee.undefined_name());
    if (!callee.is(Kind::kCallable)) context_.fail("a {} cannot be called", callee.kind_name());
    return callee.as_callable().call(arguments);
  }

  Value make_dict(const Expression& node, Frame& frame) {
    Entries entries;
    for (size_t i = 0; i + 1 < node.operands.size(); i += 2) {
      const Value key = evaluate(*node.operands[i], frame);
      if (!key.is(Kind::kString)) context_.refuse("a {} as the key of a mapping is not supported", key.kind_name());
      Value value = evaluate(*node.operands[i + 1], frame);
      const auto it = std::ranges::find(entries, key.as_string(), &Entry::first);
      if (it == entries.end()) {
        entries.emplace_back(key.as_string(), std::move(value));
      } else {
        it->second = std::move(value);
      }
    }
    return Value::dict(context_, std::move(entries));
  }

  Value compare_chain(const Expression& node, Frame& frame) {
    Value left = evaluate(*node.operands[0], frame);
    for (size_t i = 0; i < node.operators.size(); ++i) {
      Value right = evaluate(*node.operands[i + 1], frame);
      context_.at = node.at;
      if (!holds(node.operators[i], left, right)) return Value::boolean(false);
      left = std::move(right);
    }
    return Value::boolean(true);
  }

  bool holds(const std::string& op, const Value& left, const Value& right) {
    context_.charge_steps(left.weight());
    if (op == "==") return equal(left, right);
    if (op == "!=") return !equal(left, right);
    if (op == "in") return contains(context_, right, left);
    if (op == "not in") return !contains(context_, right, left);
    for (const Value* side : {&left, &right}) {
      if (side->is(Kind::kUndefined)) context_.fail("{}, so it cannot be compared", side->undefined_name());
    }
    const int order = compare(context_, left, right);
    if (op == "<") return order < 0;
    if (op == "<=") return order <= 0;
    return op == ">" ? order > 0 : order >= 0;
  }

  // ---- slices ----

  Value slice(const Expression& node, Frame& frame) {
    const Value object = evaluate(*node.operands[0], frame);
    std::optional<int64_t> bounds[3];
    for (size_t i = 0; i < 3; ++i) {
      if (node.operands[i + 1] == nullptr) continue;
      const Value bound = evaluate(*node.operands[i + 1], frame);
      if (!bound.is(Kind::kNone)) bounds[i] = int_argument(context_, &bound, 0);
    }
    context_.at = node.at;
    if (object.is(Kind::kUndefined)) context_.fail("{}, so it has no slices", object.undefined_name());
    if (!object.is(Kind::kList) && !object.is(Kind::kString)) context_.fail("a {} has no slices", object.kind_name());
    const auto list = iterate(context_, object);
    Items items;
    const int64_t step = bounds[2].value_or(1);
    if (step == 0) context_.fail("the step of a slice must not be 0");
    const auto size = static_cast<int64_t>(list->items.size());
    int64_t i = slice_bound(bounds[0], step > 0 ? 0 : size - 1, size, step);
    const int64_t end = slice_bound(bounds[1], step > 0 ? size : -1, size, step);
    while (step > 0 ? i < end : i > end) {
      items.push_back(list->items[static_cast<size_t>(i)]);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    if (object.is(Kind::kList)) return Value::list(context_, std::move(items), object.as_list()->tuple);
    std::string text;
    for (const Value& item : items) text += item.as_string();
    return make_text(context_, std::move(text));
  }

  // Python's rule: negative bounds count from the end, then all are clamped.
  static int64_t slice_bound(std::optional<int64_t> bound, int64_t fallback, int64_t size, int64_t step) {
    if (!bound) return fallback;
    int64_t value = *bound < 0 ? std::max(*bound, -size - 1) + size : *bound;
    const int64_t lowest = step > 0 ? 0 : -1;
    const int64_t highest = step > 0 ? size : size - 1;
    return std::clamp(value, lowest, std::max(lowest, highest));
  }

  // ---- arithmetic ----

  Value arithmetic(const std::string& op, const Value& left, const Value& right) {
    for (const Value* side : {&left, &right}) {
      if (side->is(Kind::kUndefined)) context_.fail("{}, so \"{}\" cannot use it", side->undefined_name(), op);
    }
    if (left.is_number() && right.is_number()) {
      if (left.is(Kind::kFloat) || right.is(Kind::kFloat) || op == "/") return float_arithmetic(op, left, right);
      return int_arithmetic(op, left.as_int(), right.as_int());
    }
    if (op == "+" && left.is(Kind::kString) && right.is(Kind::kString)) {
      if (left.is_markup() || right.is_markup()) return add_markup(left, right);
      return make_text(context_, left.as_string() + right.as_string());
    }
    if (op == "+" && left.is(Kind::kList) && right.is(Kind::kList)) {
      Items items = left.as_list()->items;
      items.insert(items.end(), right.as_list()->items.begin(), right.as_list()->items.end());
      return Value::list(context_, std::move(items), left.as_list()->tuple);
    }
    if (op == "*" && left.is(Kind::kString) && right.is(Kind::kInt)) return repeat(left.as_string(), right.as_int());
    if (op == "*" && left.is(Kind::kInt) && right.is(Kind::kString)) return repeat(right.as_string(), left.as_int());
    if (op == "%" && left.is(Kind::kString)) context_.refuse("\"%\" on a string (formatting) is not supported");
    context_.fail("\"{}\" does not work on a {} and a {}", op, left.kind_name(), right.kind_name());
  }

  // What markupsafe does: HTML is escaped in the side that is not marked safe.
  Value add_markup(const Value& left, const Value& right) {
    std::string text;
    for (const Value* side : {&left, &right}) {
      emit(side->is_markup() ? side->as_string() : escape_html(side->as_string()), text);
    }
    return Value::markup(std::move(text));
  }

  Value repeat(const std::string& text, int64_t count) {
    if (count <= 0 || text.empty()) return Value::string("");
    context_.charge_steps(count);
    std::string out;
    for (int64_t i = 0; i < count; ++i) emit(text, out);
    return Value::string(std::move(out));
  }

  Value float_arithmetic(const std::string& op, const Value& left, const Value& right) {
    const double a = left.as_double();
    const double b = right.as_double();
    if (op == "+") return Value::number(a + b);
    if (op == "-") return Value::number(a - b);
    if (op == "*") return Value::number(a * b);
    if (op == "**") return Value::number(std::pow(a, b));
    if (b == 0.0) context_.fail("division by zero");
    if (op == "/") return Value::number(a / b);
    if (op == "//") return Value::number(std::floor(a / b));
    const double rest = std::fmod(a, b);
    return Value::number(rest != 0.0 && (rest < 0.0) != (b < 0.0) ? rest + b : rest);
  }

  Value int_arithmetic(const std::string& op, int64_t a, int64_t b) {
    int64_t result = 0;
    bool overflow = false;
    if (op == "+") {
      overflow = __builtin_add_overflow(a, b, &result);
    } else if (op == "-") {
      overflow = __builtin_sub_overflow(a, b, &result);
    } else if (op == "*") {
      overflow = __builtin_mul_overflow(a, b, &result);
    } else if (op == "**") {
      return power(a, b);
    } else {
      if (b == 0) context_.fail("division by zero");
      overflow = a == INT64_MIN && b == -1;
      if (!overflow) {
        const int64_t rest = a % b;
        const bool adjust = rest != 0 && (rest < 0) != (b < 0);  // Python rounds towards minus infinity
        result = op == "//" ? a / b - (adjust ? 1 : 0) : rest + (adjust ? b : 0);
      }
    }
    if (overflow) context_.refuse("integers beyond 64 bits are not supported ({} {} {})", a, op, b);
    return Value::integer(result);
  }

  Value power(int64_t base, int64_t exponent) {
    if (exponent < 0) return Value::number(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
    int64_t result = 1;
    for (int64_t i = 0; i < exponent && result != 0 && base != 1; ++i) {
      context_.charge_steps(1);
      if (__builtin_mul_overflow(result, base, &result)) context_.refuse("integers beyond 64 bits are not supported");
    }
    return Value::integer(result);
  }

  const Entries& variables_;
  std::time_t now_;
  Context& context_;
  Frame globals_{nullptr};
};

}  // namespace

std::string render(const Block& block, const Entries& variables, std::time_t now, Context& context) {
  return Evaluator(variables, now, context).render(block);
}

}  // namespace asymkv::chat
