#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "asymkv/gate/certificate.h"
#include "asymkv/gate/policy.h"
#include "asymkv/gate/report.h"
#include "asymkv/gate/run_folder.h"

// Synthetic runs with planned counts, for tests of what is made of a run.
namespace asymkv::gate_testkit {

// What one arm does in the panels of one kind. Native answers the first `native_correct` share of the cases right; the
// arm gets the first `lost` of those wrong and the first `gained` of the others right.
struct PanelPlan {
  int64_t lost = 0;
  int64_t gained = 0;
  int64_t failed = 0;     // the last cases of the panel
  int64_t truncated = 0;  // the first ones
};
struct ArmPlan {
  std::map<std::string, PanelPlan> panels;  // by panel name; a panel without an entry answers as native does
  double loss_ratio = 0;                    // candidate / native - 1, about
};
struct RunPlan {
  Protocol protocol;
  std::map<ArmId, ArmPlan> arms;                  // N2 too, where the protocol has a noise floor
  std::map<std::string, int64_t> native_correct;  // by panel name; all cases without an entry
  RunIdentity identity;
  PolicyMode mode = PolicyMode::kKnee;
  Shard shard;
};

RunIdentity test_identity();
CacheShape test_cache();  // 2,048 bytes a token in bf16
// Certifying; retrieval at 1,024 and 8,192, math, loss; divisor and number of math cases as asked.
Protocol test_protocol(int64_t math_cases, int64_t divisor);
std::vector<Case> make_test_cases(const Protocol& protocol);

// The run in memory, judged by the gate's own parsers.
Run make_run(const RunPlan& plan);
// The same run written to `folder` by run_panels.
void write_run(const RunPlan& plan, const std::filesystem::path& folder);
// With every file that a finished admission leaves (of a shard: those that a merge asks for), its probe saying
// `verdict`.
void write_finished_run(const RunPlan& plan, Fragility verdict, const std::filesystem::path& folder);
// A record that agrees with the run.
AdmissionRecord make_record(const Run& run);

// Layers whose mean logit noise gives the verdict asked for.
ProbeResult make_probe(Fragility verdict, int64_t num_layers = 6);
// Bytes per token of test_cache().
ArmBytes make_bytes();

// The embedded pair's fragile model, as published: A, P and J pass, R, S and I are degraded.
RunPlan fragile_plan();
RunPlan robust_plan();
}  // namespace asymkv::gate_testkit
