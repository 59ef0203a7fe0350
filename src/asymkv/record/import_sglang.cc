// SGLang: the server's log, what its /server_info answers, and the lines of bench_serving.

#include "asymkv/base/error.h"
#include "asymkv/record/import_document.h"

namespace asymkv {
namespace {

constexpr std::string_view kArguments = "server_args=ServerArgs(";
const std::string kDtype = "kv_cache_dtype";

// ---------------------------------------------------------------- log

// "KV Cache is allocated. dtype: torch.bfloat16, #tokens: ...", one for each rank and pool.
void read_allocation(const ImportDocument& document, ImportedRecord& imported) {
  constexpr std::string_view kAllocated = "KV Cache is allocated. dtype: ";
  std::vector<PrintedCache> caches;
  for (size_t i = 0; i < document.lines.size(); ++i) {
    const std::string& line = document.lines[i];
    const size_t allocated = line.find(kAllocated);
    if (allocated != std::string::npos) {
      const size_t start = allocated + kAllocated.size();
      const std::string dtype = line.substr(start, line.find_first_of(", \r", start) - start);
      if (!dtype.empty()) caches.push_back({i + 1, dtype, dtype});
    }
    const size_t chosen = line.find("Using KV cache dtype");
    if (chosen == std::string::npos) continue;
    imported.notes.push_back(fmt::format("line {}: \"{}\" says what was chosen, not what was allocated or launched",
                                         i + 1, line.substr(chosen)));
  }
  add_printed(imported, caches);
}

std::vector<ImportedRecord> read_log(const ImportDocument& document) {
  ImportedRecord imported = start_import(document, document.places.size(), "sglang", "sglang-log");
  size_t seen = 0;
  for (size_t i = 0; i < document.lines.size(); ++i) {
    const std::string_view line = document.lines[i];
    const size_t at = line.find(kArguments);
    if (at == std::string_view::npos) continue;
    auto arguments = parse_python_arguments(line.substr(at + kArguments.size()), ')');
    if (!arguments) {
      throw_bad_input("{}: line {}: the arguments of ServerArgs have no end or are malformed", document.origin, i + 1);
    }
    const auto dtype = arguments->find(kDtype);
    const std::string asked = dtype == arguments->end() ? "" : dtype->second;
    if (seen != 0 && asked != imported.record.key.requested.value_or("")) {
      throw_bad_input("{}: lines {} and {} have two values of {}: give the log of one server", document.origin, seen,
                      i + 1, kDtype);
    }
    seen = i + 1;
    imported.record.model.id = model_name((*arguments)["model_path"]);
    imported.record.model.revision = (*arguments)["revision"];
    imported.record.model.native_dtype = native_dtype_of((*arguments)["dtype"]);
    request_both(imported, asked, fmt::format("line {}: {} of ServerArgs", i + 1, kDtype));
  }
  read_allocation(document, imported);
  return {imported};
}

bool is_log(const ImportDocument& document) {
  return document.json.is_discarded() && document.text.find(kArguments) != std::string::npos;
}

// ---------------------------------------------------------------- server_info and benchmark

void read_info(JsonFields& info, const std::string& prefix, ImportedRecord& imported) {
  imported.record.engine = "sglang";
  imported.record.engine_version = optional_text(info, "version").value_or("");
  imported.record.model.id = model_name(info.text("model_path"));
  imported.record.model.revision = optional_text(info, "revision").value_or("");
  if (info.has("page_size") && !info.raw("page_size").is_null()) {
    imported.record.layout.page_size = info.integer("page_size");
  }
  info.raw(kDtype);  // a server that does not name it is none that this reader knows
  request_both(imported, optional_text(info, kDtype), prefix + kDtype);
}

std::vector<ImportedRecord> read_server_info(const ImportDocument& document) {
  std::vector<ImportedRecord> records;
  for (size_t i = 0; i < document.objects.size(); ++i) {
    JsonFields fields = object_fields(document, i);
    records.push_back(start_import(document, i, "sglang", "sglang-info"));
    read_info(fields, "", records.back());
  }
  return records;
}

bool is_server_info(const ImportDocument& document) {
  return has_fields(document, {"model_path", "kv_cache_dtype"});
}

std::vector<ImportedRecord> read_benchmark(const ImportDocument& document) {
  std::vector<ImportedRecord> records;
  for (size_t i = 0; i < document.objects.size(); ++i) {
    JsonFields fields = object_fields(document, i);
    ImportedRecord imported = start_import(document, i, fields.text("backend"), "sglang-bench");
    if (fields.has("server_info") && !fields.raw("server_info").is_null()) {
      JsonFields info = fields.object("server_info");
      read_info(info, "server_info.", imported);
    } else {
      imported.notes.emplace_back("there is no server_info, and nothing else here knows the server's cache");
    }
    records.push_back(std::move(imported));
  }
  return records;
}

bool is_benchmark(const ImportDocument& document) {
  return has_fields(document, {"backend", "dataset_name", "completed"});
}

}  // namespace

std::vector<ImportSource> sglang_sources() {
  return {{"sglang-log", "a line with server_args=ServerArgs(...)", is_log, read_log},
          {"sglang-info", "the fields \"model_path\" and \"kv_cache_dtype\"", is_server_info, read_server_info},
          {"sglang-bench", "the fields \"backend\", \"dataset_name\" and \"completed\"", is_benchmark, read_benchmark}};
}

}  // namespace asymkv
