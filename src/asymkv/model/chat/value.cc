#include "asymkv/model/chat/value.h"

#include <algorithm>

#include "asymkv/model/chat/text.h"

namespace asymkv::chat {
namespace {

using Kind = Value::Kind;

// Nesting and weight of what holds the items. Data only may stand inside.
class Extent {
 public:
  explicit Extent(Context& context) : context_(context) {}
  void add(const Value& item) {
    if (item.is(Kind::kNamespace) || item.is(Kind::kLoop) || item.is(Kind::kCallable)) {
      context_.refuse("a {} inside a list or mapping is not supported", item.kind_name());
    }
    nesting = std::max(nesting, item.nesting() + 1);
    if (nesting > kMaxNesting) context_.fail("lists and mappings are nested more than {} deep", kMaxNesting);
    context_.charge_steps(item.weight());
    weight += item.weight();
  }
  int nesting = 1;
  int64_t weight = 1;

 private:
  Context& context_;
};

}  // namespace

const Value* DictData::find(std::string_view key) const {
  const auto it = std::ranges::find(entries, key, &Entry::first);
  return it == entries.end() ? nullptr : &it->second;
}

Value Value::undefined(std::string what) {
  return Value(std::in_place_index<0>, Undefined{std::make_shared<const std::string>(std::move(what))});
}

Value Value::none() {
  return {};
}

Value Value::boolean(bool value) {
  return Value(std::in_place_index<2>, value);
}

Value Value::integer(int64_t value) {
  return Value(std::in_place_index<3>, value);
}

Value Value::number(double value) {
  return Value(std::in_place_index<4>, value);
}

Value Value::string(std::string text) {
  return Value(std::in_place_index<5>, std::make_shared<const std::string>(std::move(text)));
}

Value Value::markup(std::string text) {
  Value value = string(std::move(text));
  value.markup_ = true;
  return value;
}

Value Value::name_space(std::shared_ptr<NamespaceData> data) {
  return Value(std::in_place_index<8>, std::move(data));
}

Value Value::loop(std::shared_ptr<LoopData> data) {
  return Value(std::in_place_index<9>, std::move(data));
}

Value Value::callable(std::string name, std::function<Value(const Arguments&)> call) {
  return Value(std::in_place_index<10>, std::make_shared<const Callable>(Callable{std::move(name), std::move(call)}));
}

Value Value::list(Context& context, Items items, bool tuple) {
  Extent extent(context);
  for (const Value& item : items) extent.add(item);
  ListData data{std::move(items), tuple, extent.nesting, extent.weight};
  return Value(std::in_place_index<6>, std::make_shared<const ListData>(std::move(data)));
}

Value Value::dict(Context& context, Entries entries) {
  Extent extent(context);
  for (const Entry& entry : entries) extent.add(entry.second);
  DictData data{std::move(entries), extent.nesting, extent.weight};
  return Value(std::in_place_index<7>, std::make_shared<const DictData>(std::move(data)));
}

bool Value::truthy() const {
  switch (kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return as_int() != 0;
    case Kind::kFloat:
      return as_double() != 0.0;
    case Kind::kString:
      return !as_string().empty();
    case Kind::kList:
      return !as_list()->items.empty();
    case Kind::kDict:
      return !as_dict().entries.empty();
    case Kind::kNamespace:
    case Kind::kLoop:
    case Kind::kCallable:
      break;
  }
  return true;
}

int64_t Value::as_int() const {
  return is(Kind::kBool) ? int64_t{as_bool()} : std::get<int64_t>(data_);
}

double Value::as_double() const {
  return is(Kind::kFloat) ? std::get<double>(data_) : static_cast<double>(as_int());
}

std::string_view Value::kind_name() const {
  constexpr std::string_view kNames[] = {"undefined value", "none",   "boolean", "integer",
                                         "float",           "string", "list",    "mapping",
                                         "namespace",       "loop",   "function"};
  return kNames[data_.index()];
}

int Value::nesting() const {
  if (is(Kind::kList)) return as_list()->nesting;
  return is(Kind::kDict) ? as_dict().nesting : 0;
}

int64_t Value::weight() const {
  if (is(Kind::kList)) return as_list()->weight;
  if (is(Kind::kDict)) return as_dict().weight;
  return is(Kind::kString) ? 1 + static_cast<int64_t>(as_string().size() / 64) : 1;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is(Kind::kFloat) || b.is(Kind::kFloat)) return a.as_double() == b.as_double();
    return a.as_int() == b.as_int();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kString:
      return a.as_string() == b.as_string();
    case Kind::kList:
      return a.as_list()->tuple == b.as_list()->tuple &&
             std::ranges::equal(a.as_list()->items, b.as_list()->items, equal);
    case Kind::kDict: {
      const Entries& entries = a.as_dict().entries;
      return entries.size() == b.as_dict().entries.size() && std::ranges::all_of(entries, [&](const Entry& entry) {
               const Value* other = b.as_dict().find(entry.first);
               return other != nullptr && equal(entry.second, *other);
             });
    }
    case Kind::kNamespace:
      return &a.as_namespace() == &b.as_namespace();
    case Kind::kCallable:
      return &a.as_callable() == &b.as_callable();
    case Kind::kLoop:
      return &a.as_loop() == &b.as_loop();
    default:
      return true;  // two of none or undefined
  }
}

