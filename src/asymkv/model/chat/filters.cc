// Filters and tests.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "asymkv/base/number.h"
#include "asymkv/model/chat/functions.h"
#include "asymkv/model/chat/syntax.h"
#include "asymkv/model/chat/text.h"

namespace asymkv::chat {
namespace {

using Kind = Value::Kind;
using Bound = std::vector<const Value*>;

// ---- tests ----

struct Test {
  std::string_view name;
  size_t num_arguments;
  bool (*call)(Context&, const Value&, const Items&);
};

bool is_integer(const Value& value) {
  return value.is(Kind::kInt) || value.is(Kind::kBool);
}

int64_t integer_of(Context& context, const Value& value) {
  if (!is_integer(value)) context.fail("a {} is no integer", value.kind_name());
  return value.as_int();
}

bool is_divisible(Context& context, const Value& value, const Items& args) {
  const int64_t divisor = integer_of(context, args[0]);
  if (divisor == 0) context.fail("nothing is divisible by 0");
  return divisor == -1 || integer_of(context, value) % divisor == 0;
}

bool is_case(const Value& value, std::string (*to_case)(std::string_view), std::string (*to_other)(std::string_view)) {
  const std::string text = to_text(value);
  return to_case(text) == text && to_other(text) != text;  // at least one character has a case
}

constexpr Test kTests[] = {
    {"defined", 0, [](Context&, const Value& v, const Items&) { return !v.is(Kind::kUndefined); }},
    {"undefined", 0, [](Context&, const Value& v, const Items&) { return v.is(Kind::kUndefined); }},
    {"none", 0, [](Context&, const Value& v, const Items&) { return v.is(Kind::kNone); }},
    {"boolean", 0, [](Context&, const Value& v, const Items&) { return v.is(Kind::kBool); }},
    {"true", 0, [](Context&, const Value& v, const Items&) { return v.is(Kind::kBool) && v.as_bool(); }},
    {"false", 0, [](Context&, const Value& v, const Items&) { return v.is(Kind::kBool) && !v.as_bool(); }},
    {"integer", 0, [](Context&, const Value& v, const Items&) { return v.is(Kind::kInt); }},
    {"float", 0, [](Context&, const Value& v, const Items&) { return v.is(Kind::kFloat); }},
    {"number", 0, [](Context&, const Value& v, const Items&) { return v.is_number(); }},
    {"string", 0, [](Context&, const Value& v, const Items&) { return v.is(Kind::kString); }},
    {"mapping", 0, [](Context&, const Value& v, const Items&) { return v.is(Kind::kDict); }},
    {"sequence", 0,
     [](Context&, const Value& v, const Items&) {
       return v.is(Kind::kString) || v.is(Kind::kList) || v.is(Kind::kDict) || v.is(Kind::kUndefined);
     }},
    {"iterable", 0,
     [](Context&, const Value& v, const Items&) {
       return v.is(Kind::kString) || v.is(Kind::kList) || v.is(Kind::kDict) || v.is(Kind::kUndefined);
     }},
    {"callable", 0, [](Context&, const Value& v, const Items&) { return v.is(Kind::kCallable); }},
    {"lower", 0, [](Context&, const Value& v, const Items&) { return is_case(v, to_lower, to_upper); }},
    {"upper", 0, [](Context&, const Value& v, const Items&) { return is_case(v, to_upper, to_lower); }},
    {"odd", 0, [](Context& c, const Value& v, const Items&) { return integer_of(c, v) % 2 != 0; }},
    {"even", 0, [](Context& c, const Value& v, const Items&) { return integer_of(c, v) % 2 == 0; }},
    {"divisibleby", 1, is_divisible},
    {"eq", 1, [](Context&, const Value& v, const Items& a) { return equal(v, a[0]); }},
    {"equalto", 1, [](Context&, const Value& v, const Items& a) { return equal(v, a[0]); }},
    {"sameas", 1, [](Context&, const Value& v, const Items& a) { return v.kind() == a[0].kind() && equal(v, a[0]); }},
    {"ne", 1, [](Context&, const Value& v, const Items& a) { return !equal(v, a[0]); }},
    {"lt", 1, [](Context& c, const Value& v, const Items& a) { return compare(c, v, a[0]) < 0; }},
    {"lessthan", 1, [](Context& c, const Value& v, const Items& a) { return compare(c, v, a[0]) < 0; }},
    {"le", 1, [](Context& c, const Value& v, const Items& a) { return compare(c, v, a[0]) <= 0; }},
    {"gt", 1, [](Context& c, const Value& v, const Items& a) { return compare(c, v, a[0]) > 0; }},
    {"greaterthan", 1, [](Context& c, const Value& v, const Items& a) { return compare(c, v, a[0]) > 0; }},
    {"ge", 1, [](Context& c, const Value& v, const Items& a) { return compare(c, v, a[0]) >= 0; }},
    {"in", 1, [](Context& c, const Value& v, const Items& a) { return contains(c, a[0], v); }},
};

const Test* find_test(std::string_view name) {
  if (name == "==") name = "eq";  // as text, for select and its kin
  if (name == "!=") name = "ne";
  const auto* it = std::ranges::find(kTests, name, &Test::name);
  return it == std::end(kTests) ? nullptr : it;
}

// ---- filters over lists ----

using Apply = Value (*)(Context&, const Value&, const Arguments&);

const Value* named_argument(const Arguments& arguments, std::string_view name) {
  const auto it = std::ranges::find(arguments.named, name, &Entry::first);
  return it == arguments.named.end() ? nullptr : &it->second;
}

// Arguments behind the first `count` positional ones.
Arguments rest_of(const Arguments& arguments, size_t count) {
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(count), arguments.positional.end());
  rest.named = arguments.named;
  return rest;
}

std::string name_argument(Context& context, const Arguments& arguments, size_t idx, std::string_view what) {
  if (idx >= arguments.positional.size() || !arguments.positional[idx].is(Kind::kString)) {
    context.fail("the filter \"{}\" needs a name", what);
  }
  return arguments.positional[idx].as_string();
}

// map, select and their kin take anything false for an empty list.
std::shared_ptr<const ListData> iterate_if_true(Context& context, const Value& input) {
  return input.truthy() ? iterate(context, input) : std::make_shared<const ListData>();
}

Value map_items(Context& context, const Value& input, const Arguments& arguments) {
  const Value* path = named_argument(arguments, "attribute");
  Items items;
  for (const auto list = iterate_if_true(context, input); const Value& item : list->items) {
    context.charge_steps(1);
    if (path != nullptr) {
      Value found = attribute_path(context, item, *path);
      const Value* fallback = named_argument(arguments, "default");
      items.push_back(found.is(Kind::kUndefined) && fallback != nullptr ? *fallback : std::move(found));
      continue;
    }
    const std::string name = name_argument(context, arguments, 0, "map");
    if (!is_known_filter(name)) context.refuse("the filter \"{}\" is not supported", name);
    items.push_back(apply_filter(context, name, item, rest_of(arguments, 1)));
  }
  return Value::list(context, std::move(items));
}

// select, reject, selectattr and rejectattr: keeps items whose test has the wanted outcome.
Value filter_items(Context& context, const Value& input, const Arguments& arguments, bool by_attribute, bool wanted) {
  const size_t test_idx = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty()) context.fail("selectattr and rejectattr need an attribute");
  std::string name;
  if (arguments.positional.size() > test_idx) name = name_argument(context, arguments, test_idx, "select");
  if (!name.empty() && !is_known_test(name)) context.refuse("the test \"{}\" is not supported", name);
  Items items;
  for (const auto list = iterate_if_true(context, input); const Value& item : list->items) {
    context.charge_steps(1);
    const Value looked_at = by_attribute ? attribute_path(context, item, arguments.positional[0]) : item;
    const bool outcome =
        name.empty() ? looked_at.truthy() : apply_test(context, name, looked_at, rest_of(arguments, test_idx + 1));
    if (outcome == wanted) items.push_back(item);
  }
  return Value::list(context, std::move(items));
}

