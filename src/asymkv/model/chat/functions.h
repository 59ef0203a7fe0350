#pragma once

#include <ctime>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/model/chat/value.h"

// Filters, tests, methods and functions of chat templates.
namespace asymkv::chat {

// Arguments matched to parameter names; null where an argument is missing. Refuses unknown and surplus ones, naming
// `what`.
std::vector<const Value*> bind_arguments(Context& context, std::string_view what, const Arguments& arguments,
                                         std::initializer_list<std::string_view> parameters);
// The argument as an integer or a text; the fallback if it is missing or none.
int64_t int_argument(Context& context, const Value* argument, int64_t fallback);
std::string text_argument(const Value* argument, std::string_view fallback);
// A string that is made on the way, charged.
Value make_text(Context& context, std::string text);

Value apply_filter(Context& context, std::string_view name, const Value& input, const Arguments& arguments);
bool apply_test(Context& context, std::string_view name, const Value& input, const Arguments& arguments);

// value.name: a method, a key of a mapping, or an attribute; undefined if there is none.
Value attribute_of(Context& context, const Value& value, std::string_view name);
// value[key]: as attribute_of, keys of a mapping before methods; for lists and strings an index.
Value item_of(Context& context, const Value& value, const Value& key);
// "a.b.0", as filters like map(attribute=...) take it.
Value attribute_path(Context& context, const Value& value, const Value& path);

// range, dict, namespace, raise_exception and strftime_now (which shows `now` as local time); undefined for others.
Value global_function(Context& context, std::string_view name, std::time_t now);

}  // namespace asymkv::chat
