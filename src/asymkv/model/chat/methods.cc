// Methods and attributes of values, and the global functions.
#include <algorithm>
#include <array>
#include <charconv>

#include "asymkv/model/chat/functions.h"
#include "asymkv/model/chat/text.h"

namespace asymkv::chat {
namespace {

using Kind = Value::Kind;
using Bound = std::vector<const Value*>;

Value strings(Context& context, const std::vector<std::string_view>& parts) {
  Items items;
  for (const std::string_view part : parts) items.push_back(make_text(context, std::string(part)));
  return Value::list(context, std::move(items));
}

std::string_view required_text(Context& context, const Value* argument, std::string_view what) {
  if (argument == nullptr || !argument->is(Kind::kString)) context.fail("{} needs a string", what);
  return argument->as_string();
}

bool matches_affix(Context& context, std::string_view text, const Value* affix, bool at_begin) {
  if (affix != nullptr && affix->is(Kind::kList)) {
    return std::ranges::any_of(affix->as_list()->items,
                               [&](const Value& item) { return matches_affix(context, text, &item, at_begin); });
  }
  const std::string_view part = required_text(context, affix, at_begin ? "startswith" : "endswith");
  return at_begin ? text.starts_with(part) : text.ends_with(part);
}

Value split(Context& context, const std::string& text, const Arguments& arguments, bool from_right) {
  const Bound bound = bind_arguments(context, "split", arguments, {"sep", "maxsplit"});
  const auto limit = static_cast<long>(int_argument(context, bound[1], -1));
  if (bound[0] == nullptr || bound[0]->is(Kind::kNone)) {
    if (from_right && limit >= 0) context.refuse("rsplit at white space with a limit is not supported");
    return strings(context, split_space(text, limit));
  }
  const std::string_view separator = required_text(context, bound[0], "split");
  if (separator.empty()) context.fail("split needs a separator that is not empty");
  return strings(context, from_right ? split_at_right(text, separator, limit) : split_at(text, separator, limit));
}

Value strip(Context& context, std::string_view text, const Arguments& arguments, std::string_view method) {
  const Bound bound = bind_arguments(context, method, arguments, {"chars"});
  const bool all_space = bound[0] == nullptr || bound[0]->is(Kind::kNone);
  const std::string_view characters = all_space ? std::string_view() : required_text(context, bound[0], method);
  if (method != "rstrip") text = all_space ? strip_left(text) : strip_left(text, characters);
  if (method != "lstrip") text = all_space ? strip_right(text) : strip_right(text, characters);
  return make_text(context, std::string(text));
}

Value replace(Context& context, const std::string& text, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, "replace", arguments, {"old", "new", "count"});
  const std::string_view from = required_text(context, bound[0], "replace");
  const std::string_view to = required_text(context, bound[1], "replace");
  if (from.empty()) context.refuse("replace of an empty string is not supported");
  context.charge_text(text.size() / from.size() * to.size());
  return make_text(context, replace_all(text, from, to, static_cast<long>(int_argument(context, bound[2], -1))));
}

Value join(Context& context, const std::string& separator, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, "join", arguments, {"iterable"});
  if (bound[0] == nullptr) context.fail("join needs a list");
  std::string text;
  const auto list = iterate(context, *bound[0]);
  for (size_t i = 0; i < list->items.size(); ++i) {
    const std::string_view item = required_text(context, &list->items[i], "join");
    context.charge_text(item.size() + separator.size());
    if (i > 0) text += separator;
    text += item;
  }
  return Value::string(std::move(text));
}

Value find(Context& context, const std::string& text, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, "find", arguments, {"sub"});
  const size_t found = text.find(required_text(context, bound[0], "find"));
  if (found == std::string::npos) return Value::integer(-1);
  return Value::integer(static_cast<int64_t>(count_characters(std::string_view(text).substr(0, found))));
}

Value count(Context& context, const std::string& text, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, "count", arguments, {"sub"});
  const std::string_view part = required_text(context, bound[0], "count");
  if (part.empty()) context.refuse("count of an empty string is not supported");
  return Value::integer(static_cast<int64_t>(split_at(text, part, -1).size()) - 1);
}