int compare(Context& context, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is(Kind::kFloat) || b.is(Kind::kFloat)) {
      return a.as_double() < b.as_double() ? -1 : static_cast<int>(a.as_double() > b.as_double());
    }
    return a.as_int() < b.as_int() ? -1 : static_cast<int>(a.as_int() > b.as_int());
  }
  if (a.is(Kind::kString) && b.is(Kind::kString)) return a.as_string().compare(b.as_string());
  if (a.is(Kind::kList) && b.is(Kind::kList)) {
    const Items& left = a.as_list()->items;
    const Items& right = b.as_list()->items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(left[i], right[i])) return compare(context, left[i], right[i]);
    }
    return left.size() < right.size() ? -1 : static_cast<int>(left.size() > right.size());
  }
  context.fail("a {} and a {} have no order", a.kind_name(), b.kind_name());
}

bool contains(Context& context, const Value& container, const Value& item) {
  context.charge_steps(container.weight());
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.is(Kind::kString)) context.fail("a {} cannot be in a string", item.kind_name());
      return container.as_string().find(item.as_string()) != std::string::npos;
    case Kind::kList:
      return std::ranges::any_of(container.as_list()->items, [&](const Value& x) { return equal(x, item); });
    case Kind::kDict:
      return item.is(Kind::kString) && container.as_dict().find(item.as_string()) != nullptr;
    default:
      context.fail("nothing can be in a {}", container.kind_name());
  }
}

std::shared_ptr<const ListData> iterate(Context& context, const Value& value) {
  Items items;
  switch (value.kind()) {
    case Kind::kList:
      return value.as_list();
    case Kind::kUndefined:
      break;
    case Kind::kString: {
      const std::string& text = value.as_string();
      context.charge_text(text.size());
      const std::vector<size_t> offsets = character_offsets(text);
      for (size_t i = 0; i + 1 < offsets.size(); ++i) {
        items.push_back(Value::string(text.substr(offsets[i], offsets[i + 1] - offsets[i])));
      }
      break;
    }
    case Kind::kDict:
      for (const Entry& entry : value.as_dict().entries) items.push_back(Value::string(entry.first));
      break;
    default:
      context.fail("a {} cannot be iterated over", value.kind_name());
  }
  return Value::list(context, std::move(items)).as_list();
}

int64_t length_of(Context& context, const Value& value) {
  if (value.is(Kind::kString)) context.charge_steps(value.weight());
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return static_cast<int64_t>(count_characters(value.as_string()));
    case Kind::kList:
      return static_cast<int64_t>(value.as_list()->items.size());
    case Kind::kDict:
      return static_cast<int64_t>(value.as_dict().entries.size());
    default:
      context.fail("a {} has no length", value.kind_name());
  }
}

}  // namespace asymkv::chat
