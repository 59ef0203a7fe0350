#pragma once

#include <string>
#include <vector>

#include "asymkv/gate/report.h"

// The sections of the report, each as markup.
namespace asymkv::report_sections {

std::string verdict(const ReportInputs& in);    // first screen: tier, why, what it is not
std::string tested(const ReportInputs& in);     // model, protocol, path, worker, cases
std::string arms(const ReportInputs& in);       // formats, bytes, verdicts
std::string retrieval(const ReportInputs& in);  // table and heat map
std::string answers(const ReportInputs& in);    // math
std::string loss(const ReportInputs& in);       // table
std::string intervals(const ReportInputs& in);  // interval plots with their limits
std::string documents(const ReportInputs& in);  // loss change of every document
std::string probe(const ReportInputs& in);      // per layer
std::string noise_floor(const ReportInputs& in);
std::string disclosure(const ReportInputs& in);
std::string provenance(const ReportInputs& in);

// N2 first, then every arm against every control.
std::vector<const ArmJudgement*> judged_arms(const Judgement& judgement);
// "SD", or "N2 (native)".
std::string arm_label(ArmId arm);
// arm_label; with several controls "SD vs NR".
std::string judged_label(const Judgement& judgement, const ArmJudgement& judged);
// Exact ids and scale policy: "keys e4m3, values e4m3, dynamic scales".
std::string format_words(ArmId arm, const RunIdentity& identity);
// "alpha 0.05 / 40 = 0.00125, one-sided".
std::string alpha_words(const Protocol& protocol);

}  // namespace asymkv::report_sections
