#include "asymkv/record/record_scan.h"

#include <algorithm>
#include <sstream>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/record/kernel_row.h"

namespace asymkv {
namespace {

constexpr std::string_view kSchemaStem = "asymkv.record/";
constexpr size_t kPlacesNamed = 12;  // of a file with more, the first ones

bool has_text(const Json& object, const char* field, std::string_view stem) {
  const auto it = object.find(field);
  return it != object.end() && it->is_string() && it->get_ref<const std::string&>().starts_with(stem);
}

std::string below(const std::string& at, const std::string& name) {
  return at.empty() ? name : fmt::format("{}.{}", at, name);
}

void scan(const Json& value, const std::string& at, std::string_view origin, std::vector<FoundRecord>& found) {
  if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) scan(value[i], fmt::format("{}[{}]", at, i), origin, found);
    return;
  }
  if (!value.is_object()) return;
  const std::string where = at.empty() ? std::string(origin) : fmt::format("{}: {}", origin, at);
  if (has_text(value, "schema", kSchemaStem)) {
    found.push_back({at, record_from_json(value, where)});
    return;
  }
  if (is_kernel_row(value)) {
    found.push_back({below(at, "record"), record_from_kernel_row(value, where)});
    return;
  }
  for (const auto& [name, child] : value.items()) scan(child, below(at, name), origin, found);
}

// Null unless every line is a JSON object.
Json parse_lines(const std::string& text, std::string_view origin) {
  Json lines = Json::array();
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) continue;
    lines.push_back(parse_json(line, origin));
  }
  return lines;
}

bool has_lines(const std::string& text) {
  const size_t end = text.find('\n');
  return end != std::string::npos && end > 1 && text.front() == '{' && text[end - 1] == '}' &&
         text.find_first_not_of(" \n\r\t", end) != std::string::npos;
}

std::string places(const std::vector<FoundRecord>& records) {
  std::string list;
  for (size_t i = 0; i < std::min(records.size(), kPlacesNamed); ++i) {
    list += fmt::format("{}{}", i == 0 ? "" : ", ", records[i].at);
  }
  if (records.size() > kPlacesNamed) list += fmt::format(" and {} more", records.size() - kPlacesNamed);
  return list;
}

bool names(std::string_view place, const std::string& at) {
  return at == place || (at.ends_with(place) && at[at.size() - place.size() - 1] == '.');
}

}  // namespace

std::vector<FoundRecord> find_records(const Json& document, std::string_view origin) {
  std::vector<FoundRecord> found;
  scan(document, "", origin, found);
  if (found.empty()) {
    throw_bad_input("{}: holds no record: no object in it has a field \"schema\" of \"{}N\"", origin, kSchemaStem);
  }
  return found;
}

std::vector<FoundRecord> read_records(const std::filesystem::path& path) {
  const std::string text = read_text_file(path);
  const Json document = has_lines(text) ? parse_lines(text, path.string()) : parse_json(text, path.string());
  if (document.is_object() && has_text(document, "schema", "asymkv.certificate/")) {
    return read_records(path.parent_path() / "record.json");
  }
  return find_records(document, path.string());
}

const FoundRecord& choose_record(const std::vector<FoundRecord>& records, std::string_view place,
                                 std::string_view origin) {
  if (place.empty()) {
    if (records.size() == 1) return records.front();
    throw_usage("{} holds {} records: name one of {}", origin, records.size(), places(records));
  }
  const FoundRecord* chosen = nullptr;
  for (const FoundRecord& found : records) {
    if (!names(place, found.at)) continue;
    if (chosen != nullptr) throw_usage("{}: \"{}\" may be {} or {}", origin, place, chosen->at, found.at);
    chosen = &found;
  }
  if (chosen == nullptr) throw_usage("{} has no record at \"{}\"; it has {}", origin, place, places(records));
  return *chosen;
}

}  // namespace asymkv
