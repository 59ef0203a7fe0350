#include "asymkv/record/import_document.h"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <utility>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Discarded unless the text is JSON.
Json json_if_any(const std::string& text, const std::string& origin) {
  return Json::accept(text) ? parse_json(text, origin) : Json(Json::value_t::discarded);
}

void add_objects(ImportDocument& document) {
  if (document.json.is_object()) {
    document.objects.push_back(document.json);
    document.places.emplace_back();
  }
  if (document.json.is_array()) {
    for (size_t i = 0; i < document.json.size(); ++i) {
      document.objects.push_back(document.json[i]);
      document.places.push_back(fmt::format("[{}]", i));
    }
  }
  if (!document.json.is_discarded()) return;
  for (size_t i = 0; i < document.lines.size(); ++i) {
    if (!document.lines[i].starts_with('{')) continue;
    const std::string place = fmt::format("line {}", i + 1);
    Json object = json_if_any(document.lines[i], fmt::format("{}: {}", document.origin, place));
    if (!object.is_object()) continue;
    document.objects.push_back(std::move(object));
    document.places.push_back(place);
  }
}

bool is_space(char c) {
  return c == ' ' || c == '\t';
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::string unquoted(std::string_view text) {
  const bool quoted = text.size() >= 2 && (text.front() == '\'' || text.front() == '"') && text.back() == text.front();
  return std::string(quoted ? text.substr(1, text.size() - 2) : text);
}

// {'name': value} or name=value; false for what is neither, and for a name that is there already.
bool add_entry(std::string_view entry, std::map<std::string, std::string>& entries) {
  entry = trimmed(entry);
  if (entry.empty()) return true;
  const bool quoted = entry.front() == '\'' || entry.front() == '"';
  const size_t end = quoted ? entry.find(entry.front(), 1) : entry.find('=');
  if (end == std::string_view::npos) return false;
  const size_t separator = quoted ? entry.find_first_not_of(' ', end + 1) : end;
  if (separator == std::string_view::npos || (quoted && entry[separator] != ':')) return false;
  const std::string name(quoted ? entry.substr(1, end - 1) : trimmed(entry.substr(0, end)));
  const std::string_view text = trimmed(entry.substr(separator + 1));
  if (name.empty() || text.empty()) return false;
  const std::string value = unquoted(text);
  return value == "None" || entries.emplace(name, value).second;
}

// Position of the quote that ends the one at `pos`; npos without one.
size_t end_of_quote(std::string_view text, size_t pos) {
  const char quote = text[pos];
  for (++pos; pos < text.size(); ++pos) {
    if (text[pos] == '\\') {
      ++pos;
    } else if (text[pos] == quote) {
      return pos;
    }
  }
  return std::string_view::npos;
}

}  // namespace

ImportDocument parse_import_document(std::string_view text, std::string_view origin) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  ImportDocument document;
  document.origin = origin;
  document.text = text;
  document.lines = split_lines(document.text);
  document.json = json_if_any(document.text, document.origin);
  add_objects(document);
  return document;
}

ImportedRecord start_import(const ImportDocument& document, size_t object, const std::string& engine,
                            std::string_view source) {
  ImportedRecord imported;
  if (object < document.places.size()) imported.at = document.places[object];
  imported.record.engine = engine;
  imported.record.imported_from = source;
  imported.record.scales.source = imported.record.transform.kind = imported.record.launch.mode = "unknown";
  return imported;
}

void request_key(ImportedRecord& imported, const std::optional<std::string>& requested, const std::string& field) {
  if (!requested || requested->empty()) return;
  imported.record.key.requested = *requested;
  imported.key_decided_by = field;
}

void request_value(ImportedRecord& imported, const std::optional<std::string>& requested, const std::string& field) {
  if (!requested || requested->empty()) return;
  imported.record.value.requested = *requested;
  imported.value_decided_by = field;
}

void request_both(ImportedRecord& imported, const std::optional<std::string>& requested, const std::string& field) {
  request_key(imported, requested, field);
  request_value(imported, requested, field);
}

void add_printed(ImportedRecord& imported, const std::vector<PrintedCache>& caches) {
  if (caches.empty()) return;
  const PrintedCache& first = caches.front();
  for (const PrintedCache& cache : caches) {
    if (cache.key == first.key && cache.value == first.value) continue;
    imported.notes.push_back(
        fmt::format("lines {} and {} print caches of different types: keys {}, values {}; keys {}, "
                    "values {}",
                    first.line, cache.line, first.key, first.value, cache.key, cache.value));
    return;
  }
  const std::string at = fmt::format("line {}", first.line);
  imported.key_printed = {first.key, at};
  imported.value_printed = {first.value, at};
}

std::string model_name(const std::string& id) {
  const bool is_path = id.starts_with('/') || id.starts_with('.') || id.starts_with('~');
  if (!is_path) return id;
  const std::filesystem::path path(id);
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

bool has_fields(const ImportDocument& document, std::initializer_list<const char*> fields) {
  return std::ranges::any_of(document.objects, [&](const Json& object) {
    return object.is_object() && std::ranges::all_of(fields, [&](const char* field) { return object.contains(field); });
  });
}

JsonFields object_fields(const ImportDocument& document, size_t object) {
  const std::string& place = document.places[object];
  return {document.objects[object], place.empty() ? document.origin : fmt::format("{}: {}", document.origin, place)};
}

std::optional<std::string> optional_text(JsonFields& fields, const std::string& field) {
  if (!fields.has(field) || fields.raw(field).is_null()) return std::nullopt;
  std::string text = fields.text(field);
  if (text.empty()) return std::nullopt;
  return text;
}

std::string optional_time(JsonFields& fields, const std::string& field) {
  const std::string time = optional_text(fields, field).value_or("");
  constexpr size_t kLength = std::string_view("2026-11-29T16:20:05Z").size();
  return time.size() == kLength && time.back() == 'Z' ? time : std::string();
}

std::optional<std::map<std::string, std::string>> parse_python_arguments(std::string_view arguments, char closing) {
  std::map<std::string, std::string> entries;
  size_t start = 0;
  int64_t depth = 0;
  for (size_t pos = 0; pos < arguments.size(); ++pos) {
    const char c = arguments[pos];
    if (c == '\'' || c == '"') {
      pos = end_of_quote(arguments, pos);
      if (pos == std::string_view::npos) return std::nullopt;
    } else if (depth == 0 && (c == ',' || c == closing)) {
      const bool named = add_entry(arguments.substr(start, pos - start), entries);
      if (!named && closing != '\0') return std::nullopt;
      if (c == closing) return entries;
      start = pos + 1;
    } else if (c == '(' || c == '[' || c == '{') {
      ++depth;
    } else if (c == ')' || c == ']' || c == '}') {
      if (--depth < 0 && closing != '\0') return std::nullopt;
    }
  }
  if (closing != '\0') return std::nullopt;
  add_entry(arguments.substr(start), entries);
  return entries;
}

std::string native_dtype_of(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(std::string_view("torch.").size());
  if (name == "bfloat16") return "bf16";
  if (name == "float16" || name == "half") return "f16";
  if (name == "float32" || name == "float") return "f32";
  return {};
}

}  // namespace asymkv
