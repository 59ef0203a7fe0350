// Benchmarks that drive somebody else's server: InferenceX, aiperf, guidellm. They know the server by its address; what
// its cache stores is in none of their results, but for the server's own metrics that aiperf collects.

#include <algorithm>
#include <chrono>

#include "asymkv/base/error.h"
#include "asymkv/record/import_document.h"

namespace asymkv {
namespace {

constexpr std::string_view kNoField = "no field of this result says what the server stores: import its log or /metrics";

// ---------------------------------------------------------------- InferenceX (InferenceMAX)

// What a job writes has "hw" and its figures at the top; rows of the project's API have "hardware" and may keep the
// figures in "metrics".
bool is_inferencex_row(const Json& row) {
  const auto figures = row.find("metrics");
  const bool nested = figures != row.end() && figures->is_object() && figures->contains("tput_per_gpu");
  return row.contains("framework") && row.contains("precision") && (row.contains("hw") || row.contains("hardware")) &&
         (nested || row.contains("tput_per_gpu"));
}

std::vector<ImportedRecord> read_inferencex(const ImportDocument& document) {
  std::vector<ImportedRecord> records;
  for (size_t i = 0; i < document.objects.size(); ++i) {
    JsonFields fields = object_fields(document, i);
    ImportedRecord imported = start_import(document, i, fields.text("framework"), "inferencex");
    imported.record.model.id = model_name(fields.text("model"));
    imported.record.device.name = fields.text(fields.has("hw") ? "hw" : "hardware");
    const std::string precision = fields.text("precision");
    imported.notes.push_back(fmt::format("precision \"{}\" names the weights' type, not the cache's", precision));
    imported.notes.emplace_back(kNoField);
    records.push_back(std::move(imported));
  }
  return records;
}

bool is_inferencex(const ImportDocument& document) {
  return std::ranges::any_of(document.objects, is_inferencex_row);
}

// ---------------------------------------------------------------- aiperf

constexpr const char* kCacheInfo = "vllm:cache_config_info";

// run.model, or input_config.endpoint.model_names[0], where the version of aiperf writes them.
std::string profiled_model(JsonFields& fields) {
  if (fields.has("run")) {
    JsonFields run = fields.object("run");
    return optional_text(run, "model").value_or("");
  }
  if (!fields.has("input_config") || fields.raw("input_config").is_null()) return {};
  JsonFields config = fields.object("input_config");
  if (!config.has("endpoint")) return {};
  JsonFields endpoint = config.object("endpoint");
  if (!endpoint.has("model_names")) return {};
  const std::vector<std::string> names = endpoint.texts("model_names");
  return names.empty() ? std::string() : names.front();
}

// server_metrics_export.json: the info metric of every endpoint that was scraped.
std::vector<ImportedRecord> read_server_metrics(const ImportDocument& document, JsonFields& fields) {
  std::vector<ImportedRecord> records;
  JsonFields metrics = fields.object("metrics");
  if (!metrics.has(kCacheInfo)) {
    ImportedRecord imported = start_import(document, 0, "unknown", "aiperf");
    imported.record.model.id = model_name(profiled_model(fields));
    imported.notes.push_back(fmt::format("the metrics have no {}, the one that names a cache's type", kCacheInfo));
    return {imported};
  }
  for (JsonFields& series : metrics.object(kCacheInfo).objects("series")) {
    ImportedRecord imported = start_import(document, 0, "vllm", "aiperf");
    imported.at = fmt::format("series[{}]", records.size());
    JsonFields labels = series.object("labels");
    request_both(imported, optional_text(labels, "cache_dtype"),
                 fmt::format("label cache_dtype of metrics.{}", kCacheInfo));
    records.push_back(std::move(imported));
  }
  return records;
}

std::vector<ImportedRecord> read_aiperf(const ImportDocument& document) {
  JsonFields fields = object_fields(document, 0);
  fields.text("aiperf_version");
  if (fields.has("metrics")) return read_server_metrics(document, fields);
  ImportedRecord imported = start_import(document, 0, "unknown", "aiperf");
  imported.record.model.id = model_name(profiled_model(fields));
  imported.record.started = optional_time(fields, "start_time");
  imported.record.ended = optional_time(fields, "end_time");
  imported.notes.emplace_back("no field of this result says what the server stores: import server_metrics_export.json");
  return {imported};
}

bool is_aiperf(const ImportDocument& document) {
  return document.json.is_object() && has_fields(document, {"aiperf_version"});
}

// ---------------------------------------------------------------- guidellm

std::string seconds_to_time(JsonFields& fields, const std::string& field) {
  if (!fields.has(field) || fields.raw(field).is_null()) return {};
  const auto seconds = static_cast<std::time_t>(fields.number(field));
  return utc_timestamp(std::chrono::system_clock::from_time_t(seconds));
}

// The text at the end of a path of objects; empty where the path ends early.
std::string text_at(const Json& json, const std::vector<const char*>& path) {
  const Json* value = &json;
  for (const char* field : path) {
    if (!value->is_object() || !value->contains(field)) return {};
    value = &value->at(field);
  }
  return value->is_string() ? value->get<std::string>() : std::string();
}

// Versions keep the model at different places of the arguments.
std::string benchmarked_model(const Json& report) {
  const std::vector<std::vector<const char*>> places = {
      {"args", "model"}, {"args", "backend_kwargs", "model"}, {"config", "spec", "backend", "model"}};
  for (const std::vector<const char*>& path : places) {
    const std::string model = text_at(report, path);
    if (!model.empty()) return model_name(model);
  }
  return {};
}

std::vector<ImportedRecord> read_guidellm(const ImportDocument& document) {
  JsonFields fields = object_fields(document, 0);
  const std::string model = benchmarked_model(document.json);
  std::vector<ImportedRecord> records;
  for (JsonFields& benchmark : fields.objects("benchmarks")) {
    ImportedRecord imported = start_import(document, 0, "unknown", "guidellm");
    imported.at = fmt::format("benchmarks[{}]", records.size());
    imported.record.model.id = model;
    imported.record.started = seconds_to_time(benchmark, "start_time");
    imported.record.ended = seconds_to_time(benchmark, "end_time");
    imported.notes.emplace_back(kNoField);
    records.push_back(std::move(imported));
  }
  if (records.empty()) fields.fail("benchmarks", "is an empty list");
  return records;
}

bool is_guidellm(const ImportDocument& document) {
  return document.json.is_object() &&
         (has_fields(document, {"benchmarks", "args"}) || has_fields(document, {"benchmarks", "metadata"}) ||
          has_fields(document, {"benchmarks", "config"}));
}

}  // namespace

std::vector<ImportSource> benchmark_sources() {
  return {{"inferencex", "objects with \"hw\" or \"hardware\", \"framework\", \"precision\" and \"tput_per_gpu\"",
           is_inferencex, read_inferencex},
          {"aiperf", "an object with \"aiperf_version\"", is_aiperf, read_aiperf},
          {"guidellm", "an object with \"benchmarks\" and \"args\", \"config\" or \"metadata\"", is_guidellm,
           read_guidellm}};
}

}  // namespace asymkv
