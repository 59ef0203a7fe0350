#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/record/record.h"

namespace asymkv {

// A record made from another tool's output: `requested` at most, and what decided it.
struct ImportedRecord {
  // What a line of the file says of the cache that its tool allocated. It stays beside the record and is no fact of it:
  // nobody says which kernels read that cache.
  struct PrintedSide {
    std::string format;  // the tool's own word: "q8_0", "torch.bfloat16"
    std::string at;      // "line 151"
  };

  std::string at;  // place in the file: "[0]", "line 12", ""
  Record record;
  std::string key_decided_by;  // the field of the file that `requested` was read from; empty: no field says
  std::string value_decided_by;
  std::optional<PrintedSide> key_printed, value_printed;
  std::vector<std::string> notes;  // what the file says besides that is no fact of a side, one sentence each
};

// Of --from: "vllm-log", "llama-bench", ... (docs/records.md).
std::vector<std::string_view> import_sources();

// Reads `text`, the output of `source`. Throws Error{kUsage} for a source there is not, and Error{kBadInput} naming
// `origin` and the field for text that is not its output (with the source that it looks like) or is malformed.
std::vector<ImportedRecord> import_records(std::string_view source, const std::string& text, std::string_view origin);

// {"file", "from", "records": [{"at", "decided_by": {"key", "value"}, "printed": {"key", "value"}, "notes", "record"}]}
// (schemas/record-import.schema.json).
Json import_to_json(std::span<const ImportedRecord> records, std::string_view source, std::string_view origin);
std::string render_import(std::span<const ImportedRecord> records);

}  // namespace asymkv
