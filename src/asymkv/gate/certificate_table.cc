#include <fmt/format.h>

#include <algorithm>

#include "asymkv/gate/certificate.h"

// The terminal table of a run.
namespace asymkv {
namespace {

// "3/200 <=5.1%" or "-" without a bound.
std::string retrieval_cell(const RetrievalJudgement& panel) {
  if (!panel.bound) return "-";
  return fmt::format("{}/{} {:.1f}%", panel.pairs.counts.lost, panel.pairs.counts.n, 100.0 * panel.bound->upper);
}

std::string loss_cell(const std::vector<LossJudgement>& panels) {
  std::string cell;
  for (const LossJudgement& panel : panels) {
    if (!cell.empty()) cell += " ";
    cell += panel.bound ? fmt::format("{:+.2f}% {:+.2f}%", 100.0 * panel.bound->ratio.ratio_minus_1,
                                      100.0 * panel.bound->ratio.upper)
                        : "-";
  }
  return cell;
}

// "AD", where a protocol has several controls "AD vs NR", and where it has looks "AD (look 2/4)".
std::string arm_cell(const Run& run, const ArmJudgement& arm) {
  const bool several = run.protocol.controls.size() > 1;
  std::string cell(arm_name(arm.arm));
  if (several) cell += fmt::format(" vs {}", arm_name(arm.control));
  if (arm.num_looks > 1) cell += fmt::format(" (look {}/{})", arm.look, arm.num_looks);
  return cell;
}

std::vector<std::string> table_row(const Run& run, const ArmJudgement& arm, const ArmBytes& bytes) {
  const bool noise = arm.arm == ArmId::kN2;
  std::vector<std::string> row = {arm_cell(run, arm), noise ? "native again (noise floor)" : arm_description(arm.arm)};
  const auto native_bytes = static_cast<double>(bytes.at(ArmId::kN));
  row.push_back(noise ? ""
                      : fmt::format("{:.1f}%", 100.0 * (1.0 - static_cast<double>(bytes.at(arm.arm)) / native_bytes)));
  for (const RetrievalJudgement& panel : arm.retrieval) row.push_back(retrieval_cell(panel));
  if (arm.math) {
    const PanelPairs& pairs = arm.math->pairs;
    row.push_back(arm.math->preservation_bound ? fmt::format("-{} +{} {:.2f}%", pairs.counts.lost, pairs.counts.gained,
                                                             100.0 * arm.math->preservation_bound->upper)
                                               : "-");
  }
  row.push_back(loss_cell(arm.loss));
  row.push_back(noise ? "" : std::string(stats::verdict_words(arm.preservation)));
  row.push_back(noise ? "" : std::string(stats::verdict_words(arm.aggregate)));
  return row;
}

std::string format_rows(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> width(rows[0].size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], width[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string native_line(const Run& run, const Judgement& judgement) {
  if (judgement.arms.empty()) return "";
  std::string line = "native accuracy:";
  for (const RetrievalJudgement& panel : judgement.arms[0].retrieval) {
    line += fmt::format(" retrieval {} {}/{},", panel.length, panel.pairs.control_correct, panel.pairs.counts.n);
  }
  if (const auto& math = judgement.arms[0].math) {
    line += fmt::format(" math {}/{} (floor {:.0f}%)", math->pairs.control_correct, math->pairs.counts.n,
                        100.0 * math->native_floor);
  }
  if (line.ends_with(',')) line.pop_back();
  return line + fmt::format("; protocol {} ({}), alpha {:.4g} per bound\n", run.protocol.name,
                            protocol_class_name(run.protocol.protocol_class), judgement.alpha);
}

constexpr int64_t kMostNamed = 100'000;  // a longer run is no advice

// "AD: at the observed rates a pass needs about n = 109 (retrieval 1024), 500 (preservation)", or nothing.
std::string needed_line(const Run& run, const ArmJudgement& arm) {
  // No number of cases helps an arm that is shown to lose too much.
  if (arm.preservation == stats::Verdict::kDegraded && arm.aggregate == stats::Verdict::kDegraded) return {};
  std::string list;
  const auto add = [&list](const std::optional<int64_t>& needed, const std::string& what) {
    if (!needed) return;
    const std::string count =
        *needed > kMostNamed ? fmt::format("more than {}", kMostNamed) : fmt::format("{}", *needed);
    list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", count, what);
  };
  for (const RetrievalJudgement& panel : arm.retrieval) add(panel.needed, fmt::format("retrieval {}", panel.length));
  if (arm.math) {
    add(arm.math->preservation_needed, "math, preservation");
    add(arm.math->aggregate_needed, "math, aggregate");
  }
  if (list.empty()) return {};
  return fmt::format("{}: at the observed rates a pass needs about n = {}\n", arm_cell(run, arm), list);
}

}  // namespace

std::string render_table(const Run& run, const Judgement& judgement, const ArmBytes& bytes,
                         const PolicyDecision& policy) {
  std::vector<std::string> header = {"arm", "stored keys/values", "saves"};
  // In parentheses what a pass allows.
  for (const RetrievalPanel& panel : run.protocol.retrieval)
    header.push_back(fmt::format("retr {} lost, <= ({:.3g}%)", panel.length, 100.0 * panel.limit));
  const Margins& margins = run.protocol.margins;
  if (run.protocol.math)
    header.push_back(fmt::format("math lost gained, <= ({:.3g}%)", 100.0 * margins.preservation_limit));
  header.insert(header.end(),
                {fmt::format("loss, <= ({:+.3g}%)", 100.0 * margins.loss_limit), "preservation", "aggregate"});
  std::vector<std::vector<std::string>> rows = {std::move(header)};
  if (judgement.noise_floor) rows.push_back(table_row(run, *judgement.noise_floor, bytes));
  for (const ArmJudgement& arm : judgement.arms) rows.push_back(table_row(run, arm, bytes));
  std::string text = format_rows(rows) + native_line(run, judgement);
  for (const ArmJudgement& arm : judgement.arms) {
    text += needed_line(run, arm);
  }
  text += fmt::format("policy ({}): {}: {}\n", policy_mode_name(policy.mode), tier_name(policy.tier), policy.reason);
  for (const CapacityOption& option : policy.capacity_options) {
    text += fmt::format(
        "capacity option: {} ({}), {:.1f}% fewer bytes than native: certified, its serving gate has not run\n",
        arm_name(option.arm), arm_description(option.arm), option.saved_pct);
  }
  return text;
}

}  // namespace asymkv