// What sort, unique, min and max compare: an attribute if asked for, strings in lower case unless case matters.
Value sort_key(Context& context, const Value& item, const Value* attribute, bool case_sensitive) {
  Value key = attribute == nullptr || attribute->is(Kind::kNone) ? item : attribute_path(context, item, *attribute);
  return !case_sensitive && key.is(Kind::kString) ? Value::string(to_lower(key.as_string())) : key;
}

bool flag_argument(const Value* argument, bool fallback) {
  return argument == nullptr ? fallback : argument->truthy();
}

Value sort_items(Context& context, const Value& input, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, "sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto list = iterate(context, input); const Value& item : list->items) {
    keyed.emplace_back(sort_key(context, item, bound[2], flag_argument(bound[1], false)), item);
  }
  const bool reverse = flag_argument(bound[0], false);
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    context.charge_steps(1);
    return reverse ? compare(context, b.first, a.first) < 0 : compare(context, a.first, b.first) < 0;
  });
  Items items;
  for (auto& [key, item] : keyed) items.push_back(std::move(item));
  return Value::list(context, std::move(items));
}

Value unique_items(Context& context, const Value& input, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, "unique", arguments, {"case_sensitive", "attribute"});
  Items items;
  Items keys;
  for (const auto list = iterate(context, input); const Value& item : list->items) {
    Value key = sort_key(context, item, bound[1], flag_argument(bound[0], false));
    context.charge_steps(static_cast<int64_t>(keys.size()) * key.weight() + 1);
    if (std::ranges::any_of(keys, [&](const Value& known) { return equal(known, key); })) continue;
    keys.push_back(std::move(key));
    items.push_back(item);
  }
  return Value::list(context, std::move(items));
}

