#include "asymkv/gate/run_folder.h"

#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/base/interrupt.h"
#include "asymkv/base/json_fields.h"
#include "asymkv/base/progress.h"
#include "asymkv/gate/run_files.h"
#include "asymkv/gate/run_writer.h"
#include "asymkv/gate/score.h"

namespace asymkv {
namespace {

// How a panel's cases become units.
struct PanelPlan {
  std::string name;
  int64_t cases_per_unit;
  GenerationLimits generation;
};

std::vector<PanelPlan> panel_plans(const Protocol& protocol) {
  std::vector<PanelPlan> plans;
  for (const RetrievalPanel& panel : protocol.retrieval) {
    plans.push_back({panel.name(), panel.cases_per_unit, panel.generation});
  }
  if (protocol.math) plans.push_back({protocol.math->name(), protocol.math->cases_per_unit, protocol.math->generation});
  for (const LossPanel& panel : protocol.loss) plans.push_back({panel.name(), panel.cases_per_unit, {}});
  return plans;
}

std::vector<ArmSlot> make_slots(const std::vector<ArmId>& arms, int64_t num_cases) {
  std::vector<ArmSlot> slots;
  for (const ArmId arm : arms) {
    ArmSlot slot{arm, {}};
    const int64_t rotation = arm == ArmId::kN2 ? 1 : 0;
    for (int64_t i = 0; i < num_cases; ++i) slot.order.push_back((i + rotation) % num_cases);
    slots.push_back(std::move(slot));
  }
  return slots;
}

std::vector<ArmId> with_noise_floor(const Protocol& protocol, const std::vector<ArmId>& arms) {
  if (arms.empty() || arms.front() != ArmId::kN) throw_usage("the first arm of a run must be N, the native control");
  const std::set<ArmId> unique(arms.begin(), arms.end());
  if (unique.size() != arms.size() || unique.contains(ArmId::kN2)) {
    throw_usage("arms {} of a run name an arm twice, or N2, which the gate adds itself", join_arms(arms));
  }
  std::vector<ArmId> result = arms;
  if (protocol.noise_floor) result.insert(result.begin() + 1, ArmId::kN2);
  return result;
}

// The outcomes of a unit as lines per slot. Throws Error{kInternal} where the runner broke its contract.
std::vector<std::string> score_unit(const Unit& unit, const std::vector<RawOutcome>& raws, AnswerParser parser) {
  const auto num_cases = std::ssize(unit.cases);
  std::vector<std::vector<const RawOutcome*>> found(unit.slots.size(),
                                                    std::vector<const RawOutcome*>(unit.cases.size(), nullptr));
  for (const RawOutcome& raw : raws) {
    ASYMKV_CHECK(raw.case_idx >= 0 && raw.case_idx < num_cases, "unit {}: case {} of {}", unit.index, raw.case_idx,
                 num_cases);
    size_t slot = 0;
    while (slot < unit.slots.size() && unit.slots[slot].arm != raw.arm) ++slot;
    ASYMKV_CHECK(slot < unit.slots.size(), "unit {}: arm {} was not asked", unit.index, arm_name(raw.arm));
    const RawOutcome*& place = found[slot][static_cast<size_t>(raw.case_idx)];
    ASYMKV_CHECK(place == nullptr, "unit {}: arm {} answered case {} twice", unit.index, arm_name(raw.arm),
                 raw.case_idx);
    place = &raw;
  }
  std::vector<std::string> lines(unit.slots.size());
  for (size_t slot = 0; slot < unit.slots.size(); ++slot) {
    for (size_t i = 0; i < unit.cases.size(); ++i) {
      ASYMKV_CHECK(found[slot][i] != nullptr, "unit {}: arm {} did not answer case {}", unit.index,
                   arm_name(unit.slots[slot].arm), unit.cases[i].id);
      const Outcome outcome = score_outcome(unit.cases[i], *found[slot][i], parser);
      lines[slot] += canonical_json(outcome_to_json(outcome)) + '\n';
    }
  }
  return lines;
}

// Progress of the panel that a unit belongs to: panels differ too much in cost for one common rate.
class PanelProgress {
 public:
  explicit PanelProgress(const std::vector<Unit>& plan) : plan_(plan) {}

  void start(const Unit& unit) {
    if (unit.panel == panel_) return;
    panel_ = unit.panel;
    int64_t total = 0, done = 0;
    for (const Unit& other : plan_) {
      if (other.panel != panel_) continue;
      total += std::ssize(other.cases);
      if (other.index < unit.index) done += std::ssize(other.cases);
    }
    progress_.reset();
    progress_.emplace(panel_, "cases", total, done);
  }
  void finish(const Unit& unit) { progress_->advance(std::ssize(unit.cases)); }

