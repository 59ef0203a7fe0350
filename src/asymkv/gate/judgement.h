#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "asymkv/gate/arm.h"
#include "asymkv/gate/run_folder.h"
#include "asymkv/stats/verdict.h"

namespace asymkv {

// How two arms answered the cases of one panel that both answered.
struct PanelPairs {
  std::string panel;
  int64_t panel_cases = 0;     // of the whole panel
  int64_t cases = 0;           // asked of the candidate: fewer where it stopped at an early look
  int64_t failed_control = 0;  // errored or unanswered: left out of the counts, never "wrong"
  int64_t failed_candidate = 0;
  int64_t control_correct = 0;  // among the counted
  int64_t candidate_correct = 0;
  int64_t truncated_control = 0;
  int64_t truncated_candidate = 0;
  int64_t alt_control_correct = 0;  // math: by the parser that does not decide
  int64_t alt_candidate_correct = 0;
  stats::PairedCounts counts;
  int64_t failed() const { return failed_control + failed_candidate; }
};

// One retrieval length. `verdict` is the bound's verdict after the native floor (uninformative) and failed cases (never
// pass) had their say; `bound` is null if no case was answered by both.
struct RetrievalJudgement {
  int64_t length = 0;
  PanelPairs pairs;
  double native_floor = 0.0;
  std::optional<stats::GrossLossVerdict> bound;
  stats::Verdict verdict = stats::Verdict::kNotEstablished;
  std::optional<int64_t> needed;  // cases at the observed rate, where more cases are what is missing
};

struct MathJudgement {
  PanelPairs pairs;
  double native_floor = 0.0;
  std::optional<stats::GrossLossVerdict> preservation_bound;
  std::optional<stats::NetChangeVerdict> aggregate_bound;
  stats::Verdict preservation = stats::Verdict::kNotEstablished;
  stats::Verdict aggregate = stats::Verdict::kNotEstablished;
  std::optional<int64_t> preservation_needed;  // cases at the observed rates, where more cases are what is missing
  std::optional<int64_t> aggregate_needed;
};

struct LossJudgement {
  int64_t document_tokens = 0;
  std::string panel;
  int64_t documents = 0;
  int64_t failed = 0;
  std::optional<stats::LossVerdict> bound;
  std::optional<stats::LeaveOneOut> leave_one_out;  // diagnostic, where there is a bound
  std::string most_moving_case;                     // id of the document whose absence moves the ratio most
  std::vector<double> document_deltas;              // candidate - control, nats per token, in case order
  stats::Verdict verdict = stats::Verdict::kNotEstablished;
};

// One arm against one control. A protocol may name several controls: then an arm is judged against each, and is
// certified only if it is certified against all. An objective passes when its own bound, retrieval at every length and
// prediction loss all pass; its verdict is the worst of theirs (degraded, then uninformative, then not established).
struct ArmJudgement {
  ArmId arm = ArmId::kN;
  ArmId control = ArmId::kN;
  std::vector<RetrievalJudgement> retrieval;
  std::optional<MathJudgement> math;
  std::vector<LossJudgement> loss;
  stats::Verdict preservation = stats::Verdict::kNotEstablished;
  stats::Verdict aggregate = stats::Verdict::kNotEstablished;
  bool certified = false;  // a certifying protocol whose deciding objective passed
  int64_t look = 1;        // at which it was judged: its last one
  int64_t num_looks = 1;   // of the protocol
  double alpha = 0.0;      // of each bound at that look

  stats::Verdict objective(Objective which) const {
    return which == Objective::kPreservation ? preservation : aggregate;
  }
  // Worst verdict of retrieval and loss alone; never better than not established where either panel is missing.
  stats::Verdict retrieval_and_loss() const;
};

struct Judgement {
  double alpha = 0.0;                       // of each bound, over all looks together
  std::vector<ArmJudgement> arms;           // every arm but N and N2 against each of the protocol's controls
  std::optional<ArmJudgement> noise_floor;  // N2 against N: discordance without any change of format

  // An arm's judgements, in the order of the protocol's controls; none for an arm that did not run.
  std::vector<const ArmJudgement*> of(ArmId arm) const;
  // Certified against every control.
  bool certified(ArmId arm) const;
};

// `candidate` against `control`, from the cases up to look `look_idx` (from 0) alone and at its level. Both have
// answered these.
ArmJudgement judge_arm(const Run& run, ArmId control, ArmId candidate, int64_t look_idx);

// Recomputes every count, bound and verdict from the outcomes of a finished run. Pure: equal runs give equal results.
// Throws Error{kBadInput} for a run without a control, or with an arm whose answers end at no look, and Error{kUsage}
// for a loss that no model has (bootstrap.h).
Judgement judge_run(const Run& run);

// The worse of two verdicts, in the order pass, not established, uninformative, degraded.
stats::Verdict worse(stats::Verdict a, stats::Verdict b);

}  // namespace asymkv
