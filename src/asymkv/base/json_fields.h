#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/json.h"

namespace asymkv {

// Reads the fields of one JSON object and refuses what it was not asked for: a misspelt field must not silently become
// a default. Every error is Error{kBadInput} naming `origin` and the field with its path ("panels.math.count").
class JsonFields {
 public:
  // `prefix` is the path of the object itself, with its final dot; empty at the top.
  JsonFields(const Json& object, std::string origin, std::string prefix = {});

  bool has(const std::string& field) const;
  const Json& raw(const std::string& field);
  std::string text(const std::string& field);
  int64_t integer(const std::string& field);
  double number(const std::string& field);
  bool boolean(const std::string& field);
  std::vector<std::string> texts(const std::string& field);
  // What `parse` makes of a text of `field`; what it throws becomes an error about the field.
  template <typename Parse>
  auto parsed(const std::string& field, const std::string& text, const Parse& parse) const {
    try {
      return parse(text);
    } catch (const Error& e) {
      fail(field, fmt::format("is wrong: {}", e.what()));
    }
  }
  // The object in `field`, to be read and finished on its own.
  JsonFields object(const std::string& field);
  // The objects of an array; each knows its index.
  std::vector<JsonFields> objects(const std::string& field);

  // Call last: throws if the object has a field that nobody read.
  void finish() const;
  // Throws an error about a field that was read.
  [[noreturn]] void fail(const std::string& field, std::string_view what) const;

 private:
  const Json* object_;
  std::string origin_;
  std::string prefix_;
  std::set<std::string> read_;
};

}  // namespace asymkv
