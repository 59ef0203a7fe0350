#include "asymkv/gate/judgement.h"

#include <algorithm>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/gate/looks.h"
#include "asymkv/stats/required_cases.h"

namespace asymkv {
namespace {

using stats::Verdict;

int severity(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return 0;
    case Verdict::kNotEstablished:
      return 1;
    case Verdict::kUninformative:
      return 2;
    case Verdict::kDegraded:
      return 3;
  }
  return 3;
}

// Outcomes of one arm, found by arm id.
const std::vector<Outcome>& outcomes_of(const Run& run, ArmId arm) {
  const auto it = std::ranges::find(run.arms, arm);
  ASYMKV_CHECK(it != run.arms.end(), "the run has no arm {}", arm_name(arm));
  return run.outcomes[static_cast<size_t>(it - run.arms.begin())];
}

// One comparison: of which arms, on how many of the run's cases, at which level.
struct Comparison {
  const Run& run;
  ArmId control;
  ArmId candidate;
  int64_t num_cases;
  double alpha;
};

PanelPairs pair_panel(const Comparison& of, const std::string& panel) {
  PanelPairs pairs;
  pairs.panel = panel;
  const Run& run = of.run;
  const std::vector<Outcome>& controls = outcomes_of(run, of.control);
  const std::vector<Outcome>& candidates = outcomes_of(run, of.candidate);
  for (size_t i = 0; i < run.cases.size(); ++i) {
    if (run.cases[i].panel != panel) continue;
    ++pairs.panel_cases;
    if (std::cmp_greater_equal(i, of.num_cases)) continue;
    const Outcome& a = controls[i];
    const Outcome& b = candidates[i];
    ++pairs.cases;
    pairs.failed_control += a.failed ? 1 : 0;
    pairs.failed_candidate += b.failed ? 1 : 0;
    if (a.failed || b.failed) continue;
    ++pairs.counts.n;
    pairs.control_correct += a.correct ? 1 : 0;
    pairs.candidate_correct += b.correct ? 1 : 0;
    pairs.alt_control_correct += a.alt_correct ? 1 : 0;
    pairs.alt_candidate_correct += b.alt_correct ? 1 : 0;
    pairs.truncated_control += a.truncated ? 1 : 0;
    pairs.truncated_candidate += b.truncated ? 1 : 0;
    pairs.counts.lost += a.correct && !b.correct ? 1 : 0;
    pairs.counts.gained += !a.correct && b.correct ? 1 : 0;
  }
  return pairs;
}

// The bound's verdict, unless native cannot do the task or cases are missing.
Verdict with_conditions(Verdict bound, const PanelPairs& pairs, double native_floor) {
  const double native_accuracy = static_cast<double>(pairs.control_correct) / static_cast<double>(pairs.counts.n);
  if (native_accuracy < native_floor) return Verdict::kUninformative;
  if (pairs.failed() > 0 && bound == Verdict::kPass) return Verdict::kNotEstablished;
  return bound;
}

// Whether more cases could help: a bound that clears its limit, but for failed cases, needs those answered instead.
bool needs_cases(Verdict verdict, Verdict bound) {
  return verdict == Verdict::kNotEstablished && bound == Verdict::kNotEstablished;
}

RetrievalJudgement judge_retrieval(const RetrievalPanel& panel, PanelPairs pairs, double alpha) {
  RetrievalJudgement judgement;
  judgement.length = panel.length;
  judgement.native_floor = panel.native_floor;
  judgement.pairs = std::move(pairs);
  if (judgement.pairs.counts.n == 0) return judgement;
  judgement.bound = stats::retrieval_verdict(judgement.pairs.counts, alpha, panel.limit);
  judgement.verdict = with_conditions(judgement.bound->verdict, judgement.pairs, panel.native_floor);
  if (needs_cases(judgement.verdict, judgement.bound->verdict)) {
    judgement.needed = stats::projected_cases_for_limit(judgement.pairs.counts, panel.limit, alpha);
  }
  return judgement;
}

MathJudgement judge_math(const MathPanel& panel, PanelPairs pairs, const Margins& margins, double alpha) {
  MathJudgement judgement;
  judgement.native_floor = panel.native_floor;
  judgement.pairs = std::move(pairs);
  const stats::PairedCounts& counts = judgement.pairs.counts;
  if (counts.n == 0) return judgement;
  judgement.preservation_bound = stats::preservation_verdict(counts, alpha, margins.preservation_limit);
  judgement.aggregate_bound = stats::aggregate_verdict(counts, alpha, margins.aggregate_margin);
  judgement.preservation = with_conditions(judgement.preservation_bound->verdict, judgement.pairs, panel.native_floor);
  judgement.aggregate = with_conditions(judgement.aggregate_bound->verdict, judgement.pairs, panel.native_floor);
  if (needs_cases(judgement.preservation, judgement.preservation_bound->verdict)) {
    judgement.preservation_needed = stats::projected_cases_for_limit(counts, margins.preservation_limit, alpha);
  }
  if (needs_cases(judgement.aggregate, judgement.aggregate_bound->verdict)) {
    judgement.aggregate_needed = stats::projected_cases_for_margin(counts, margins.aggregate_margin, alpha);
  }
  return judgement;
}

LossJudgement judge_loss(const Comparison& of, const LossPanel& panel) {
  const Run& run = of.run;
  LossJudgement judgement;
  judgement.document_tokens = panel.document_tokens;
  judgement.panel = panel.name();
  std::vector<stats::PairedLoss> documents;
  std::vector<std::string> ids;
  const std::vector<Outcome>& controls = outcomes_of(run, of.control);
  const std::vector<Outcome>& candidates = outcomes_of(run, of.candidate);
  for (size_t i = 0; std::cmp_less(i, of.num_cases); ++i) {
    if (run.cases[i].panel != judgement.panel) continue;
    const Outcome& a = controls[i];
    const Outcome& b = candidates[i];
    if (a.failed || b.failed) {
      ++judgement.failed;
      continue;
    }
    documents.push_back({a.nll, b.nll});
    ids.push_back(run.cases[i].id);
    judgement.document_deltas.push_back(b.nll - a.nll);
  }
  judgement.documents = static_cast<int64_t>(documents.size());
  const stats::BootstrapOptions options{run.protocol.bootstrap_resamples, run.protocol.bootstrap_seed, of.alpha};
  // A level that no resample can reach gives no bound; only an early look has one.
  const bool resolved = static_cast<double>(options.resamples) * options.alpha >= 1.0;
  if (documents.size() < 2 || !resolved) return judgement;
  judgement.bound =
      stats::loss_verdict(stats::bootstrap_loss_ratio(documents, options), run.protocol.margins.loss_limit);
  judgement.verdict = judgement.bound->verdict;
  judgement.leave_one_out = stats::leave_one_out(documents);
  judgement.most_moving_case = ids[static_cast<size_t>(judgement.leave_one_out->most_moving)];
  if (judgement.failed > 0 && judgement.verdict == Verdict::kPass) judgement.verdict = Verdict::kNotEstablished;
  return judgement;
}

void check_run(const Run& run) {
  for (const ArmId control : run.protocol.controls) {
    if (std::ranges::find(run.arms, control) != run.arms.end()) continue;
    throw_bad_input("the run has no arm {}, a native control: run it again with {}", arm_name(control),
                    arm_name(control));
  }
  ASYMKV_CHECK(run.outcomes.size() == run.arms.size(), "{} arms, outcomes of {}", run.arms.size(), run.outcomes.size());
}

// The look at which an arm's answers end.
int64_t last_look(const Run& run, const LookPlan& looks, ArmId arm) {
  const int64_t answered = std::ssize(outcomes_of(run, arm));
  const auto it = std::ranges::find(looks.case_ends, answered);
  if (it != looks.case_ends.end()) return it - looks.case_ends.begin();
  throw_bad_input("arm {} answers {} of {} cases: resume the run", arm_name(arm), answered, run.cases.size());
}

}  // namespace

