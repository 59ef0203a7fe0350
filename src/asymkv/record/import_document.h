#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/base/json_fields.h"
#include "asymkv/record/import.h"

namespace asymkv {

// A file to import, as far as it can be read without knowing whose output it is.
struct ImportDocument {
  std::string origin;
  std::string text;
  Json json;                        // discarded unless the text is JSON
  std::vector<std::string> lines;   // of text
  std::vector<Json> objects;        // JSON objects: the text itself, those of its array, or one a line
  std::vector<std::string> places;  // of the objects: "", "[0]", "line 1"
};
// A byte order mark in front is no part of the text. Throws Error{kBadInput} for JSON that parse_json refuses.
ImportDocument parse_import_document(std::string_view text, std::string_view origin);

// One kind of output: how to know it, what of it is missing where it is not known, and how to read it.
struct ImportSource {
  std::string_view name;
  std::string_view mark;  // "an object with \"type_k\" and \"build_commit\""
  std::function<bool(const ImportDocument&)> looks_like;
  std::function<std::vector<ImportedRecord>(const ImportDocument&)> read;
};
std::vector<ImportSource> vllm_sources();
std::vector<ImportSource> sglang_sources();
std::vector<ImportSource> llama_sources();
std::vector<ImportSource> planner_sources();    // aiconfigurator
std::vector<ImportSource> benchmark_sources();  // InferenceX, aiperf, guidellm

// A record of another engine of which nothing is known yet.
ImportedRecord start_import(const ImportDocument& document, size_t object, const std::string& engine,
                            std::string_view source);

// Sets `requested` of one side, or of both from one field: engines with one type for keys and values. A missing or an
// empty text leaves them unset.
void request_key(ImportedRecord& imported, const std::optional<std::string>& requested, const std::string& field);
void request_value(ImportedRecord& imported, const std::optional<std::string>& requested, const std::string& field);
void request_both(ImportedRecord& imported, const std::optional<std::string>& requested, const std::string& field);

// A line about an allocated cache.
struct PrintedCache {
  size_t line = 0;  // from 1
  std::string key, value;
};
// Sets what was printed. Lines that differ, as of a model and its draft, leave a note instead.
void add_printed(ImportedRecord& imported, const std::vector<PrintedCache>& caches);

// The name of a model that may be a path: of "/data/m/x.gguf", "./x.gguf" the last part, for where a file lay on one
// machine is nobody's business; "Qwen/Qwen3-8B" as it is.
std::string model_name(const std::string& id);

// Whether any object has all these fields.
bool has_fields(const ImportDocument& document, std::initializer_list<const char*> fields);
// The object's fields; errors name the file and, of several, the object.
JsonFields object_fields(const ImportDocument& document, size_t object);
// A text, null or nothing at all.
std::optional<std::string> optional_text(JsonFields& fields, const std::string& field);
// The same for a time: kept where it is written as this program writes times, else forgotten (a local time is no time).
std::string optional_time(JsonFields& fields, const std::string& field);

// Arguments as Python prints them: `arguments` starts behind the opening bracket of {'a': 'x'} or Name(a='x'), or is
// the rest of a line, a='x', b=y. The texts of the outermost level, quotes taken off; None is no entry. Null where the
// closing bracket (or the end of a quote) is missing, and where what stands in brackets is no list of named arguments.
std::optional<std::map<std::string, std::string>> parse_python_arguments(std::string_view arguments, char closing);

// "torch.bfloat16", "bfloat16" -> "bf16"; empty for what is not one of the three floating-point types.
std::string native_dtype_of(std::string_view name);

}  // namespace asymkv
