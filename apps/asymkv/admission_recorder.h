#pragma once

#include "asymkv/gate/admission_record.h"
#include "engine_runner.h"
#include "run_record.h"

namespace asymkv::app {

// Hands the gate's units to an engine and keeps record.json up to date: before a unit is committed, the launches that
// it took are on disk. A resumed run adds to what lies there, so the record speaks of every process that worked on it;
// one that has nothing left to run leaves the file as it is.
class AdmissionRecorder final : public CaseRunner {
 public:
  // Launches before this moment (probe, calibration) are no part of the run.
  AdmissionRecorder(EngineRunner& runner, const LoadedModel& model, const RunRequest& run, const RunClock& clock)
      : runner_(runner), model_(model), run_(run), clock_(clock), before_(launches_so_far(model)) {}

  // Throws Error{kBadInput} where units are finished and record.json is missing or no record.
  void begin(const RunSummary& opened) override;
  // Throws Error{kBadInput} where an earlier process ran on other terms.
  std::vector<RawOutcome> run_unit(const Unit& unit) override;

 private:
  void write(const AdmissionRecord& record) const;

  EngineRunner& runner_;
  const LoadedModel& model_;
  const RunRequest& run_;
  const RunClock& clock_;
  LaunchCounts before_;
  AdmissionRecord earlier_;  // of other processes, with this one's repairs
};

}  // namespace asymkv::app