Verdict worse(Verdict a, Verdict b) {
  return severity(a) >= severity(b) ? a : b;
}

Verdict ArmJudgement::retrieval_and_loss() const {
  Verdict verdict = retrieval.empty() || loss.empty() ? Verdict::kNotEstablished : Verdict::kPass;
  for (const RetrievalJudgement& panel : retrieval) verdict = worse(verdict, panel.verdict);
  for (const LossJudgement& panel : loss) verdict = worse(verdict, panel.verdict);
  return verdict;
}

ArmJudgement judge_arm(const Run& run, ArmId control, ArmId candidate, int64_t look_idx) {
  const Protocol& protocol = run.protocol;
  const LookPlan looks = plan_looks(protocol, run.cases);
  const double alpha = looks.levels.at(static_cast<size_t>(look_idx));
  const Comparison of{run, control, candidate, looks.case_ends.at(static_cast<size_t>(look_idx)), alpha};
  ArmJudgement judgement;
  judgement.arm = candidate;
  judgement.control = control;
  judgement.look = look_idx + 1;
  judgement.num_looks = looks.size();
  judgement.alpha = alpha;
  for (const RetrievalPanel& panel : protocol.retrieval) {
    judgement.retrieval.push_back(judge_retrieval(panel, pair_panel(of, panel.name()), alpha));
  }
  if (protocol.math) {
    judgement.math = judge_math(*protocol.math, pair_panel(of, protocol.math->name()), protocol.margins, alpha);
  }
  for (const LossPanel& panel : protocol.loss) judgement.loss.push_back(judge_loss(of, panel));
  const Verdict shared = judgement.retrieval_and_loss();
  judgement.preservation = judgement.math ? worse(shared, judgement.math->preservation) : Verdict::kNotEstablished;
  judgement.aggregate = judgement.math ? worse(shared, judgement.math->aggregate) : Verdict::kNotEstablished;
  judgement.certified = protocol.protocol_class == ProtocolClass::kCertifying && !arm_is_control(candidate) &&
                        judgement.objective(protocol.objective) == Verdict::kPass;
  return judgement;
}

Judgement judge_run(const Run& run) {
  check_run(run);
  const LookPlan looks = plan_looks(run.protocol, run.cases);
  Judgement judgement;
  judgement.alpha = run.protocol.alpha_per_bound();
  for (const ArmId arm : run.arms) {
    const int64_t look = last_look(run, looks, arm);
    if (arm == ArmId::kN) continue;
    if (arm == ArmId::kN2) {
      judgement.noise_floor = judge_arm(run, ArmId::kN, arm, look);
      continue;
    }
    for (const ArmId control : run.protocol.controls) {
      if (control != arm) judgement.arms.push_back(judge_arm(run, control, arm, look));
    }
  }
  return judgement;
}

std::vector<const ArmJudgement*> Judgement::of(ArmId arm) const {
  std::vector<const ArmJudgement*> found;
  for (const ArmJudgement& judged : arms) {
    if (judged.arm == arm) found.push_back(&judged);
  }
  return found;
}

bool Judgement::certified(ArmId arm) const {
  const auto judged = of(arm);
  return !judged.empty() && std::ranges::all_of(judged, &ArmJudgement::certified);
}

}  // namespace asymkv
