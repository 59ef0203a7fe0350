// vLLM: the server's log, its /metrics, and what its benchmarks write.

#include <algorithm>

#include "asymkv/base/error.h"
#include "asymkv/base/number.h"
#include "asymkv/record/import_document.h"

namespace asymkv {
namespace {

constexpr std::string_view kDtype = "kv_cache_dtype";

// ---------------------------------------------------------------- log

struct LogLine {
  size_t number = 0;  // from 1
  std::map<std::string, std::string> arguments;
};

std::string argument(const LogLine& line, std::string_view name) {
  const auto found = line.arguments.find(std::string(name));
  return found == line.arguments.end() ? std::string() : found->second;
}

// Lines with Python arguments behind `mark`, which ends with their opening bracket if they have one.
std::vector<LogLine> lines_with(const ImportDocument& document, std::string_view mark, char closing) {
  std::vector<LogLine> found;
  for (size_t i = 0; i < document.lines.size(); ++i) {
    const std::string_view line = document.lines[i];
    const size_t at = line.find(mark);
    if (at == std::string_view::npos) continue;
    auto arguments = parse_python_arguments(line.substr(at + mark.size()), closing);
    if (!arguments) {
      throw_bad_input("{}: line {}: the arguments behind \"{}\" have no end or are malformed", document.origin, i + 1,
                      mark);
    }
    // No bracket ends this list, so a log that was cut off may end inside the one value that counts.
    const bool is_cut = closing == '\0' && i + 1 == document.lines.size() && !document.text.ends_with('\n');
    if (is_cut && line.substr(line.find_last_of(',') + 1).find(kDtype) != std::string_view::npos) {
      throw_bad_input("{}: line {}: the log ends inside {}: give it whole", document.origin, i + 1, kDtype);
    }
    found.push_back({i + 1, std::move(*arguments)});
  }
  return found;
}

// Data-parallel engines print the same line each; two servers in one log would not agree.
void check_one_server(const ImportDocument& document, const std::vector<LogLine>& lines) {
  for (const LogLine& line : lines) {
    if (argument(line, kDtype) == argument(lines.front(), kDtype)) continue;
    throw_bad_input("{}: lines {} and {} have two values of {}, \"{}\" and \"{}\": give the log of one server",
                    document.origin, lines.front().number, line.number, kDtype, argument(lines.front(), kDtype),
                    argument(line, kDtype));
  }
}

// "v0.14.1" or "version 0.14.1" in a line of the server.
std::string logged_version(const ImportDocument& document) {
  for (const std::string_view mark : {"LLM engine (v", "vLLM API server version ", "█  version "}) {
    const size_t at = document.text.find(mark);
    if (at == std::string::npos) continue;
    const size_t start = at + mark.size();
    return document.text.substr(start, document.text.find_first_of(") \r\n", start) - start);
  }
  return {};
}

void decide(const std::vector<LogLine>& arguments, const std::vector<LogLine>& configs, ImportedRecord& imported) {
  const std::string asked = arguments.empty() ? "" : argument(arguments.front(), kDtype);
  const std::string config = configs.empty() ? "" : argument(configs.front(), kDtype);
  if (!asked.empty()) {
    request_both(imported, asked, fmt::format("line {}: {} of the arguments", arguments.front().number, kDtype));
  } else if (!config.empty() && !arguments.empty() && config != "auto") {
    imported.notes.push_back(fmt::format("line {}: the engine's {} is {}, though no argument asked for it",
                                         configs.front().number, kDtype, config));
  } else if (!config.empty()) {
    request_both(imported, config, fmt::format("line {}: {} of the engine's config", configs.front().number, kDtype));
  }
}

void note_storage(const ImportDocument& document, ImportedRecord& imported) {
  for (size_t i = 0; i < document.lines.size(); ++i) {
    const size_t at = document.lines[i].find("data type to store kv cache");
    if (at == std::string::npos) continue;
    const size_t start = document.lines[i].rfind("Using", at);
    imported.notes.push_back(fmt::format("line {}: \"{}\" says what was chosen, not what was allocated or launched",
                                         i + 1, document.lines[i].substr(start == std::string::npos ? 0 : start)));
  }
}

std::vector<ImportedRecord> read_log(const ImportDocument& document) {
  std::vector<LogLine> arguments = lines_with(document, "non-default args: {", '}');
  if (arguments.empty()) arguments = lines_with(document, "args: Namespace(", ')');
  const std::vector<LogLine> configs = lines_with(document, ") with config: ", '\0');
  check_one_server(document, arguments);
  check_one_server(document, configs);
  ImportedRecord imported = start_import(document, document.places.size(), "vllm", "vllm-log");
  imported.record.engine_version = logged_version(document);
  decide(arguments, configs, imported);
  for (const std::vector<LogLine>& lines : {configs, arguments}) {
    if (lines.empty()) continue;
    if (imported.record.model.id.empty()) imported.record.model.id = model_name(argument(lines.front(), "model"));
    if (imported.record.model.revision.empty()) imported.record.model.revision = argument(lines.front(), "revision");
  }
  if (!configs.empty()) imported.record.model.native_dtype = native_dtype_of(argument(configs.front(), "dtype"));
  note_storage(document, imported);
  return {imported};
}

bool is_log(const ImportDocument& document) {
  if (!document.json.is_discarded()) return false;
  return document.text.find("vLLM API server version") != std::string::npos ||
         document.text.find("non-default args: {") != std::string::npos ||
         document.text.find("LLM engine (v") != std::string::npos;
}

// ---------------------------------------------------------------- metrics

constexpr std::string_view kCacheInfo = "vllm:cache_config_info{";

// Labels of the Prometheus text format: name="value", ... with \" and \\ escaped. Null where the brace does not close.
std::optional<std::map<std::string, std::string>> parse_labels(std::string_view text) {
  std::map<std::string, std::string> labels;
  while (!text.empty() && text.front() != '}') {
    const size_t equals = text.find("=\"");
    if (equals == std::string_view::npos) return std::nullopt;
    const std::string name(text.substr(0, equals));
    std::string value;
    size_t pos = equals + 2;
    for (; pos < text.size() && text[pos] != '"'; ++pos) {
      if (text[pos] == '\\' && pos + 1 < text.size()) ++pos;
      value += text[pos];
    }
    if (pos == text.size()) return std::nullopt;
    labels[name] = value;
    text.remove_prefix(pos + 1);
    if (text.starts_with(',')) text.remove_prefix(1);
  }
  if (text.empty()) return std::nullopt;
  return labels;
}

std::string served_model(const ImportDocument& document) {
  constexpr std::string_view kMark = "model_name=\"";
  const size_t at = document.text.find(kMark);
  if (at == std::string::npos) return {};
  const size_t start = at + kMark.size();
  return model_name(document.text.substr(start, document.text.find('"', start) - start));
}

ImportedRecord read_cache_info(const ImportDocument& document, size_t line) {
  const auto labels = parse_labels(std::string_view(document.lines[line]).substr(kCacheInfo.size()));
  if (!labels) {
    throw_bad_input("{}: line {}: the labels of vllm:cache_config_info have no end", document.origin, line + 1);
  }
  ImportedRecord imported = start_import(document, document.places.size(), "vllm", "vllm-metrics");
  imported.at = fmt::format("line {}", line + 1);
  imported.record.model.id = served_model(document);
  const auto dtype = labels->find("cache_dtype");
  if (dtype != labels->end()) {
    request_both(imported, dtype->second, "label cache_dtype of vllm:cache_config_info");
  }
  const auto block = labels->find("block_size");
  if (block == labels->end() || block->second == "None") return imported;
  const auto slots = parse_number<int64_t>(block->second);
  if (!slots || *slots < 0) {
    throw_bad_input("{}: line {}: the label block_size is \"{}\", no number of slots", document.origin, line + 1,
                    block->second);
  }
  imported.record.layout.page_size = *slots;
  return imported;
}

std::vector<ImportedRecord> read_metrics(const ImportDocument& document) {
  std::vector<ImportedRecord> records;
  for (size_t i = 0; i < document.lines.size(); ++i) {
    if (document.lines[i].starts_with(kCacheInfo)) records.push_back(read_cache_info(document, i));
  }
  if (!records.empty()) return records;
  throw_bad_input("{}: has no vllm:cache_config_info, the one metric that names the cache's type", document.origin);
}

bool is_metrics(const ImportDocument& document) {
  return std::ranges::any_of(document.lines, [](const std::string& line) { return line.starts_with("vllm:"); });
}

// ---------------------------------------------------------------- benchmarks

// `--metadata kv_cache_dtype=fp8` of `vllm bench serve` lands at the top.
void read_serve(JsonFields& fields, ImportedRecord& imported) {
  const std::string client = optional_text(fields, fields.has("backend") ? "backend" : "endpoint_type").value_or("");
  // The client of an OpenAI endpoint does not know whose it is.
  imported.record.engine = client == "vllm" ? client : "unknown";
  imported.record.model.id = model_name(fields.text("model_id"));
  request_both(imported, optional_text(fields, std::string(kDtype)), "kv_cache_dtype, given as metadata");
}

// One metric a record, with the arguments of the benchmark ("PyTorch benchmark format").
void read_pytorch(JsonFields& fields, ImportedRecord& imported) {
  JsonFields arguments = fields.object("benchmark").object("extra_info").object("args");
  imported.record.engine = "vllm";
  imported.record.model.id = model_name(fields.object("model").text("name"));
  request_both(imported, optional_text(arguments, std::string(kDtype)), "benchmark.extra_info.args.kv_cache_dtype");
}

std::vector<ImportedRecord> read_benchmark(const ImportDocument& document) {
  std::vector<ImportedRecord> records;
  for (size_t i = 0; i < document.objects.size(); ++i) {
    JsonFields fields = object_fields(document, i);
    ImportedRecord imported = start_import(document, i, "vllm", "vllm-bench");
    if (fields.has("benchmark")) {
      read_pytorch(fields, imported);
    } else if (fields.has("tokens_per_second")) {
      fields.number("tokens_per_second");  // of `vllm bench throughput`, which names neither model nor types
    } else {
      read_serve(fields, imported);
    }
    if (!imported.record.key.requested) {
      imported.notes.emplace_back("the benchmark's client does not see the server's cache: import its log or /metrics");
    }
    records.push_back(std::move(imported));
  }
  return records;
}

bool is_benchmark(const ImportDocument& document) {
  return has_fields(document, {"model_id", "request_throughput"}) ||
         has_fields(document, {"elapsed_time", "num_requests", "tokens_per_second"}) ||
         has_fields(document, {"benchmark", "metric", "model"});
}

}  // namespace

std::vector<ImportSource> vllm_sources() {
  return {{"vllm-log", "a line \"vLLM API server version\", \"non-default args\" or \"LLM engine (v...)\"", is_log,
           read_log},
          {"vllm-metrics", "a metric whose name starts with vllm:", is_metrics, read_metrics},
          {"vllm-bench",
           "fields \"model_id\" and \"request_throughput\" (serve), \"elapsed_time\" and \"tokens_per_second\" "
           "(throughput), or \"benchmark\", \"model\" and \"metric\"",
           is_benchmark, read_benchmark}};
}

}  // namespace asymkv
