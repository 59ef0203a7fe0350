#include "asymkv/base/json.h"

#include <cmath>
#include <set>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"

namespace asymkv {
namespace {

void check_finite(const Json& value) {
  if (value.is_number_float()) {
    ASYMKV_CHECK(std::isfinite(value.get<double>()), "a JSON number is {}", value.get<double>());
  } else if (value.is_structured()) {
    for (const auto& item : value) check_finite(item);
  }
}

bool present(const Json& object, const std::string& field) {
  return object.is_object() && object.contains(field) && !object.at(field).is_null();
}

[[noreturn]] void throw_wrong_type(const Json& actual, const std::string& field, const char* expected,
                                   std::string_view origin) {
  throw_bad_input("{}: field \"{}\" must be {}, found {}", origin, field, expected, actual.type_name());
}

// Readers of JSON recurse: a file that nests deeper than any honest one must not end on the stack's limit.
constexpr int64_t kMaxJsonDepth = 256;

// And what follows a NUL would not be read at all. Returns the colons outside strings: one for each member of an
// object.
size_t check_bytes(std::string_view text, std::string_view origin) {
  size_t colons = 0;
  int64_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\0') throw_bad_input("{} is not valid JSON: byte {} is NUL", origin, i + 1);
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (c == ':') ++colons;
    if (depth > kMaxJsonDepth) {
      throw_bad_input("{} nests deeper than {} levels at byte {}", origin, kMaxJsonDepth, i + 1);
    }
  }
  return colons;
}

size_t count_members(const Json& value) {
  if (!value.is_structured()) return 0;
  size_t members = value.is_object() ? value.size() : 0;
  for (const Json& element : value) members += count_members(element);
  return members;
}

// Names the first key that an object has twice: of its two values one would count, and readers differ in which.
[[noreturn]] void refuse_repeated_key(std::string_view text, std::string_view origin) {
  std::vector<std::set<std::string>> open;
  const auto look = [&](int, Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event != Json::parse_event_t::key) return true;
    if (open.back().insert(parsed.get<std::string>()).second) return true;
    throw_bad_input("{} has the key {} twice in one object", origin, parsed.dump(-1, ' ', true));
  };
  const Json value = Json::parse(text.begin(), text.end(), look);
  ASYMKV_CHECK(false, "{} has fewer members than its {} bytes have colons", origin, text.size());
}

}  // namespace

std::string canonical_json(const Json& value) {
  check_finite(value);
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json parse_json(std::string_view text, std::string_view origin) {
  const size_t members = check_bytes(text, origin);
  try {
    Json value = Json::parse(text.begin(), text.end());
    // Counting is what keeps the check cheap: keys are compared only where some are known to repeat.
    if (count_members(value) != members) refuse_repeated_key(text, origin);
    return value;
  } catch (const Json::parse_error& e) {
    throw_bad_input("{} is not valid JSON at byte {}", origin, e.byte);
  } catch (const Json::out_of_range&) {
    throw_bad_input("{} holds a number beyond what 64 bits can say", origin);
  } catch (const Json::exception& e) {
    throw_bad_input("{} is not valid JSON: {}", origin, e.what());
  }
}

Json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_text_file(path), path.string());
}

const Json& require_field(const Json& object, const std::string& field, std::string_view origin) {
  if (!object.is_object()) throw_bad_input("{} must be a JSON object, found {}", origin, object.type_name());
  const auto it = object.find(field);
  if (it == object.end()) throw_bad_input("{}: field \"{}\" is missing", origin, field);
  return *it;
}

int64_t require_int(const Json& object, const std::string& field, std::string_view origin) {
  const Json& value = require_field(object, field, origin);
  if (!value.is_number_integer()) throw_wrong_type(value, field, "an integer", origin);
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    throw_bad_input("{}: field \"{}\" is {}, above the largest integer served, {}", origin, field, value.dump(),
                    INT64_MAX);
  }
  return value.get<int64_t>();
}

double require_number(const Json& object, const std::string& field, std::string_view origin) {
  const Json& value = require_field(object, field, origin);
  if (!value.is_number()) throw_wrong_type(value, field, "a number", origin);
  return value.get<double>();
}

std::string require_string(const Json& object, const std::string& field, std::string_view origin) {
  const Json& value = require_field(object, field, origin);
  if (!value.is_string()) throw_wrong_type(value, field, "a string", origin);
  return value.get<std::string>();
}

bool require_bool(const Json& object, const std::string& field, std::string_view origin) {
  const Json& value = require_field(object, field, origin);
  if (!value.is_boolean()) throw_wrong_type(value, field, "true or false", origin);
  return value.get<bool>();
}

int64_t int_or(const Json& object, const std::string& field, int64_t fallback, std::string_view origin) {
  return present(object, field) ? require_int(object, field, origin) : fallback;
}

double number_or(const Json& object, const std::string& field, double fallback, std::string_view origin) {
  return present(object, field) ? require_number(object, field, origin) : fallback;
}

bool bool_or(const Json& object, const std::string& field, bool fallback, std::string_view origin) {
  return present(object, field) ? require_bool(object, field, origin) : fallback;
}

std::string string_or(const Json& object, const std::string& field, const std::string& fallback,
                      std::string_view origin) {
  return present(object, field) ? require_string(object, field, origin) : fallback;
}

}  // namespace asymkv
