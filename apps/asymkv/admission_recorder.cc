#include "admission_recorder.h"

#include "asymkv/base/file.h"
#include "asymkv/gate/run_files.h"

namespace asymkv::app {

void AdmissionRecorder::begin(const RunSummary& opened) {
  const bool there = std::filesystem::exists(run_.folder / run_files::kRecord);
  if (there || opened.units_resumed > 0) earlier_ = read_admission_record(run_.folder);
  if (opened.repairs.empty()) return;
  earlier_.repairs.insert(earlier_.repairs.end(), opened.repairs.begin(), opened.repairs.end());
  write(earlier_);
}

std::vector<RawOutcome> AdmissionRecorder::run_unit(const Unit& unit) {
  std::vector<RawOutcome> outcomes = runner_.run_unit(unit);
  AdmissionRecord record = earlier_;
  const AdmissionRecord now{make_arm_records(model_, runner_.caches(), run_, {clock_, before_}), {}};
  record.add(now, (run_.folder / run_files::kRecord).string());
  write(record);
  return outcomes;
}

void AdmissionRecorder::write(const AdmissionRecord& record) const {
  write_file_atomic(run_.folder / run_files::kRecord, admission_record_bytes(record));
}

}  // namespace asymkv::app
