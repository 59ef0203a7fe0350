#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "asymkv/model/chat/context.h"

// What expressions of a chat template evaluate to: Python's data as far as templates show it.
namespace asymkv::chat {

class Value;
using Items = std::vector<Value>;
using Entry = std::pair<std::string, Value>;
using Entries = std::vector<Entry>;

// Arguments of a call, filter or test.
struct Arguments {
  Items positional;
  Entries named;
};

// Lists and dicts never change once made: jinja2's immutable sandbox, in which published templates must run.
struct ListData {
  Items items;
  bool tuple = false;  // prints with round brackets
  int nesting = 1;
  int64_t weight = 1;
};
struct DictData {
  Entries entries;  // in order of insertion, keys unique
  int nesting = 1;
  int64_t weight = 1;
  const Value* find(std::string_view key) const;
};
// The only mutable object. It holds no namespace, so there are no cycles.
struct NamespaceData {
  Entries entries;
};
struct LoopData {
  std::shared_ptr<const ListData> items;
  size_t idx = 0;
};
struct Callable {
  std::string name;  // for error messages
  std::function<Value(const Arguments&)> call;
};

class Value {
 public:
  enum class Kind { kUndefined, kNone, kBool, kInt, kFloat, kString, kList, kDict, kNamespace, kLoop, kCallable };

  Value() : data_(None{}) {}
  static Value undefined(std::string what);  // `what` is named when somebody uses it
  static Value none();
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value number(double value);
  static Value string(std::string text);
  // What the filter "safe" gives. jinja2 escapes HTML in text that is added to it, so that is kept; methods and filters
  // refuse it.
  static Value markup(std::string text);
  static Value name_space(std::shared_ptr<NamespaceData> data);
  static Value loop(std::shared_ptr<LoopData> data);
  static Value callable(std::string name, std::function<Value(const Arguments&)> call);
  // Both charge `context` and refuse what is nested too deep or holds a namespace, loop or function.
  static Value list(Context& context, Items items, bool tuple = false);
  static Value dict(Context& context, Entries entries);

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind kind) const { return this->kind() == kind; }
  bool is_number() const { return is(Kind::kBool) || is(Kind::kInt) || is(Kind::kFloat); }
  bool is_markup() const { return markup_; }
  bool truthy() const;
  // Each is valid for its own kind only.
  const std::string& undefined_name() const { return *std::get<0>(data_).what; }
  bool as_bool() const { return std::get<bool>(data_); }
  const std::string& as_string() const { return *std::get<5>(data_); }
  const std::shared_ptr<const ListData>& as_list() const { return std::get<6>(data_); }
  const DictData& as_dict() const { return *std::get<7>(data_); }
  NamespaceData& as_namespace() const { return *std::get<8>(data_); }
  const LoopData& as_loop() const { return *std::get<9>(data_); }
  const Callable& as_callable() const { return *std::get<10>(data_); }
  int64_t as_int() const;    // of a bool or an integer
  double as_double() const;  // of any number

  std::string_view kind_name() const;  // "string", "mapping", ... for error messages
  int nesting() const;                 // of lists and dicts; 0 for anything else
  // Steps that looking at the whole value costs: one an item, and one for 64 bytes of text. Shared parts count each
  // time they appear, as they would be printed.
  int64_t weight() const;

 private:
  struct Undefined {
    std::shared_ptr<const std::string> what;
  };
  struct None {};
  using Text = std::shared_ptr<const std::string>;
  std::variant<Undefined, None, bool, int64_t, double, Text, std::shared_ptr<const ListData>,
               std::shared_ptr<const DictData>, std::shared_ptr<NamespaceData>, std::shared_ptr<LoopData>,
               std::shared_ptr<const Callable>>
      data_;
  bool markup_ = false;

  template <size_t index, typename... Args>
  explicit Value(std::in_place_index_t<index> tag, Args&&... args) : data_(tag, std::forward<Args>(args)...) {}
};

// Text as `{{ value }}` prints it, and as Python's repr() shows it inside lists.
std::string to_text(const Value& value);
std::string to_repr(const Value& value);
// Python's shortest text of a float: "0.1", "1e-05", "3.0".
std::string float_text(double value);

struct JsonStyle {
  bool ascii = false;
  bool sort_keys = false;
  bool pretty = false;  // one item a line, each level behind another `indent`
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json_text(Context& context, const Value& value, const JsonStyle& style);

bool equal(const Value& a, const Value& b);
// Negative, zero or positive; refuses what Python does not order.
int compare(Context& context, const Value& a, const Value& b);
bool contains(Context& context, const Value& container, const Value& item);
// Items of a list, characters of a string, keys of a mapping, nothing of an undefined value; else an error.
std::shared_ptr<const ListData> iterate(Context& context, const Value& value);
// Number of items, characters or keys.
int64_t length_of(Context& context, const Value& value);

}  // namespace asymkv::chat
