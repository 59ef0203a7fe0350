#include "asymkv/gate/run_folder.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/base/interrupt.h"
#include "asymkv/base/json_fields.h"
#include "asymkv/base/number.h"
#include "asymkv/base/progress.h"
#include "asymkv/gate/looks.h"
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
  for (const ArmId control : protocol.controls) {
    if (unique.contains(control)) continue;
    throw_usage("arms {} lack {}, with which protocol {} compares every arm: add it", join_arms(arms),
                arm_name(control), protocol.name);
  }
  std::vector<ArmId> result = arms;
  if (protocol.noise_floor) result.insert(result.begin() + 1, ArmId::kN2);
  return result;
}

// The outcomes of a unit, [slot][case]. Throws Error{kInternal} where the runner broke its contract.
std::vector<std::vector<Outcome>> score_unit(const Unit& unit, const std::vector<RawOutcome>& raws,
                                             AnswerParser parser) {
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
  std::vector<std::vector<Outcome>> outcomes(unit.slots.size());
  for (size_t slot = 0; slot < unit.slots.size(); ++slot) {
    for (size_t i = 0; i < unit.cases.size(); ++i) {
      ASYMKV_CHECK(found[slot][i] != nullptr, "unit {}: arm {} did not answer case {}", unit.index,
                   arm_name(unit.slots[slot].arm), unit.cases[i].id);
      outcomes[slot].push_back(score_outcome(unit.cases[i], *found[slot][i], parser));
    }
  }
  return outcomes;
}

// Which arms are asked, look by look, and what they answered.
class ActiveArms {
 public:
  ActiveArms(const RunRequest& request, const std::vector<ArmId>& arms) : going_(arms) {
    run_.protocol = request.protocol;
    run_.cases = request.cases;
    run_.arms = arms;
    run_.outcomes.resize(arms.size());
    if (request.protocol.looks == Looks()) return;  // nothing is judged before the end
    for (size_t i = 0; i < arms.size(); ++i) {
      const auto path = run_files::outcomes_path(request.folder, arms[i]);
      if (std::filesystem::exists(path)) run_.outcomes[i] = read_outcomes(path, arms[i]);
    }
  }

  // The arms of a look, all looks before it being answered; none: the run is over.
  const std::vector<ArmId>& at(int64_t look_idx) {
    for (; look_idx_ < look_idx; ++look_idx_) {
      const std::vector<ArmId> before = std::exchange(going_, arms_after_look(run_, look_idx_));
      std::vector<ArmId> stopped;
      for (const ArmId arm : before) {
        if (std::ranges::find(going_, arm) == going_.end()) stopped.push_back(arm);
      }
      if (stopped.empty()) continue;
      print_note("look {} of {}: {} {}\n", look_idx_ + 1, run_.protocol.looks.fractions.size(), join_arms(stopped),
                 stopped.size() == 1 ? "stops" : "stop");
    }
    return going_;
  }

  // The answers of a unit's slots, and all arms' lines in run order.
  std::vector<std::string> take(const Unit& unit, std::vector<std::vector<Outcome>> outcomes) {
    std::vector<std::string> lines(run_.arms.size());
    for (size_t slot = 0; slot < unit.slots.size(); ++slot) {
      const auto arm = static_cast<size_t>(std::ranges::find(run_.arms, unit.slots[slot].arm) - run_.arms.begin());
      for (Outcome& outcome : outcomes[slot]) {
        lines[arm] += canonical_json(outcome_to_json(outcome)) + '\n';
        run_.outcomes[arm].push_back(std::move(outcome));
      }
    }
    return lines;
  }

 private:
  Run run_;
  std::vector<ArmId> going_;
  int64_t look_idx_ = 0;
};

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

std::vector<Outcome> read_arm(const std::filesystem::path& folder, ArmId arm, const std::vector<Case>& cases) {
  const auto path = run_files::outcomes_path(folder, arm);
  std::vector<Outcome> outcomes = read_outcomes(path, arm);
  for (size_t i = 0; i < std::min(outcomes.size(), cases.size()); ++i) {
    if (outcomes[i].case_id == cases[i].id && outcomes[i].panel == cases[i].panel) continue;
    throw_bad_input("{}:{}: the line answers {} of {}, but case {} of {} is due there", path.string(), i + 1,
                    outcomes[i].case_id, outcomes[i].panel, cases[i].id, cases[i].panel);
  }
  if (outcomes.size() > cases.size()) throw_bad_input("{} answers more than {} cases", path.string(), cases.size());
  return outcomes;
}

