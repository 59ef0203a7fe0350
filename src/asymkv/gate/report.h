#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/gate/certificate.h"
#include "asymkv/gate/judgement.h"
#include "asymkv/gate/policy.h"
#include "asymkv/gate/probe.h"
#include "asymkv/gate/run_folder.h"

namespace asymkv {

struct ReportInputs {
  const Run& run;
  const Judgement& judgement;
  const ProbeResult& probe;
  const ArmBytes& bytes_per_token;  // of every arm but N2
  const PolicyDecision& policy;
  Json record;                       // provenance record of the run; null if there is none
  std::vector<std::string> repairs;  // what a resumed run cut off, one sentence each
};

// One self-contained HTML file: inline style and SVG, no script, no outside resource. Holds no time and no path: equal
// inputs give equal bytes. Every text that comes from a model, a file or a user is escaped.
std::string render_report_html(const ReportInputs& inputs);

// Text for HTML content and quoted attributes: & < > " ' become entities; control characters, which HTML forbids,
// become U+FFFD.
std::string html_escape(std::string_view text);

// A finished run with what its report needs, read back from its folder: certificate.json for probe and bytes,
// policy.json (if present) for the policy mode, record.json (if present) and its "repairs".
struct FinishedRun {
  Run run;
  Judgement judgement;
  ProbeResult probe;
  ArmBytes bytes_per_token;
  PolicyDecision policy;
  Json record;
  std::vector<std::string> repairs;

  ReportInputs report_inputs() const { return {run, judgement, probe, bytes_per_token, policy, record, repairs}; }
};
// Throws Error{kBadInput} naming the file that is missing or malformed.
FinishedRun read_finished_run(const std::filesystem::path& folder);

}  // namespace asymkv