Value extreme_item(Context& context, const Value& input, const Arguments& arguments, int sign) {
  const Bound bound = bind_arguments(context, "min and max", arguments, {"case_sensitive", "attribute"});
  const auto list = iterate(context, input);
  if (list->items.empty()) return Value::undefined("an empty list has no least and no largest item");
  const bool case_sensitive = flag_argument(bound[0], false);
  size_t best = 0;
  for (size_t i = 1; i < list->items.size(); ++i) {
    const Value left = sort_key(context, list->items[i], bound[1], case_sensitive);
    if (sign * compare(context, left, sort_key(context, list->items[best], bound[1], case_sensitive)) > 0) best = i;
  }
  return list->items[best];
}

Value sort_dict(Context& context, const Value& input, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, "dictsort", arguments, {"case_sensitive", "by", "reverse"});
  if (!input.is(Kind::kDict)) context.fail("dictsort needs a mapping, not a {}", input.kind_name());
  const bool by_value = text_argument(bound[1], "key") == "value";
  std::vector<std::pair<Value, const Entry*>> keyed;
  for (const Entry& entry : input.as_dict().entries) {
    const Value looked_at = by_value ? entry.second : Value::string(entry.first);
    keyed.emplace_back(sort_key(context, looked_at, nullptr, flag_argument(bound[0], false)), &entry);
  }
  const bool reverse = flag_argument(bound[2], false);
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    return reverse ? compare(context, b.first, a.first) < 0 : compare(context, a.first, b.first) < 0;
  });
  Items items;
  for (const auto& [key, entry] : keyed) {
    items.push_back(Value::list(context, {Value::string(entry->first), entry->second}, true));
  }
  return Value::list(context, std::move(items));
}

Value dict_items(Context& context, const Value& input, const Arguments& arguments) {
  bind_arguments(context, "items", arguments, {});
  Items items;
  if (!input.is(Kind::kUndefined) && !input.is(Kind::kDict))
    context.fail("items needs a mapping, not a {}", input.kind_name());
  if (input.is(Kind::kDict)) {
    for (const Entry& entry : input.as_dict().entries) {
      items.push_back(Value::list(context, {Value::string(entry.first), entry.second}, true));
    }
  }
  return Value::list(context, std::move(items));
}

