#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/record/record.h"

namespace asymkv {

// A record inside a document, and its place there: "records.k16v8", "rows[3].record", "" for the document itself.
struct FoundRecord {
  std::string at;
  Record record;
};

// Every record of a document, in its order: a record itself, or objects at any depth that name the schema of a record
// (a bench report, record.json of a run, the answer of `generate --json`, what `record import` printed). Throws as
// record_from_json does, naming the place, and Error{kBadInput} where there is none.
std::vector<FoundRecord> find_records(const Json& document, std::string_view origin);

// The records of a JSON file, or of every line of a file of JSON lines. The certificate of a run has its records in
// record.json beside it: these are read.
std::vector<FoundRecord> read_records(const std::filesystem::path& path);

// The one record that `place` names: its whole place, or the end of it from a dot on ("k16v8" of "records.k16v8").
// Without a place there must be one record. Throws Error{kUsage} naming the places that there are.
const FoundRecord& choose_record(const std::vector<FoundRecord>& records, std::string_view place,
                                 std::string_view origin);

}  // namespace asymkv
