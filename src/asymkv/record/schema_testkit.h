#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <regex>
#include <string>
#include <utility>

#include "asymkv/base/json.h"

namespace asymkv::test {

// The part of JSON Schema that schemas/*.schema.json use. A keyword that it does not know is a violation, so the
// schemas cannot outgrow the tests unseen.
class SchemaCheck {
 public:
  // schemas/FILE of the source tree, say "record.schema.json".
  explicit SchemaCheck(const std::string& file)
      : root_(read_json_file(std::filesystem::path(std::getenv("ASYMKV_SOURCE_DIR")) / "schemas" / file)) {}

  // The first violation; empty if there is none.
  std::string check(const Json& value) const { return check(value, root_, "$"); }

 private:
  static bool has_type(const Json& value, const std::string& type) {
    if (type == "string") return value.is_string();
    if (type == "null") return value.is_null();
    if (type == "integer") return value.is_number_integer();
    if (type == "number") return value.is_number();
    if (type == "boolean") return value.is_boolean();
    if (type == "array") return value.is_array();
    return type == "object" && value.is_object();
  }

  std::string check(const Json& value, const Json& schema, const std::string& at) const {
    for (const auto& [keyword, rule] : schema.items()) {
      if (std::string found = check_keyword(value, schema, {keyword, rule}, at); !found.empty()) return found;
    }
    return {};
  }

  struct Rule {
    const std::string& keyword;
    const Json& value;
  };

  std::string check_keyword(const Json& value, const Json& schema, const Rule& rule, const std::string& at) const {
    const std::string& keyword = rule.keyword;
    if (keyword == "$schema" || keyword == "title" || keyword == "description" || keyword == "$defs") return {};
    if (keyword == "$ref") return check_reference(value, rule.value, at);
    if (keyword == "items") return check_items(value, rule.value, at);
    if (keyword == "required") return check_required(value, rule.value, at);
    if (keyword == "properties") return check_properties(value, rule.value, at);
    if (keyword == "additionalProperties") return check_additional(value, schema, rule.value, at);
    if (keyword == "propertyNames") return check_names(value, rule.value, at);
    const std::optional<bool> ok = check_plain(value, rule);
    if (!ok) return "the test does not know the keyword " + keyword;
    if (*ok) return {};
    return at + " breaks " + keyword;
  }

  // Keywords that are about one value; null for any other.
  std::optional<bool> check_plain(const Json& value, const Rule& rule) const {
    const std::string& keyword = rule.keyword;
    const Json& limit = rule.value;
    if (keyword == "type") {
      if (limit.is_string()) return has_type(value, limit);
      return std::ranges::any_of(limit, [&](const Json& type) { return has_type(value, type); });
    }
    if (keyword == "const") return value == limit;
    if (keyword == "enum") return std::ranges::find(limit, value) != limit.end();
    if (keyword == "pattern") {
      return !value.is_string() || std::regex_search(value.get<std::string>(), std::regex(limit.get<std::string>()));
    }
    if (keyword == "minLength") return !value.is_string() || value.get<std::string>().size() >= limit;
    if (keyword == "minimum") return !value.is_number() || value >= limit;
    if (keyword == "maximum") return !value.is_number() || value <= limit;
    if (keyword == "minItems") return !value.is_array() || value.size() >= limit;
    if (keyword == "anyOf") {
      return std::ranges::any_of(limit, [&](const Json& one) { return check(value, one, "").empty(); });
    }
    return std::nullopt;
  }

  // "#/$defs/NAME" of this file, or another file whole.
  std::string check_reference(const Json& value, const std::string& target, const std::string& at) const {
    if (!target.starts_with('#')) {
      const std::string found = SchemaCheck(target).check(value);
      return found.empty() ? found : at + found.substr(1);
    }
    return check(value, root_.at(Json::json_pointer(target.substr(1))), at);
  }

  std::string check_items(const Json& value, const Json& schema, const std::string& at) const {
    if (!value.is_array()) return {};
    for (const Json& item : value) {
      if (std::string found = check(item, schema, at + "[]"); !found.empty()) return found;
    }
    return {};
  }

  static std::string check_required(const Json& value, const Json& fields, const std::string& at) {
    for (const Json& field : fields) {
      if (value.is_object() && !value.contains(field)) return at + " lacks " + field.get<std::string>();
    }
    return {};
  }

  std::string check_properties(const Json& value, const Json& properties, const std::string& at) const {
    for (const auto& [field, schema] : properties.items()) {
      if (!value.is_object() || !value.contains(field)) continue;
      if (std::string found = check(value.at(field), schema, at + "." + field); !found.empty()) return found;
    }
    return {};
  }

  // False, or the schema of every field that `properties` does not name.
  std::string check_additional(const Json& value, const Json& schema, const Json& rule, const std::string& at) const {
    if (!value.is_object()) return {};
    for (const auto& [field, one] : value.items()) {
      if (schema.contains("properties") && schema.at("properties").contains(field)) continue;
      if (rule.is_boolean()) return at + " has the unknown " + field;
      if (std::string found = check(one, rule, at + "." + field); !found.empty()) return found;
    }
    return {};
  }

  std::string check_names(const Json& value, const Json& schema, const std::string& at) const {
    if (!value.is_object()) return {};
    for (const auto& [field, unused] : value.items()) {
      if (!check(Json(field), schema, at).empty()) return at + " has no place for " + field;
    }
    return {};
  }

  Json root_;
};

}  // namespace asymkv::test
