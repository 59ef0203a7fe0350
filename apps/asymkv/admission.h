#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "asymkv/gate/cases.h"
#include "asymkv/gate/policy.h"
#include "asymkv/gate/protocol.h"
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
  std::vector<PanelCost> cost;  // where it was measured
  double seconds = 0;           // without that
};

// The whole job: takes the folder, loads the model, probes it, runs the panels (resumable, record.json growing with
// them), and writes scales.json (where an arm has fixed scales), certificate.json, policy.json and report.html beside
// them. A finished run that is resumed ends with the same files. What can be refused without the model is.
AdmissionResult run_admission(const AdmissionRequest& request);

}  // namespace asymkv::app