// The units of a finished run: those of every look that some arm had to answer.
int64_t units_due(const std::vector<int64_t>& due, const std::vector<Unit>& plan) {
  const int64_t most = std::ranges::max(due);
  int64_t units = 0, cases = 0;
  for (const Unit& unit : plan) {
    cases += std::ssize(unit.cases);
    units += cases <= most ? 1 : 0;
  }
  return units;
}

// Protocol, header and cases; no outcome yet.
Run read_description(const std::filesystem::path& folder) {
  Run run;
  const auto protocol_path = folder / run_files::kProtocol;
  run.protocol = protocol_from_json(read_json_file(protocol_path), protocol_path.string());
  run.protocol_sha256 = sha256_file_hex(protocol_path);
  const auto header_path = folder / run_files::kRun;
  run_files::Header header = run_files::header_from_json(read_json_file(header_path), header_path.string());
  if (!header.shard.is_whole()) {
    throw_bad_input("{} is shard {} of a run: merge all {} of them (asymkv gate merge OUT DIR...)", folder.string(),
                    shard_name(header.shard), header.shard.count);
  }
  run.identity = std::move(header.identity);
  run.mode = header.mode;
  run.cache = header.cache;
  run.arms = std::move(header.arms);
  run.cases = read_cases(folder / run_files::kCases);
  return run;
}

// The next unit of a panel: cases from `next` on, which is moved past them.
Unit next_unit(const PanelPlan& panel, std::span<const Case> asked, size_t& next) {
  Unit unit;
  unit.panel = panel.name;
  unit.kind = asked[next].kind;
  unit.generation = panel.generation;
  while (next < asked.size() && asked[next].panel == panel.name && std::ssize(unit.cases) < panel.cases_per_unit) {
    unit.cases.push_back(asked[next++]);
  }
  return unit;
}

// Every arm answered what the protocol's looks ask of it.
void check_answered(const std::filesystem::path& folder, const Run& run, const std::vector<int64_t>& due) {
  for (size_t i = 0; i < run.arms.size(); ++i) {
    if (std::ssize(run.outcomes[i]) == due[i]) continue;
    throw_bad_input("{} answers {} of {} cases: resume the run", run_files::outcomes_path(folder, run.arms[i]).string(),
                    run.outcomes[i].size(), due[i]);
  }
}

}  // namespace

std::vector<Unit> plan_units(const Protocol& protocol, const std::vector<Case>& cases, const std::vector<ArmId>& arms) {
  const std::vector<ArmId> slots = with_noise_floor(protocol, arms);
  const std::vector<PanelPlan> panels = panel_plans(protocol);
  for (const PanelPlan& panel : panels) {
    if (std::ranges::find(cases, panel.name, &Case::panel) != cases.end()) continue;
    throw_bad_input("no case belongs to panel {} of the protocol", panel.name);
  }
  std::vector<Unit> units;
  const std::vector<int64_t> ends = plan_looks(protocol, cases).case_ends;
  size_t next = 0;
  for (size_t look = 0; look < ends.size(); ++look) {
    const std::span<const Case> asked = std::span(cases).first(static_cast<size_t>(ends[look]));
    for (const PanelPlan& panel : panels) {
      while (next < asked.size() && asked[next].panel == panel.name) {
        units.push_back(next_unit(panel, asked, next));
        units.back().index = std::ssize(units) - 1;
        units.back().look_idx = static_cast<int64_t>(look);
        units.back().slots = make_slots(slots, std::ssize(units.back().cases));
      }
    }
    if (next == asked.size()) continue;
    throw_bad_input("case {} of panel {} is not in the protocol's order", cases[next].id, cases[next].panel);
  }
  return units;
}

std::vector<Unit> plan_shard(std::vector<Unit> units, const Shard& shard) {
  std::erase_if(units, [&](const Unit& unit) { return unit.index % shard.count != shard.index - 1; });
  return units;
}

