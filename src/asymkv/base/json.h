#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace asymkv {

// Keys are kept sorted (std::map), which makes dump() deterministic.
using Json = nlohmann::json;

// Sorted keys, no white space, UTF-8: equal values give equal bytes, so a hash of it is stable.
// Throws Error{kInternal} if the value holds a NaN or infinite number.
std::string canonical_json(const Json& value);

// Parses text; `origin` (a path or "--option") is named in the error, with the byte offset. Throws Error{kBadInput}.
Json parse_json(std::string_view text, std::string_view origin);
Json read_json_file(const std::filesystem::path& path);

// Typed field readers: the error names origin, field, expected and actual type. Throws Error{kBadInput}.
const Json& require_field(const Json& object, const std::string& field, std::string_view origin);
int64_t require_int(const Json& object, const std::string& field, std::string_view origin);
double require_number(const Json& object, const std::string& field, std::string_view origin);
std::string require_string(const Json& object, const std::string& field, std::string_view origin);
bool require_bool(const Json& object, const std::string& field, std::string_view origin);
// The same with a default for an absent or null field; a field of another type is still an error.
int64_t int_or(const Json& object, const std::string& field, int64_t fallback, std::string_view origin);
double number_or(const Json& object, const std::string& field, double fallback, std::string_view origin);
bool bool_or(const Json& object, const std::string& field, bool fallback, std::string_view origin);
std::string string_or(const Json& object, const std::string& field, const std::string& fallback,
                      std::string_view origin);

}  // namespace asymkv
