// llama.cpp: rows of `llama-bench -o json` or jsonl, the server's log, and its /props.

#include <algorithm>

#include "asymkv/base/number.h"
#include "asymkv/record/import_document.h"

namespace asymkv {
namespace {

// llama.cpp names a model by its file, wherever that lies.
std::string model_file(const std::string& path) {
  return path.substr(path.find_last_of("/\\") + 1);
}

std::vector<ImportedRecord> read_bench(const ImportDocument& document) {
  std::vector<ImportedRecord> records;
  for (size_t i = 0; i < document.objects.size(); ++i) {
    JsonFields fields = object_fields(document, i);
    ImportedRecord imported = start_import(document, i, "llama.cpp", "llama-bench");
    Record& record = imported.record;
    fields.raw("type_k");  // a row without them is none that this reader knows
    fields.raw("type_v");
    request_key(imported, optional_text(fields, "type_k"), "type_k");
    request_value(imported, optional_text(fields, "type_v"), "type_v");
    record.build.hash = fields.text("build_commit");
    record.model.id = model_file(fields.text("model_filename"));
    const std::string gpu = optional_text(fields, "gpu_info").value_or("");
    record.device.kind = gpu.empty() ? "cpu" : "";
    record.device.name = gpu.empty() ? optional_text(fields, "cpu_info").value_or("") : gpu;
    record.launch.threads = fields.has("n_threads") ? fields.integer("n_threads") : 0;
    record.started = optional_time(fields, "test_time");
    records.push_back(std::move(imported));
  }
  return records;
}

bool is_bench(const ImportDocument& document) {
  return has_fields(document, {"build_commit", "model_filename"});
}

// ---------------------------------------------------------------- log

// Between `mark` and `end`; empty where either is missing.
std::string between(const std::string& line, std::string_view mark, std::string_view end) {
  const size_t at = line.find(mark);
  if (at == std::string::npos) return {};
  const size_t start = at + mark.size();
  const size_t stop = line.find(end, start);
  return stop == std::string::npos ? std::string() : line.substr(start, stop - start);
}

// "llama_kv_cache: size = 17.23 MiB (512 cells, ...), K (f16): 11.25 MiB, V (q8_0): 5.98 MiB", one for each cache;
// earlier versions begin it otherwise.
std::vector<PrintedCache> printed_caches(const ImportDocument& document) {
  std::vector<PrintedCache> caches;
  for (size_t i = 0; i < document.lines.size(); ++i) {
    const std::string key = between(document.lines[i], ", K (", "):");
    const std::string value = between(document.lines[i], ", V (", "):");
    if (!key.empty() && !value.empty()) caches.push_back({i + 1, key, value});
  }
  return caches;
}

constexpr std::string_view kLoading = "load_model: loading model '";

std::vector<ImportedRecord> read_log(const ImportDocument& document) {
  ImportedRecord imported = start_import(document, document.places.size(), "llama.cpp", "llama-log");
  Record& record = imported.record;
  for (const std::string& line : document.lines) {
    if (record.model.id.empty()) record.model.id = model_file(between(line, kLoading, "'"));
    if (record.engine_version.empty() && line.find("print_info: build ") != std::string::npos) {
      record.engine_version = fmt::format("b{}", between(line, "print_info: build ", " "));
      record.build.hash = between(line, " (", ")");
    }
    if (record.launch.threads == 0) {
      record.launch.threads = parse_number<int64_t>(between(line, "system_info: n_threads = ", " ")).value_or(0);
    }
  }
  add_printed(imported, printed_caches(document));
  if (!imported.key_printed && imported.notes.empty()) {
    imported.notes.emplace_back("no line names the caches' types: write the log with -lv 4");
  }
  return {imported};
}

bool is_log(const ImportDocument& document) {
  return document.json.is_discarded() && std::ranges::any_of(document.lines, [](const std::string& line) {
           return line.find(kLoading) != std::string::npos || line.find("llama_kv_cache: ") != std::string::npos ||
                  line.find("llama_model_loader: ") != std::string::npos;
         });
}

// ---------------------------------------------------------------- /props

std::vector<ImportedRecord> read_props(const ImportDocument& document) {
  JsonFields fields = object_fields(document, 0);
  fields.object("default_generation_settings");
  ImportedRecord imported = start_import(document, 0, "llama.cpp", "llama-props");
  imported.record.engine_version = optional_text(fields, "build_info").value_or("");
  imported.record.model.id = model_file(fields.text("model_path"));
  imported.notes.emplace_back("/props does not name the cache's types: import the server's log, written with -lv 4");
  return {imported};
}

bool is_props(const ImportDocument& document) {
  return document.json.is_object() && has_fields(document, {"default_generation_settings"});
}

}  // namespace

std::vector<ImportSource> llama_sources() {
  return {{"llama-bench", "objects with \"build_commit\" and \"model_filename\"", is_bench, read_bench},
          {"llama-log", "a line of llama_model_loader, llama_kv_cache or load_model", is_log, read_log},
          {"llama-props", "an object with \"default_generation_settings\"", is_props, read_props}};
}

}  // namespace asymkv
