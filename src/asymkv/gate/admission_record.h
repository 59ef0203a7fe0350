#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/gate/arm.h"
#include "asymkv/record/record.h"

namespace asymkv {

// record.json of a run: what ran for each arm (N2 included) in all processes that worked on it, and what resuming cut
// off, one sentence each.
struct AdmissionRecord {
  std::map<ArmId, Record> arms;
  std::vector<std::string> repairs;
  bool operator==(const AdmissionRecord&) const = default;

  // Adds what a later process ran, arm by arm (merge_records; errors name `origin`), and its repairs.
  void add(const AdmissionRecord& later, std::string_view origin);
};

// {"schema": "asymkv.admission-record/1", "arms": {ARM: record}, "repairs": [...]}
Json admission_record_to_json(const AdmissionRecord& record);
// The bytes of record.json: canonical JSON and a newline.
std::string admission_record_bytes(const AdmissionRecord& record);
// Strict, as record_from_json. Throws Error{kBadInput} naming `origin` and the field.
AdmissionRecord admission_record_from_json(const Json& json, std::string_view origin);
// record.json of a run folder. Throws Error{kBadInput} saying what to do where it is missing.
AdmissionRecord read_admission_record(const std::filesystem::path& folder);

}  // namespace asymkv