Value sum_items(Context& context, const Value& input, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, "sum", arguments, {"attribute", "start"});
  double sum = bound[1] == nullptr ? 0.0 : bound[1]->as_double();
  bool whole = bound[1] == nullptr || !bound[1]->is(Kind::kFloat);
  for (const auto list = iterate(context, input); const Value& item : list->items) {
    const Value value = sort_key(context, item, bound[0], true);
    if (!value.is_number()) context.fail("sum needs numbers, found a {}", value.kind_name());
    whole = whole && !value.is(Kind::kFloat);
    sum += value.as_double();
  }
  if (whole && std::abs(sum) < 9e15) return Value::integer(static_cast<int64_t>(sum));
  return Value::number(sum);
}

Value reverse_items(Context& context, const Value& input, const Arguments& arguments) {
  bind_arguments(context, "reverse", arguments, {});
  const auto list = iterate(context, input);
  Items items(list->items.rbegin(), list->items.rend());
  if (!input.is(Kind::kString)) return Value::list(context, std::move(items));
  std::string text;
  for (const Value& item : items) text += item.as_string();
  return make_text(context, std::move(text));
}

Value end_item(Context& context, const Value& input, bool first) {
  const auto list = iterate(context, input);
  if (list->items.empty()) return Value::undefined("an empty list has no first and no last item");
  return first ? list->items.front() : list->items.back();
}

// ---- filters over text and numbers ----

Value join_items(Context& context, const Value& input, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, "join", arguments, {"d", "attribute"});
  const std::string separator = text_argument(bound[0], "");
  std::string text;
  bool first = true;
  for (const auto list = iterate(context, input); const Value& item : list->items) {
    const std::string part = to_text(bound[1] == nullptr ? item : attribute_path(context, item, *bound[1]));
    context.charge_text(part.size() + separator.size());
    if (!first) text += separator;
    first = false;
    text += part;
  }
  return Value::string(std::move(text));
}

Value to_json(Context& context, const Value& input, const Arguments& arguments) {
  const Bound bound =
      bind_arguments(context, "tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = flag_argument(bound[0], false);
  style.sort_keys = flag_argument(bound[3], false);
  style.pretty = bound[1] != nullptr && !bound[1]->is(Kind::kNone);
  if (style.pretty && bound[1]->is(Kind::kString)) {
    style.indent = bound[1]->as_string();
  } else if (style.pretty) {
    style.indent =
        std::string(static_cast<size_t>(std::clamp<int64_t>(int_argument(context, bound[1], 0), 0, 64)), ' ');
  }
  if (style.pretty) style.item_separator = std::string(1, ',');
  if (bound[2] != nullptr && !bound[2]->is(Kind::kNone)) {
    if (!bound[2]->is(Kind::kList) || bound[2]->as_list()->items.size() != 2) {
      context.fail("the separators of tojson must be two strings");
    }
    style.item_separator = to_text(bound[2]->as_list()->items[0]);
    style.key_separator = to_text(bound[2]->as_list()->items[1]);
  }
  return make_text(context, to_json_text(context, input, style));
}

Value indent_text(Context& context, const Value& input, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, "indent", arguments, {"width", "first", "blank"});
  const bool by_text = bound[0] != nullptr && bound[0]->is(Kind::kString);
  const int64_t width = by_text ? 0 : std::clamp<int64_t>(int_argument(context, bound[0], 4), 0, 1000);
  const std::string space = by_text ? bound[0]->as_string() : std::string(static_cast<size_t>(width), ' ');
  const std::string text = to_text(input) + "\n";  // jinja2 adds it, so that a text without lines has one
  const std::vector<std::string_view> lines = split_lines(text);
  const bool blank = flag_argument(bound[2], false);
  context.charge_text(text.size() + lines.size() * space.size());
  std::string out = flag_argument(bound[1], false) ? space : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (blank || !lines[i].empty())) out += space;
    out += lines[i];
  }
  return Value::string(std::move(out));
}

Value replace_text(Context& context, const Value& input, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, "replace", arguments, {"old", "new", "count"});
  if (bound[0] == nullptr || bound[1] == nullptr) context.fail("replace needs two strings");
  const std::string text = to_text(input);
  const std::string from = to_text(*bound[0]);
  const std::string to = to_text(*bound[1]);
  if (from.empty()) context.refuse("replace of an empty string is not supported");
  context.charge_text(text.size() + text.size() / from.size() * to.size());
  return Value::string(replace_all(text, from, to, static_cast<long>(int_argument(context, bound[2], -1))));
}

