#pragma once

#include <cstdint>
#include <vector>

#include "asymkv/gate/run_folder.h"

namespace asymkv {

// Looks (sequential admission): a protocol may declare shares of its cases after which the gate looks at what there is
// and stops the arms whose verdict is clear or can no longer become a pass. Each look has its own share of alpha
// (stats/sequential.h), so looking costs no certainty. A protocol without looks has one, at the end.

struct LookPlan {
  std::vector<int64_t> case_ends;  // cases asked by the end of each look, all panels together; the last is all of them
  std::vector<double> levels;      // one-sided, of each bound judged at the look
  int64_t size() const { return static_cast<int64_t>(levels.size()); }
};
// Of the cases as plan_units asks them: look by look, panel by panel.
LookPlan plan_looks(const Protocol& protocol, const std::vector<Case>& cases);

// Cases of a panel of `count` that are asked by the end of a look at `fraction`.
int64_t panel_cases_at(int64_t count, double fraction);
// What the looks are expected to do with a panel of `count` cases, a limit on its upper bound, and a candidate that
// loses this share of its answers: exact (stats/sequential.h). Throws Error{kUsage} for a panel so small that two looks
// end at the same case.
stats::LookExpectation expect_panel(const Protocol& protocol, int64_t count, double limit, double loss_rate);
// Cases in panel order into the order in which they are asked: look by look, panel by panel.
std::vector<Case> order_by_looks(const Protocol& protocol, std::vector<Case> cases);

// The arms of `run` that go on after look `look_idx`, in run order, judged on the cases up to it alone; empty if none
// does. A candidate stops where its deciding objective passes against every control, where it is degraded against one,
// and where more answers are lost already than the last look lets pass; it went on before if it answered these cases.
// Native arms go on as long as a candidate does.
std::vector<ArmId> arms_after_look(const Run& run, int64_t look_idx);

// How many cases each arm of a finished run has to have answered, by the rule above, in run order. An arm that answered
// fewer than that is counted as if it went on.
std::vector<int64_t> cases_due(const Run& run);

}  // namespace asymkv
