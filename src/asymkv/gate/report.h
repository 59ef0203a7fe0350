#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/gate/admission_record.h"
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
  const AdmissionRecord& record;
};

// One self-contained HTML file: inline style and SVG, no script, no outside resource. Holds no time and no path: equal
// inputs give equal bytes. Every text that comes from a model, a file or a user is escaped.
std::string render_report_html(const ReportInputs& inputs);

// Text for HTML content and quoted attributes: & < > " ' become entities; control characters, which HTML forbids,
// become U+FFFD.
std::string html_escape(std::string_view text);

// A finished run with all that its report needs.
struct FinishedRun {
  Run run;
  Judgement judgement;
  ProbeResult probe;
  ArmBytes bytes_per_token;
  PolicyDecision policy;
  AdmissionRecord record;

  ReportInputs report_inputs() const { return {run, judgement, probe, bytes_per_token, policy, record}; }
};
// Everything that follows from a run's files, its probe and its record.
FinishedRun finish_run(Run run, ProbeResult probe, AdmissionRecord record);

// certificate.json, from the outcomes that lie in the folder. Returns the certificate.
Json write_certificate(const FinishedRun& finished, const std::filesystem::path& folder);
// policy.json and report.html, beside the certificate that lies in the folder. Returns the policy.
Json write_policy_and_report(const FinishedRun& finished, const std::filesystem::path& folder);

}  // namespace asymkv
