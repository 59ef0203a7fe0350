// llama.cpp: rows of `llama-bench -o json` or jsonl, and the server's /props.

#include <filesystem>

#include "asymkv/record/import_document.h"

namespace asymkv {
namespace {

// A path says where a file lay on one machine, its name which model it is.
std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

std::vector<ImportedRecord> read_bench(const ImportDocument& document) {
  std::vector<ImportedRecord> records;
  for (size_t i = 0; i < document.objects.size(); ++i) {
    JsonFields fields = object_fields(document, i);
    ImportedRecord imported = start_import(document, i, "llama.cpp", "llama-bench");
    Record& record = imported.record;
    record.key.requested = fields.text("type_k");
    record.value.requested = fields.text("type_v");
    imported.key_decided_by = "type_k";
    imported.value_decided_by = "type_v";
    record.build.hash = fields.text("build_commit");
    record.model.id = file_name(fields.text("model_filename"));
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

std::vector<ImportedRecord> read_props(const ImportDocument& document) {
  JsonFields fields = object_fields(document, 0);
  fields.object("default_generation_settings");
  ImportedRecord imported = start_import(document, 0, "llama.cpp", "llama-props");
  imported.record.engine_version = optional_text(fields, "build_info").value_or("");
  imported.record.model.id = file_name(fields.text("model_path"));
  imported.notes.emplace_back(
      "/props does not name the cache's types: --cache-type-k and --cache-type-v of the command do");
  return {imported};
}

bool is_props(const ImportDocument& document) {
  return document.json.is_object() && has_fields(document, {"default_generation_settings"});
}

}  // namespace

std::vector<ImportSource> llama_sources() {
  return {{"llama-bench", "objects with \"build_commit\" and \"model_filename\"", is_bench, read_bench},
          {"llama-props", "an object with \"default_generation_settings\"", is_props, read_props}};
}

}  // namespace asymkv
