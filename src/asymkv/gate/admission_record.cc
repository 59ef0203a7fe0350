#include "asymkv/gate/admission_record.h"

#include <fmt/format.h>

#include "asymkv/base/error.h"
#include "asymkv/base/json_fields.h"
#include "asymkv/gate/run_files.h"

namespace asymkv {
namespace {

constexpr std::string_view kSchema = "asymkv.admission-record/1";

}  // namespace

void AdmissionRecord::add(const AdmissionRecord& later, std::string_view origin) {
  for (const auto& [arm, record] : later.arms) {
    const auto [place, fresh] = arms.try_emplace(arm, record);
    if (!fresh) place->second = merge_records(place->second, record, fmt::format("{}: arms.{}", origin, arm_name(arm)));
  }
  repairs.insert(repairs.end(), later.repairs.begin(), later.repairs.end());
}

Json admission_record_to_json(const AdmissionRecord& record) {
  Json arms = Json::object();
  for (const auto& [arm, facts] : record.arms) arms[std::string(arm_name(arm))] = record_to_json(facts);
  return {{"schema", kSchema}, {"arms", std::move(arms)}, {"repairs", record.repairs}};
}

std::string admission_record_bytes(const AdmissionRecord& record) {
  return canonical_json(admission_record_to_json(record)) + "\n";
}

AdmissionRecord admission_record_from_json(const Json& json, std::string_view origin) {
  JsonFields fields(json, std::string(origin));
  if (fields.text("schema") != kSchema) fields.fail("schema", fmt::format("must be \"{}\"", kSchema));
  AdmissionRecord record;
  const Json& arms = fields.raw("arms");
  if (!arms.is_object()) fields.fail("arms", "must be an object of records");
  for (const auto& [name, facts] : arms.items()) {
    record.arms[fields.parsed("arms", name, parse_arm)] =
        record_from_json(facts, fmt::format("{}: arms.{}", origin, name));
  }
  record.repairs = fields.texts("repairs");
  fields.finish();
  return record;
}

AdmissionRecord read_admission_record(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / run_files::kRecord;
  if (!std::filesystem::exists(path)) {
    throw_bad_input("{} is missing: what ran is known from it alone, so admit the model again into an empty folder",
                    path.string());
  }
  return admission_record_from_json(read_json_file(path), path.string());
}

}  // namespace asymkv
