// asymkv record: what ran, read back from files; whether two measurements may be compared.

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/record/import.h"
#include "asymkv/record/record_compare.h"
#include "asymkv/record/record_scan.h"
#include "asymkv/record/record_table.h"
#include "command.h"
#include "option_values.h"
#include "output_file.h"

namespace asymkv::app {
namespace {

struct ShowOptions {
  std::string file;
  std::string at;
  bool all = false;
  bool json = false;
};

struct CompareOptions {
  std::string a, b;
  RecordComparisonOptions how;
  bool json = false;
};

struct ImportOptions {
  std::string file;
  std::string from;
  std::string out;
  bool json = false;
};

void print_records(const std::vector<FoundRecord>& records, bool all) {
  if (!all && records.size() > 1) {
    fmt::print("{}", render_record_list(records));
    fmt::print("--at PLACE shows one of them, --all every one\n");
    return;
  }
  for (const FoundRecord& found : records) fmt::print("{}", render_record(found));
}

int show(const ShowOptions& options) {
  std::vector<FoundRecord> records = read_records(options.file);
  if (!options.at.empty()) records = {choose_record(records, options.at, options.file)};
  if (!options.json) {
    print_records(records, options.all);
    return 0;
  }
  Json list = Json::array();
  for (const FoundRecord& found : records) list.push_back({{"at", found.at}, {"record", record_to_json(found.record)}});
  print_json({{"file", options.file}, {"records", std::move(list)}});
  return 0;
}

// FILE, or FILE:PLACE for one record of several.
Record read_side(const std::string& text) {
  const size_t colon = text.rfind(':');
  const bool placed = colon != std::string::npos && !std::filesystem::exists(text);
  if (placed && (colon == 0 || colon + 1 == text.size())) {
    throw_usage("\"{}\" is no FILE:PLACE, for example bench.json:k16v8", text);
  }
  const std::string file = placed ? text.substr(0, colon) : text;
  return choose_record(read_records(file), placed ? text.substr(colon + 1) : "", file).record;
}

int compare(const CompareOptions& options) {
  const RecordComparison comparison = compare_records(read_side(options.a), read_side(options.b), options.how);
  if (options.json) {
    print_json(record_comparison_to_json(comparison));
  } else {
    fmt::print("{}", render_record_comparison(comparison));
  }
  return comparison.comparable() ? 0 : 1;
}

int import_output(const ImportOptions& options) {
  if (!options.out.empty()) {
    check_output_file(options.out, "--out");
    std::error_code not_there;
    if (std::filesystem::equivalent(options.out, options.file, not_there)) {
      throw_usage("--out {} is the file to import: name another one", options.out);
    }
  }
  const auto records = import_records(options.from, read_text_file(options.file), options.file);
  const Json answer = import_to_json(records, options.from, options.file);
  if (!options.out.empty()) write_file_atomic(options.out, canonical_json(answer) + "\n");
  if (options.json) {
    print_json(answer);
  } else {
    fmt::print("{}", render_import(records));
  }
  return 0;
}

void add_show(CLI::App& record, Action& action) {
  auto options = std::make_shared<ShowOptions>();
  CLI::App* command = record.add_subcommand("show", "the facts of a file's records, keys and values apart");
  command->footer("Example: asymkv record show bench/results/engine-a32.json --at k16v8");
  command->add_option("FILE", options->file, "a record, or any JSON or JSON lines that hold some")->required();
  command->add_option("--at", options->at, "the record at this place, as the list names it, or at the end of it");
  command->add_flag("--all", options->all, "every record in full, not a line each");
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->callback([options, &action] { action = [options] { return show(*options); }; });
}

void add_compare(CLI::App& record, Action& action) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command = record.add_subcommand("compare", "whether two measurements differ in one thing alone");
  command->footer(
      "Example: asymkv record compare bench/results/kernel-h200.json:rows[0].record "
      "bench/results/kernel-h200.json:rows[1].record --ignore model");
  command->add_option("A", options->a, "FILE or FILE:PLACE")->required();
  command->add_option("B", options->b, "FILE or FILE:PLACE")->required();
  const std::string fields = fmt::format("{}", fmt::join(comparison_fields(), ", "));
  command->add_option(
      "--varies", options->how.varies,
      fmt::format("the one thing compared: {}, or format (key and value); default: what differs", fields));
  add_list_option(*command, "--ignore", options->how.ignore, "fields that you answer for");
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->callback([options, &action] { action = [options] { return compare(*options); }; });
}

void add_import(CLI::App& record, Action& action) {
  auto options = std::make_shared<ImportOptions>();
  CLI::App* command = record.add_subcommand("import", "what another tool's output says was requested, and which field");
  command->footer("Example: asymkv record import src/asymkv/record/testdata/llama-bench.json --from llama-bench");
  command->add_option("FILE", options->file, "the output")->required();
  command->add_option("--from", options->from, fmt::format("its tool: {}", fmt::join(import_sources(), ", ")))
      ->required();
  command->add_option("--out", options->out, "also write the JSON object to this file");
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->callback([options, &action] { action = [options] { return import_output(*options); }; });
}

}  // namespace

void add_record_command(CLI::App& root, Action& action) {
  CLI::App* record = root.add_subcommand("record", "provenance: which formats really ran");
  record->footer("Example: asymkv record show bench/results/engine-a32.json");
  record->require_subcommand(1);
  add_show(*record, action);
  add_compare(*record, action);
  add_import(*record, action);
}

}  // namespace asymkv::app