Value remove_affix(Context& context, std::string_view text, const Arguments& arguments, bool prefix) {
  const Bound bound = bind_arguments(context, prefix ? "removeprefix" : "removesuffix", arguments, {"affix"});
  const std::string_view affix = required_text(context, bound[0], "removeprefix and removesuffix");
  if (prefix && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!prefix && text.ends_with(affix)) text.remove_suffix(affix.size());
  return make_text(context, std::string(text));
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

constexpr std::array<std::string_view, 20> kStringMethods = {
    "split",   "rsplit",     "strip",        "lstrip",       "rstrip",     "startswith", "endswith",
    "replace", "upper",      "lower",        "title",        "join",       "find",       "count",
    "isdigit", "splitlines", "removeprefix", "removesuffix", "capitalize", "isspace"};

Value call_string_method(Context& context, const std::string& text, std::string_view name, const Arguments& arguments) {
  context.charge_steps(1 + static_cast<int64_t>(text.size() / 64));
  if (name == "split" || name == "rsplit") return split(context, text, arguments, name == "rsplit");
  if (name == "strip" || name == "lstrip" || name == "rstrip") return strip(context, text, arguments, name);
  if (name == "replace") return replace(context, text, arguments);
  if (name == "join") return join(context, text, arguments);
  if (name == "find") return find(context, text, arguments);
  if (name == "count") return count(context, text, arguments);
  if (name == "removeprefix" || name == "removesuffix") {
    return remove_affix(context, text, arguments, name == "removeprefix");
  }
  if (name == "startswith" || name == "endswith") {
    const Bound bound = bind_arguments(context, name, arguments, {"affix"});
    return Value::boolean(matches_affix(context, text, bound[0], name == "startswith"));
  }
  bind_arguments(context, name, arguments, {});
  if (name == "upper") return make_text(context, to_upper(text));
  if (name == "lower") return make_text(context, to_lower(text));
  if (name == "title") return make_text(context, to_title(text));
  if (name == "capitalize") return make_text(context, to_capitalized(text));
  if (name == "splitlines") return strings(context, split_lines(text));
  if (name == "isdigit") return Value::boolean(all_digits(text));
  return Value::boolean(!text.empty() && strip_left(text).empty());  // isspace
}

Value call_dict_method(Context& context, const Value& value, std::string_view name, const Arguments& arguments) {
  const DictData& dict = value.as_dict();
  if (name == "get") {
    const Bound bound = bind_arguments(context, name, arguments, {"key", "default"});
    if (bound[0] == nullptr) context.fail("get needs a key");
    const Value* found = bound[0]->is(Kind::kString) ? dict.find(bound[0]->as_string()) : nullptr;
    if (found != nullptr) return *found;
    return bound[1] == nullptr ? Value::none() : *bound[1];
  }
  bind_arguments(context, name, arguments, {});
  Items items;
  for (const Entry& entry : dict.entries) {
    if (name == "keys") items.push_back(Value::string(entry.first));
    if (name == "values") items.push_back(entry.second);
    if (name == "items") items.push_back(Value::list(context, {Value::string(entry.first), entry.second}, true));
  }
  return Value::list(context, std::move(items));
}

Value call_list_method(Context& context, const Value& value, std::string_view name, const Arguments& arguments) {
  const Bound bound = bind_arguments(context, name, arguments, {"value"});
  if (bound[0] == nullptr) context.fail("{} needs a value", name);
  context.charge_steps(value.weight());
  const Items& items = value.as_list()->items;
  const auto same = [&](const Value& item) { return equal(item, *bound[0]); };
  if (name == "count") return Value::integer(std::ranges::count_if(items, same));
  const auto it = std::ranges::find_if(items, same);
  if (it == items.end()) context.fail("the list does not have the value that index() looks for");
  return Value::integer(it - items.begin());
}

using Method = Value (*)(Context&, const Value&, std::string_view, const Arguments&);

Value bound_method(Context& context, const Value& value, std::string_view name, Method method) {
  return Value::callable(std::string(name), [&context, value, name = std::string(name), method](const Arguments& args) {
    return method(context, value, name, args);
  });
}

Value string_method(Context& context, const Value& value, std::string_view name, const Arguments& arguments) {
  return call_string_method(context, value.as_string(), name, arguments);
}

Value call_loop_method(Context& context, const Value& value, std::string_view name, const Arguments& arguments) {
  if (arguments.positional.empty()) context.fail("loop.{} needs an argument", name);
  return arguments.positional[value.as_loop().idx % arguments.positional.size()];
}

Value loop_attribute(Context& context, const Value& value, std::string_view name) {
  const LoopData& loop = value.as_loop();
  const auto idx = static_cast<int64_t>(loop.idx);
  const Items& items = loop.items->items;
  const auto size = static_cast<int64_t>(items.size());
  if (name == "index") return Value::integer(idx + 1);
  if (name == "index0") return Value::integer(idx);
  if (name == "revindex") return Value::integer(size - idx);
  if (name == "revindex0") return Value::integer(size - idx - 1);
  if (name == "first") return Value::boolean(idx == 0);
  if (name == "last") return Value::boolean(idx + 1 == size);
  if (name == "length") return Value::integer(size);
  if (name == "previtem") return idx > 0 ? items[loop.idx - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem") return idx + 1 < size ? items[loop.idx + 1] : Value::undefined("there is no next item");
  if (name == "cycle") return bound_method(context, value, name, call_loop_method);
  context.refuse("loop.{} is not supported", name);
}

Value string_or_list_attribute(Context& context, const Value& value, std::string_view name) {
  if (value.is_markup()) context.refuse("methods of what the filter \"safe\" gives are not supported");
  if (value.is(Kind::kString)) {
    if (std::ranges::find(kStringMethods, name) != kStringMethods.end()) {
      return bound_method(context, value, name, string_method);
    }
    for (const std::string_view known : {"format", "encode", "zfill", "partition", "isalpha", "isupper", "islower"}) {
      if (name == known) context.refuse("the string method \"{}\" is not supported", name);
    }
  } else {
    if (name == "index" || name == "count") return bound_method(context, value, name, call_list_method);
    for (const std::string_view known : {"append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear"}) {
      if (name == known) context.fail("a template must not change a list (\"{}\"), as in jinja2's sandbox", name);
    }
  }
  return Value::undefined(fmt::format("a {} has no attribute \"{}\"", value.kind_name(), name));
}

Value indexed(Context& context, const Value& value, int64_t idx) {
  if (value.is(Kind::kList)) {
    const Items& items = value.as_list()->items;
    const auto size = static_cast<int64_t>(items.size());
    if (idx < 0) idx += size;
    if (idx >= 0 && idx < size) return items[static_cast<size_t>(idx)];
  } else {
    context.charge_steps(value.weight());
    const std::string& text = value.as_string();
    const std::vector<size_t> offsets = character_offsets(text);
    const auto size = static_cast<int64_t>(offsets.size()) - 1;
    if (idx < 0) idx += size;
    if (idx >= 0 && idx < size) {
      const size_t begin = offsets[static_cast<size_t>(idx)];
      return Value::string(text.substr(begin, offsets[static_cast<size_t>(idx) + 1] - begin));
    }
  }
  return Value::undefined(fmt::format("the {} has no item {}", value.kind_name(), idx));
}

Value make_range(Context& context, const Arguments& arguments) {
  int64_t bounds[3] = {0, 0, 1};
  const Items& given = arguments.positional;
  if (given.empty() || given.size() > 3 || !arguments.named.empty()) context.fail("range takes one to three integers");
  for (size_t i = 0; i < given.size(); ++i) {
    bounds[given.size() == 1 ? 1 : i] = int_argument(context, &given[i], 0);
  }
  constexpr int64_t kMaxRange = 100'000;  // jinja2's sandbox: MAX_RANGE
  const int64_t step = bounds[2];
  if (step == 0) context.fail("range needs a step that is not 0");
  Items items;
  for (int64_t i = bounds[0]; step > 0 ? i < bounds[1] : i > bounds[1];) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) context.fail("a range has at most {} items", kMaxRange);
    items.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::list(context, std::move(items));
}

Entries entries_of(Context& context, const Arguments& arguments, std::string_view what) {
  Entries entries;
  if (arguments.positional.size() > 1) context.fail("{} takes at most one mapping", what);
  if (!arguments.positional.empty()) {
    if (!arguments.positional[0].is(Kind::kDict))
      context.refuse("{} of a {} is not supported", what, arguments.positional[0].kind_name());
    entries = arguments.positional[0].as_dict().entries;
  }
  for (const Entry& entry : arguments.named) {
    const auto it = std::ranges::find(entries, entry.first, &Entry::first);
    if (it == entries.end()) {
      entries.push_back(entry);
    } else {
      it->second = entry.second;
    }
  }
  return entries;
}

Value make_namespace(Context& context, const Arguments& arguments) {
  auto data = std::make_shared<NamespaceData>();
  data->entries = entries_of(context, arguments, "namespace");
  for (const Entry& entry : data->entries) {
    if (entry.second.is(Kind::kNamespace)) context.refuse("a namespace inside a namespace is not supported");
  }
  return Value::name_space(std::move(data));
}

Value time_text(Context& context, const Arguments& arguments, std::time_t now) {
  const Bound bound = bind_arguments(context, "strftime_now", arguments, {"format"});
  const std::string format(required_text(context, bound[0], "strftime_now"));
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char buffer[512];
  const size_t size = format.empty() ? 0 : std::strftime(buffer, sizeof(buffer), format.c_str(), &parts);
  if (size == 0 && !format.empty()) context.fail("strftime_now gives no text for \"{}\"", format);
  return make_text(context, std::string(buffer, size));
}

}  // namespace

