#include "asymkv/base/json_fields.h"

#include <utility>

#include "asymkv/base/error.h"

namespace asymkv {

JsonFields::JsonFields(const Json& object, std::string origin, std::string prefix)
    : object_(&object), origin_(std::move(origin)), prefix_(std::move(prefix)) {
  if (object.is_object()) return;
  if (prefix_.empty()) throw_bad_input("{} must be a JSON object, found {}", origin_, object.type_name());
  throw_bad_input("{}: field \"{}\" must be an object, found {}", origin_, prefix_.substr(0, prefix_.size() - 1),
                  object.type_name());
}

bool JsonFields::has(const std::string& field) const {
  return object_->contains(field);
}

const Json& JsonFields::raw(const std::string& field) {
  const auto it = object_->find(field);
  if (it == object_->end()) throw_bad_input("{}: field \"{}{}\" is missing", origin_, prefix_, field);
  read_.insert(field);
  return *it;
}

std::string JsonFields::text(const std::string& field) {
  const Json& value = raw(field);
  if (!value.is_string()) fail(field, fmt::format("must be a string, found {}", value.type_name()));
  return value.get<std::string>();
}

int64_t JsonFields::integer(const std::string& field) {
  const Json& value = raw(field);
  if (!value.is_number_integer()) fail(field, fmt::format("must be an integer, found {}", value.dump()));
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    fail(field, fmt::format("is {}, above the largest integer served, {}", value.dump(), INT64_MAX));
  }
  return value.get<int64_t>();
}

double JsonFields::number(const std::string& field) {
  const Json& value = raw(field);
  if (!value.is_number()) fail(field, fmt::format("must be a number, found {}", value.type_name()));
  return value.get<double>();
}

bool JsonFields::boolean(const std::string& field) {
  const Json& value = raw(field);
  if (!value.is_boolean()) fail(field, fmt::format("must be true or false, found {}", value.type_name()));
  return value.get<bool>();
}

std::vector<std::string> JsonFields::texts(const std::string& field) {
  const Json& value = raw(field);
  if (!value.is_array()) fail(field, fmt::format("must be a list of strings, found {}", value.type_name()));
  std::vector<std::string> result;
  for (const Json& element : value) {
    if (!element.is_string()) fail(field, fmt::format("must hold strings only, found {}", element.type_name()));
    result.push_back(element.get<std::string>());
  }
  return result;
}

JsonFields JsonFields::object(const std::string& field) {
  return {raw(field), origin_, prefix_ + field + "."};
}

std::vector<JsonFields> JsonFields::objects(const std::string& field) {
  const Json& value = raw(field);
  if (!value.is_array()) fail(field, fmt::format("must be a list of objects, found {}", value.type_name()));
  std::vector<JsonFields> result;
  for (size_t i = 0; i < value.size(); ++i) {
    result.emplace_back(value[i], origin_, fmt::format("{}{}[{}].", prefix_, field, i));
  }
  return result;
}

void JsonFields::finish() const {
  for (const auto& [field, value] : object_->items()) {
    if (!read_.contains(field)) {
      throw_bad_input("{}: unknown field \"{}{}\": remove it or correct its name", origin_, prefix_, field);
    }
  }
}

void JsonFields::fail(const std::string& field, std::string_view what) const {
  throw_bad_input("{}: field \"{}{}\" {}", origin_, prefix_, field, what);
}

}  // namespace asymkv