Value trim_text(Context& context, const Value& input, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, "trim", arguments, {"chars"});
  const std::string text = to_text(input);
  if (bound[0] == nullptr || bound[0]->is(Kind::kNone)) {
    return make_text(context, std::string(strip_left(strip_right(text))));
  }
  const std::string characters = to_text(*bound[0]);
  return make_text(context, std::string(strip_left(strip_right(text, characters), characters)));
}

std::optional<double> parse_trimmed(std::string_view text) {
  return parse_number<double>(strip_left(strip_right(text)));
}

Value to_integer(Context& context, const Value& input, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, "int", arguments, {"default"});
  if (is_integer(input)) return Value::integer(input.as_int());
  std::optional<double> number;
  if (input.is(Kind::kFloat)) number = input.as_double();
  if (input.is(Kind::kString)) number = parse_trimmed(input.as_string());
  if (number && std::abs(*number) < 9.2e18) return Value::integer(static_cast<int64_t>(*number));
  return bound[0] == nullptr ? Value::integer(0) : *bound[0];
}

Value to_float(Context& context, const Value& input, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, "float", arguments, {"default"});
  if (input.is_number()) return Value::number(input.as_double());
  if (input.is(Kind::kString)) {
    if (const auto number = parse_trimmed(input.as_string())) return Value::number(*number);
  }
  return bound[0] == nullptr ? Value::number(0.0) : *bound[0];
}

Value round_number(Context& context, const Value& input, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, "round", arguments, {"precision", "method"});
  if (!input.is_number()) context.fail("round needs a number, not a {}", input.kind_name());
  const std::string method = text_argument(bound[1], "common");
  const double factor = std::pow(10.0, static_cast<double>(int_argument(context, bound[0], 0)));
  const double scaled = input.as_double() * factor;
  if (method == "floor") return Value::number(std::floor(scaled) / factor);
  if (method == "ceil") return Value::number(std::ceil(scaled) / factor);
  if (method != "common") context.fail("round has no method \"{}\"", method);
  return Value::number(std::nearbyint(scaled) / factor);  // half to even, as Python rounds
}

Value absolute(Context& context, const Value& input, const Arguments&) {
  if (input.is(Kind::kFloat)) return Value::number(std::abs(input.as_double()));
  if (!is_integer(input) || input.as_int() == INT64_MIN)
    context.fail("abs needs a number, not a {}", input.kind_name());
  return Value::integer(std::abs(input.as_int()));
}

Value with_default(Context& context, const Value& input, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, "default", arguments, {"default_value", "boolean"});
  const bool missing = input.is(Kind::kUndefined) || (flag_argument(bound[1], false) && !input.truthy());
  if (!missing) return input;
  return bound[0] == nullptr ? Value::string("") : *bound[0];
}

template <std::string (*map)(std::string_view)>
Value case_filter(Context& context, const Value& input, const Arguments& arguments) {
  bind_arguments(context, "upper, lower, title and capitalize", arguments, {});
  return make_text(context, map(to_text(input)));
}

Value length_filter(Context& context, const Value& input, const Arguments& arguments) {
  bind_arguments(context, "length", arguments, {});
  return Value::integer(length_of(context, input));
}

Value text_filter(Context& context, const Value& input, const Arguments& arguments) {
  bind_arguments(context, "string", arguments, {});
  return input.is(Kind::kString) ? input : make_text(context, to_text(input));
}

Value safe_filter(Context& context, const Value& input, const Arguments& arguments) {
  bind_arguments(context, "safe", arguments, {});
  return Value::markup(to_text(input));
}

Value list_filter(Context& context, const Value& input, const Arguments& arguments) {
  bind_arguments(context, "list", arguments, {});
  return Value::list(context, iterate(context, input)->items);
}

struct Filter {
  std::string_view name;
  Apply apply;
};