Value attribute_of(Context& context, const Value& value, std::string_view name) {
  switch (value.kind()) {
    case Kind::kUndefined:
      context.fail("{}, so it has no attribute \"{}\"", value.undefined_name(), name);
    case Kind::kDict:
      if (name == "get" || name == "keys" || name == "values" || name == "items") {
        return bound_method(context, value, name, call_dict_method);
      }
      if (name == "update" || name == "pop" || name == "setdefault" || name == "clear" || name == "popitem") {
        if (value.as_dict().find(name) == nullptr) {
          context.fail("a template must not change a mapping (\"{}\"), as in jinja2's sandbox", name);
        }
      }
      [[fallthrough]];
    case Kind::kNamespace: {
      const Entries& entries = value.is(Kind::kDict) ? value.as_dict().entries : value.as_namespace().entries;
      const auto it = std::ranges::find(entries, name, &Entry::first);
      if (it != entries.end()) return it->second;
      return Value::undefined(fmt::format("the {} has no \"{}\"", value.kind_name(), name));
    }
    case Kind::kLoop:
      return loop_attribute(context, value, name);
    case Kind::kString:
    case Kind::kList:
      return string_or_list_attribute(context, value, name);
    default:
      return Value::undefined(fmt::format("a {} has no attribute \"{}\"", value.kind_name(), name));
  }
}

