#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "asymkv/base/error.h"
#include "asymkv/base/json.h"

namespace asymkv {

// The object of a config.json that describes the decoder: the file's own, or its text_config.
struct ShapeSource {
  const Json& json;
  std::string origin;  // for errors: the file, and text_config where that is read
  std::string path;    // for verdicts: "" or "text_config."

  bool has(const std::string& key) const { return json.contains(key) && !json.at(key).is_null(); }
  bool flag(const std::string& key) const { return bool_or(json, key, false, origin); }
  std::string name(std::string_view key) const { return path + std::string(key); }

  int64_t count(const std::string& key) const {
    const int64_t value = require_int(json, key, origin);
    if (value < 1) throw_bad_input("{}: {} is {}, expected a positive integer", origin, key, value);
    return value;
  }
  int64_t count_or(const std::string& key, int64_t fallback) const { return has(key) ? count(key) : fallback; }

  // Old and new names of one quantity: the first that is there, which the others must not contradict; `names[0]` if
  // none.
  std::string one_of(std::initializer_list<const char*> names) const {
    std::string found;
    for (const char* key : names) {
      if (!has(key)) continue;
      if (found.empty()) found = key;
      if (json.at(key) != json.at(found)) {
        throw_bad_input("{}: {} is {} but {} is {}", origin, found, json.at(found).dump(), key, json.at(key).dump());
      }
    }
    return found.empty() ? *names.begin() : found;
  }
};

}  // namespace asymkv