constexpr Filter kFilters[] = {
    {"tojson", to_json},
    {"trim", trim_text},
    {"upper", case_filter<to_upper>},
    {"lower", case_filter<to_lower>},
    {"title", case_filter<to_title>},
    {"capitalize", case_filter<to_capitalized>},
    {"length", length_filter},
    {"count", length_filter},
    {"join", join_items},
    {"default", with_default},
    {"d", with_default},
    {"items", dict_items},
    {"dictsort", sort_dict},
    {"map", map_items},
    {"select", [](Context& c, const Value& v, const Arguments& a) { return filter_items(c, v, a, false, true); }},
    {"reject", [](Context& c, const Value& v, const Arguments& a) { return filter_items(c, v, a, false, false); }},
    {"selectattr", [](Context& c, const Value& v, const Arguments& a) { return filter_items(c, v, a, true, true); }},
    {"rejectattr", [](Context& c, const Value& v, const Arguments& a) { return filter_items(c, v, a, true, false); }},
    {"list", list_filter},
    {"replace", replace_text},
    {"first", [](Context& c, const Value& v, const Arguments&) { return end_item(c, v, true); }},
    {"last", [](Context& c, const Value& v, const Arguments&) { return end_item(c, v, false); }},
    {"int", to_integer},
    {"float", to_float},
    {"string", text_filter},
    {"safe", safe_filter},
    {"indent", indent_text},
    {"unique", unique_items},
    {"sort", sort_items},
    {"reverse", reverse_items},
    {"min", [](Context& c, const Value& v, const Arguments& a) { return extreme_item(c, v, a, -1); }},
    {"max", [](Context& c, const Value& v, const Arguments& a) { return extreme_item(c, v, a, 1); }},
    {"sum", sum_items},
    {"abs", absolute},
    {"round", round_number},
};

const Filter* find_filter(std::string_view name) {
  const auto* it = std::ranges::find(kFilters, name, &Filter::name);
  return it == std::end(kFilters) ? nullptr : it;
}

}  // namespace

bool is_known_filter(std::string_view name) {
  return find_filter(name) != nullptr;
}

bool is_known_test(std::string_view name) {
  return find_test(name) != nullptr;
}

std::vector<const Value*> bind_arguments(Context& context, std::string_view what, const Arguments& arguments,
                                         std::initializer_list<std::string_view> parameters) {
  std::vector<const Value*> bound(parameters.size(), nullptr);
  if (arguments.positional.size() > parameters.size()) {
    context.fail("{} takes at most {} arguments, found {}", what, parameters.size(), arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) bound[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto* it = std::ranges::find(parameters, std::string_view(name));
    if (it == parameters.end()) context.refuse("the argument \"{}\" of {} is not supported", name, what);
    bound[static_cast<size_t>(it - parameters.begin())] = &value;
  }
  return bound;
}

int64_t int_argument(Context& context, const Value* argument, int64_t fallback) {
  if (argument == nullptr || argument->is(Kind::kNone)) return fallback;
  return integer_of(context, *argument);
}

std::string text_argument(const Value* argument, std::string_view fallback) {
  return argument == nullptr || argument->is(Kind::kNone) ? std::string(fallback) : to_text(*argument);
}

Value make_text(Context& context, std::string text) {
  context.charge_text(text.size());
  return Value::string(std::move(text));
}

Value apply_filter(Context& context, std::string_view name, const Value& input, const Arguments& arguments) {
  context.charge_steps(input.weight());
  if (input.is_markup()) context.refuse("the filter \"{}\" behind \"safe\" is not supported", name);
  return find_filter(name)->apply(context, input, arguments);
}

bool apply_test(Context& context, std::string_view name, const Value& input, const Arguments& arguments) {
  const Test* test = find_test(name);
  if (arguments.positional.size() != test->num_arguments || !arguments.named.empty()) {
    context.fail("the test \"{}\" takes {} arguments", name, test->num_arguments);
  }
  context.charge_steps(test->num_arguments > 0 ? input.weight() : 1);
  return test->call(context, input, arguments.positional);
}

}  // namespace asymkv::chat