Value item_of(Context& context, const Value& value, const Value& key) {
  if (value.is(Kind::kUndefined)) context.fail("{}, so it has no items", value.undefined_name());
  if (value.is(Kind::kDict) && key.is(Kind::kString)) {
    if (const Value* found = value.as_dict().find(key.as_string())) return *found;
  }
  if (key.is(Kind::kString)) return attribute_of(context, value, key.as_string());
  const bool has_places = value.is(Kind::kList) || value.is(Kind::kString);
  if (has_places && (key.is(Kind::kInt) || key.is(Kind::kBool))) return indexed(context, value, key.as_int());
  return Value::undefined(fmt::format("the {} has no item {}", value.kind_name(), to_repr(key)));
}

Value attribute_path(Context& context, const Value& value, const Value& path) {
  if (path.is(Kind::kInt)) return item_of(context, value, path);
  Value current = value;
  const std::string names = to_text(path);
  for (const std::string_view part : split_at(names, ".", -1)) {
    int64_t idx = 0;
    const bool is_idx =
        all_digits(part) && std::from_chars(part.data(), part.data() + part.size(), idx).ec == std::errc();
    current = item_of(context, current, is_idx ? Value::integer(idx) : Value::string(std::string(part)));
  }
  return current;
}

Value global_function(Context& context, std::string_view name, std::time_t now) {
  const auto make = [&](auto call) { return Value::callable(std::string(name), call); };
  if (name == "range") return make([&context](const Arguments& args) { return make_range(context, args); });
  if (name == "namespace") return make([&context](const Arguments& args) { return make_namespace(context, args); });
  if (name == "dict") {
    return make([&context](const Arguments& args) { return Value::dict(context, entries_of(context, args, "dict")); });
  }
  if (name == "strftime_now") {
    return make([&context, now](const Arguments& args) { return time_text(context, args, now); });
  }
  if (name == "raise_exception") {
    return make([&context](const Arguments& args) -> Value {
      const Bound bound = bind_arguments(context, "raise_exception", args, {"message"});
      context.fail("the chat template refuses this conversation: {}", text_argument(bound[0], "no reason given"));
    });
  }
  return Value::undefined(fmt::format("\"{}\" is undefined", name));
}

}  // namespace asymkv::chat
