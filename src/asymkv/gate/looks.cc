#include "asymkv/gate/looks.h"

#include <algorithm>
#include <map>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/gate/judgement.h"

namespace asymkv {
namespace {

using stats::Verdict;

std::map<std::string, int64_t> count_by_panel(const std::vector<Case>& cases) {
  std::map<std::string, int64_t> counts;
  for (const Case& value : cases) ++counts[value.panel];
  return counts;
}

// More losses than the last look could let pass: nothing that follows can help.
bool is_hopeless(const PanelPairs& pairs, double limit, double last_level) {
  return pairs.counts.lost > stats::most_losses(limit, last_level, pairs.panel_cases);
}

bool can_still_pass(const ArmJudgement& judged, const Protocol& protocol, double last_level) {
  for (size_t i = 0; i < judged.retrieval.size(); ++i) {
    if (is_hopeless(judged.retrieval[i].pairs, protocol.retrieval[i].limit, last_level)) return false;
  }
  // The net change may still recover by cases gained.
  if (!judged.math || protocol.objective != Objective::kPreservation) return true;
  return !is_hopeless(judged.math->pairs, protocol.margins.preservation_limit, last_level);
}

bool stops(const Run& run, ArmId arm, const LookPlan& plan, int64_t look_idx) {
  bool all_pass = true;
  for (const ArmId control : run.protocol.controls) {
    const ArmJudgement judged = judge_arm(run, control, arm, look_idx);
    const Verdict verdict = judged.objective(run.protocol.objective);
    if (verdict == Verdict::kDegraded || !can_still_pass(judged, run.protocol, plan.levels.back())) return true;
    all_pass = all_pass && verdict == Verdict::kPass;
  }
  return all_pass;
}

}  // namespace

int64_t panel_cases_at(int64_t count, double fraction) {
  return std::clamp<int64_t>(stats::cases_at(count, fraction), 1, count);
}

LookPlan plan_looks(const Protocol& protocol, const std::vector<Case>& cases) {
  LookPlan plan;
  plan.levels = protocol.look_levels();
  for (const double fraction : protocol.looks.fractions) {
    int64_t end = 0;
    for (const auto& [panel, count] : count_by_panel(cases)) end += panel_cases_at(count, fraction);
    plan.case_ends.push_back(end);
  }
  return plan;
}

stats::LookExpectation expect_panel(const Protocol& protocol, int64_t count, double limit, double loss_rate) {
  const std::vector<double> levels = protocol.look_levels();
  std::vector<stats::Look> looks;
  for (size_t i = 0; i < levels.size(); ++i) {
    looks.push_back({panel_cases_at(count, protocol.looks.fractions[i]), levels[i]});
  }
  return stats::expect_looks(looks, limit, loss_rate);
}

std::vector<Case> order_by_looks(const Protocol& protocol, std::vector<Case> cases) {
  std::map<std::string, int64_t> counts = count_by_panel(cases), seen;
  const auto look_of = [&](const Case& value) {
    const int64_t place = seen[value.panel]++;
    const auto& fractions = protocol.looks.fractions;
    const auto is_in = [&](double fraction) { return place < panel_cases_at(counts[value.panel], fraction); };
    return std::ranges::find_if(fractions, is_in) - fractions.begin();
  };
  std::vector<std::pair<int64_t, Case>> keyed;
  for (Case& value : cases) {
    const int64_t look = look_of(value);
    keyed.emplace_back(look, std::move(value));
  }
  std::ranges::stable_sort(keyed, {}, &std::pair<int64_t, Case>::first);
  std::vector<Case> ordered;
  for (auto& [look, value] : keyed) ordered.push_back(std::move(value));
  return ordered;
}

std::vector<ArmId> arms_after_look(const Run& run, int64_t look_idx) {
  const LookPlan plan = plan_looks(run.protocol, run.cases);
  std::vector<ArmId> going, natives;
  bool any_candidate = false;
  for (size_t i = 0; i < run.arms.size(); ++i) {
    const ArmId arm = run.arms[i];
    const bool answered = std::ssize(run.outcomes[i]) >= plan.case_ends[static_cast<size_t>(look_idx)];
    any_candidate = any_candidate || !arm_is_native(arm);
    if (!answered) continue;
    if (arm_is_native(arm) || !stops(run, arm, plan, look_idx)) going.push_back(arm);
  }
  if (any_candidate && std::ranges::all_of(going, arm_is_native)) going.clear();
  return going;
}

std::vector<int64_t> cases_due(const Run& run) {
  const LookPlan plan = plan_looks(run.protocol, run.cases);
  std::vector<int64_t> due(run.arms.size(), plan.case_ends.front());
  std::vector<ArmId> going = run.arms;
  for (int64_t look = 0; look + 1 < plan.size() && !going.empty(); ++look) {
    going = arms_after_look(run, look);
    for (size_t i = 0; i < run.arms.size(); ++i) {
      const bool goes_on = std::ranges::find(going, run.arms[i]) != going.end();
      if (goes_on) due[i] = plan.case_ends[static_cast<size_t>(look) + 1];
    }
  }
  return due;
}

}  // namespace asymkv
