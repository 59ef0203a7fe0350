#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "asymkv/gate/cases.h"
#include "asymkv/gate/policy.h"
#include "asymkv/gate/protocol.h"
#include "asymkv/gate/report.h"
#include "asymkv/model/forward/decoder.h"
#include "run_cost.h"

namespace asymkv::app {

struct AdmissionRequest {
  std::filesystem::path model;
  std::filesystem::path folder;  // empty: asymkv-admit/MODEL
  Protocol protocol;
  std::vector<ArmId> arms;  // empty: the protocol's, less those the model cannot have
  CaseFiles files;
  std::filesystem::path scales_file;  // empty: calibrated on texts of the protocol's kind
  PolicyMode mode = PolicyMode::kKnee;
  Shard shard;
  bool resume = false;
  bool measure_cost = false;  // run native alone once more, and compare
  Backends backends;
};

struct AdmissionResult {
  std::filesystem::path folder;
  std::string model;
  Tier tier = Tier::kNative;
  Json certificate;
  Json policy;
  std::string table;
  std::vector<PanelCost> cost;                // where it was measured
  std::optional<double> seconds;              // of this process, without that
  std::optional<int64_t> device_memory_peak;  // bytes in use on the GPU, where it ran on one
};

// Writes certificate.json, policy.json and report.html of a finished run.
AdmissionResult write_results(const FinishedRun& finished, const std::filesystem::path& folder);
// `admit --json`'s answer, without what only a run knows.
Json result_to_json(const AdmissionResult& result);
// The table and where certificate and report lie.
void print_result(const AdmissionResult& result);
// Exit code: 1, with a sentence on standard error, where the result falls short of a tier that was asked for.
int require_tier(const AdmissionResult& result, std::optional<Tier> required);

// The whole job: takes the folder, loads the model, probes it, runs the panels (resumable, record.json growing with
// them), and writes scales.json (where an arm has fixed scales), certificate.json, policy.json and report.html beside
// them. A finished run that is resumed ends with the same files. What can be refused without the model is. Nothing for
// a shard, which has no verdict of its own: it ends with its outcomes, record.json and probe.json.
std::optional<AdmissionResult> run_admission(const AdmissionRequest& request);

}  // namespace asymkv::app
