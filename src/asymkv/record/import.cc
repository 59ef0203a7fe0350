#include "asymkv/record/import.h"

#include <algorithm>
#include <iterator>

#include "asymkv/base/error.h"
#include "asymkv/base/utf8.h"
#include "asymkv/record/import_document.h"
#include "asymkv/record/record_table.h"

namespace asymkv {
namespace {

const std::vector<ImportSource>& sources() {
  static const std::vector<ImportSource> kAll = [] {
    std::vector<ImportSource> list;
    for (const auto& family :
         {vllm_sources(), sglang_sources(), llama_sources(), planner_sources(), benchmark_sources()}) {
      std::ranges::copy(family, std::back_inserter(list));
    }
    return list;
  }();
  return kAll;
}

const ImportSource& source_named(std::string_view name) {
  const auto found = std::ranges::find(sources(), name, &ImportSource::name);
  if (found != sources().end()) return *found;
  throw_usage("--from \"{}\" is no source of records; known: {}", name, fmt::join(import_sources(), " "));
}

[[noreturn]] void refuse(const ImportDocument& document, const ImportSource& source) {
  for (const ImportSource& other : sources()) {
    if (!other.looks_like(document)) continue;
    throw_bad_input("{}: is no output of {}: it looks like that of {}; say --from {}", document.origin, source.name,
                    other.name, other.name);
  }
  throw_bad_input("{}: is no output of {}: it has not {}", document.origin, source.name, source.mark);
}

Json printed_json(const std::optional<ImportedRecord::PrintedSide>& side) {
  return side ? Json{{"format", side->format}, {"at", side->at}} : Json();
}

// The mark and the text, or nothing where there is no text.
std::string marked(std::string_view mark, const std::string& text) {
  return text.empty() ? std::string() : fmt::format("{}{}", mark, shown(text));
}

std::string decision(const SideFacts& side, const std::string& decided_by) {
  if (!side.requested) return "unset: no field says";
  return fmt::format("{}, decided by {}", shown(*side.requested), shown(decided_by));
}

}  // namespace

std::vector<std::string_view> import_sources() {
  std::vector<std::string_view> names;
  for (const ImportSource& source : sources()) names.push_back(source.name);
  return names;
}

std::vector<ImportedRecord> import_records(std::string_view source_name, const std::string& text,
                                           std::string_view origin) {
  const ImportSource& source = source_named(source_name);
  require_utf8(text, origin);
  const ImportDocument document = parse_import_document(text, origin);
  if (!source.looks_like(document)) refuse(document, source);
  return source.read(document);
}

Json import_to_json(std::span<const ImportedRecord> records, std::string_view source, std::string_view origin) {
  Json list = Json::array();
  for (const ImportedRecord& imported : records) {
    list.push_back(
        {{"at", imported.at},
         {"decided_by",
          {{"key", text_or_null(imported.key_decided_by)}, {"value", text_or_null(imported.value_decided_by)}}},
         {"printed", {{"key", printed_json(imported.key_printed)}, {"value", printed_json(imported.value_printed)}}},
         {"notes", imported.notes},
         {"record", record_to_json(imported.record)}});
  }
  return {{"file", origin}, {"from", source}, {"records", std::move(list)}};
}

std::string render_import(std::span<const ImportedRecord> records) {
  std::string text;
  for (const ImportedRecord& imported : records) {
    const Record& record = imported.record;
    text += fmt::format("{}{}{}{}\n", imported.at.empty() ? "" : fmt::format("{}: ", shown(imported.at)),
                        shown(record.engine), marked(" ", record.engine_version), marked(", ", record.model.id));
    text += fmt::format("  keys       requested {}\n", decision(record.key, imported.key_decided_by));
    text += fmt::format("  values     requested {}\n", decision(record.value, imported.value_decided_by));
    if (imported.key_printed && imported.value_printed) {
      text += fmt::format("  printed    keys {}, values {} by {}, which attests nothing\n",
                          shown(imported.key_printed->format), shown(imported.value_printed->format),
                          imported.key_printed->at);
    }
    text += "  effective  keys unknown, values unknown: not attested\n";
    for (const std::string& note : imported.notes) text += fmt::format("  note: {}\n", shown(note));
  }
  return text;
}

}  // namespace asymkv