void require_same_run(const RunRequest& request) {
  require_same_files(request, with_noise_floor(request.protocol, request.arms));
}

RunSummary run_panels(const RunRequest& request, CaseRunner& runner) {
  const std::vector<ArmId> arms = with_noise_floor(request.protocol, request.arms);
  if (!request.shard.is_whole() && request.protocol.looks != Looks()) {
    throw_usage("shard {}: protocol {} has looks, and a look needs every answer before it: run it whole",
                shard_name(request.shard), request.protocol.name);
  }
  std::vector<Unit> units = plan_units(request.protocol, request.cases, request.arms);
  if (request.shard.count > std::ssize(units)) {
    throw_usage("shard {}: the run has {} units of work, fewer than shards: cut it into {} or fewer",
                shard_name(request.shard), units.size(), units.size());
  }
  const std::vector<Unit> plan = plan_shard(std::move(units), request.shard);
  RunWriter writer(request, plan, arms);
  RunSummary summary{std::ssize(plan), writer.units_done(), writer.repairs()};
  runner.begin(summary);
  ActiveArms active(request, arms);
  PanelProgress progress(plan);
  for (auto i = static_cast<size_t>(writer.units_done()); i < plan.size(); ++i) {
    const std::vector<ArmId>& going = active.at(plan[i].look_idx);
    if (going.empty()) break;
    Unit unit = plan[i];
    std::erase_if(unit.slots, [&](const ArmSlot& slot) { return std::ranges::find(going, slot.arm) == going.end(); });
    progress.start(unit);
    // A unit that is interrupted is not committed: a resumed run begins it again.
    auto raw = run_unless_interrupted("finished work is on disk: run the same command with --resume",
                                      [&] { return runner.run_unit(unit); });
    auto outcomes = score_unit(unit, std::move(raw), deciding_parser(request.protocol));
    writer.commit(unit, active.take(unit, std::move(outcomes)));
    progress.finish(unit);
  }
  return summary;
}

std::string shard_name(const Shard& shard) {
  return fmt::format("{}/{}", shard.index, shard.count);
}

Shard parse_shard(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos) {
    const auto index = parse_number<int64_t>(text.substr(0, slash));
    const auto count = parse_number<int64_t>(text.substr(slash + 1));
    // Written back, so that 02/7 is not a second name of 2/7.
    const Shard shard{index.value_or(0), count.value_or(0)};
    if (shard.index >= 1 && shard.index <= shard.count && shard_name(shard) == text) return shard;
  }
  throw_usage("shard \"{}\" must be i/n with i from 1 to n, for example 2/7", text);
}

Run read_evidence(const std::filesystem::path& folder) {
  Run run = read_description(folder);
  for (const ArmId arm : run.arms) run.outcomes.push_back(read_arm(folder, arm, run.cases));
  check_answered(folder, run, cases_due(run));
  return run;
}

Run read_run(const std::filesystem::path& folder) {
  const auto header_path = folder / run_files::kRun;
  const run_files::Header header = run_files::header_from_json(read_json_file(header_path), header_path.string());
  run_files::check_hash(folder / run_files::kProtocol, header.protocol_sha256);
  run_files::check_hash(folder / run_files::kCases, header.cases_sha256);
  Run run = read_description(folder);
  std::vector<ArmId> asked = run.arms;
  std::erase(asked, ArmId::kN2);
  const std::vector<Unit> plan = plan_units(run.protocol, run.cases, asked);
  const auto progress_path = folder / run_files::kProgress;
  const auto commits = run_files::parse_commits(run_files::progress_lines(progress_path), progress_path, plan);
  run_files::read_commits(folder, run.arms, commits);
  for (const ArmId arm : run.arms) run.outcomes.push_back(read_arm(folder, arm, run.cases));
  const std::vector<int64_t> due = cases_due(run);
  if (const int64_t units = units_due(due, plan); std::ssize(commits) != units) {
    throw_bad_input("{} has finished {} of {} units: resume the run", folder.string(), commits.size(), units);
  }
  check_answered(folder, run, due);
  return run;
}

}  // namespace asymkv