 private:
  const std::vector<Unit>& plan_;
  std::string panel_;
  std::optional<Progress> progress_;
};

AnswerParser deciding_parser(const Protocol& protocol) {
  return protocol.math ? protocol.math->parser : AnswerParser::kStrict;
}

// Lines of progress.jsonl, none of them torn.
std::vector<std::string> whole_lines(const std::filesystem::path& path) {
  const std::string text = read_text_file(path);
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (begin != text.size()) throw_bad_input("{}: the last line is torn: resume the run", path.string());
  return lines;
}

std::vector<Outcome> read_arm(const std::filesystem::path& folder, ArmId arm, const std::vector<Case>& cases) {
  const auto path = run_files::outcomes_path(folder, arm);
  std::vector<Outcome> outcomes = read_outcomes(path, arm);
  for (size_t i = 0; i < std::min(outcomes.size(), cases.size()); ++i) {
    if (outcomes[i].case_id == cases[i].id && outcomes[i].panel == cases[i].panel) continue;
    throw_bad_input("{}:{}: the line answers {} of {}, but case {} of {} is due there", path.string(), i + 1,
                    outcomes[i].case_id, outcomes[i].panel, cases[i].id, cases[i].panel);
  }
  if (outcomes.size() != cases.size()) {
    throw_bad_input("{} answers {} of {} cases: resume the run", path.string(), outcomes.size(), cases.size());
  }
  return outcomes;
}

void check_hash(const std::filesystem::path& path, const std::string& expected) {
  const std::string found = sha256_file_hex(path);
  if (found == expected) return;
  throw_bad_input("{} has SHA-256 {}, but run.json names {}: it was changed after the run began", path.string(), found,
                  expected);
}

}  // namespace

std::vector<Unit> plan_units(const Protocol& protocol, const std::vector<Case>& cases, const std::vector<ArmId>& arms) {
  const std::vector<ArmId> slots = with_noise_floor(protocol, arms);
  std::vector<Unit> units;
  size_t next = 0;
  for (const PanelPlan& panel : panel_plans(protocol)) {
    const size_t before = next;
    while (next < cases.size() && cases[next].panel == panel.name) {
      Unit unit;
      unit.index = std::ssize(units);
      unit.panel = panel.name;
      unit.kind = cases[next].kind;
      unit.generation = panel.generation;
      while (next < cases.size() && cases[next].panel == panel.name && std::ssize(unit.cases) < panel.cases_per_unit) {
        unit.cases.push_back(cases[next++]);
      }
      unit.slots = make_slots(slots, std::ssize(unit.cases));
      units.push_back(std::move(unit));
    }
    if (next == before) throw_bad_input("no case belongs to panel {} of the protocol", panel.name);
  }
  if (next != cases.size()) {
    throw_bad_input("case {} of panel {} is not in the protocol's order", cases[next].id, cases[next].panel);
  }
  return units;
}

RunSummary run_panels(const RunRequest& request, CaseRunner& runner) {
  const std::vector<ArmId> arms = with_noise_floor(request.protocol, request.arms);
  const std::vector<Unit> plan = plan_units(request.protocol, request.cases, request.arms);
  RunWriter writer(request, plan, arms);
  RunSummary summary{std::ssize(plan), writer.units_done(), writer.repairs()};
  runner.begin(summary);
  PanelProgress progress(plan);
  for (auto i = static_cast<size_t>(writer.units_done()); i < plan.size(); ++i) {
    throw_if_interrupted("finished work is on disk: run the same command with --resume");
    progress.start(plan[i]);
    writer.commit(plan[i], score_unit(plan[i], runner.run_unit(plan[i]), deciding_parser(request.protocol)));
    progress.finish(plan[i]);
  }
  return summary;
}

Run read_run(const std::filesystem::path& folder) {
  Run run;
  const auto protocol_path = folder / run_files::kProtocol;
  run.protocol = protocol_from_json(read_json_file(protocol_path), protocol_path.string());
  run.protocol_sha256 = sha256_file_hex(protocol_path);
  const auto header_path = folder / run_files::kRun;
  const run_files::Header header = run_files::header_from_json(read_json_file(header_path), header_path.string());
  check_hash(protocol_path, header.protocol_sha256);
  check_hash(folder / run_files::kCases, header.cases_sha256);
  run.identity = header.identity;
  run.mode = header.mode;
  run.cache = header.cache;
  run.arms = header.arms;
  run.cases = read_cases(folder / run_files::kCases);
  std::vector<ArmId> asked = header.arms;
  std::erase(asked, ArmId::kN2);
  const std::vector<Unit> plan = plan_units(run.protocol, run.cases, asked);
  const auto progress_path = folder / run_files::kProgress;
  const auto commits = run_files::parse_commits(whole_lines(progress_path), progress_path, plan);
  if (commits.size() != plan.size()) {
    throw_bad_input("{} has finished {} of {} units: resume the run", folder.string(), commits.size(), plan.size());
  }
  run_files::verify_commits(folder, run.arms, commits);
  for (const ArmId arm : run.arms) run.outcomes.push_back(read_arm(folder, arm, run.cases));
  return run;
}

}  // namespace asymkv
