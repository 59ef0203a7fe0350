#include "asymkv/gate/certificate.h"

#include <fmt/format.h>

#include <algorithm>

#include "asymkv/base/hash.h"

namespace asymkv {
namespace {

using stats::verdict_name;
using stats::verdict_words;

Json pairs_to_json(const PanelPairs& pairs) {
  return {{"panel", pairs.panel},
          {"cases", pairs.cases},
          {"n", pairs.counts.n},
          {"lost", pairs.counts.lost},
          {"gained", pairs.counts.gained},
          {"control_correct", pairs.control_correct},
          {"candidate_correct", pairs.candidate_correct},
          {"failed_control", pairs.failed_control},
          {"failed_candidate", pairs.failed_candidate},
          {"truncated_control", pairs.truncated_control},
          {"truncated_candidate", pairs.truncated_candidate}};
}

void add_gross_bound(Json& json, const stats::GrossLossVerdict& bound) {
  json["alpha"] = bound.alpha;
  json["gross_loss_pct"] = 100.0 * bound.gross_loss;
  json["upper_pct"] = 100.0 * bound.upper;
  json["lower_pct"] = 100.0 * bound.lower;
  json["limit_pct"] = 100.0 * bound.limit;
  json["bound_verdict"] = verdict_name(bound.verdict);
}

Json retrieval_to_json(const RetrievalJudgement& judgement) {
  Json json = pairs_to_json(judgement.pairs);
  json["native_floor_pct"] = 100.0 * judgement.native_floor;
  if (judgement.bound) add_gross_bound(json, *judgement.bound);
  json["verdict"] = verdict_name(judgement.verdict);
  return json;
}

Json loss_to_json(const LossJudgement& judgement) {
  Json json = {{"panel", judgement.panel}, {"documents", judgement.documents}, {"failed", judgement.failed}};
  if (judgement.bound) {
    const stats::LossRatio& ratio = judgement.bound->ratio;
    json["ratio_minus_1_pct"] = 100.0 * ratio.ratio_minus_1;
    json["upper_pct"] = 100.0 * ratio.upper;
    json["lower_pct"] = 100.0 * ratio.lower;
    json["limit_pct"] = 100.0 * judgement.bound->limit;
    json["alpha"] = ratio.options.alpha;
    json["resamples"] = ratio.options.resamples;
    json["seed"] = ratio.options.seed;
    json["largest_document_share"] = ratio.largest_delta_share;
  }
  json["document_deltas"] = judgement.document_deltas;
  json["verdict"] = verdict_name(judgement.verdict);
  return json;
}

Json optional_int(const std::optional<int64_t>& value) {
  return value ? Json(*value) : Json();
}

Json format_to_json(ArmId arm, DType native) {
  const KvFormat format = arm_format(arm, native);
  return {{"key", format.key.id()}, {"value", format.value.id()}, {"scale", scale_kind_name(format.scale())}};
}

Json identity_to_json(const RunIdentity& identity) {
  return {{"model", identity.model},
          {"model_sha256", identity.model_sha256},
          {"config_sha256", identity.config_sha256},
          {"tokenizer_sha256", identity.tokenizer_sha256},
          {"build", identity.build},
          {"worker", identity.worker},
          {"native_dtype", identity.native_dtype},
          {"scales_sha256", identity.scales_sha256}};
}

}  // namespace

Json arm_judgement_to_json(const ArmJudgement& judgement) {
  Json json = {{"control", arm_name(judgement.control)},
               {"certified", judgement.certified},
               {"preservation", {{"verdict", verdict_name(judgement.preservation)}}},
               {"aggregate", {{"verdict", verdict_name(judgement.aggregate)}}},
               {"retrieval", Json::object()},
               {"loss", Json::object()}};
  for (const RetrievalJudgement& panel : judgement.retrieval) {
    json["retrieval"][std::to_string(panel.length)] = retrieval_to_json(panel);
  }
  for (const LossJudgement& panel : judgement.loss) {
    json["loss"][std::to_string(panel.document_tokens)] = loss_to_json(panel);
  }
  if (!judgement.math) return json;
  const MathJudgement& math = *judgement.math;
  Json& preservation = json["preservation"];
  preservation["math"] = pairs_to_json(math.pairs);
  preservation["math"]["verdict"] = verdict_name(math.preservation);
  preservation["math"]["native_floor_pct"] = 100.0 * math.native_floor;
  preservation["math"]["needed_cases"] = optional_int(math.preservation_needed);
  if (math.preservation_bound) add_gross_bound(preservation["math"], *math.preservation_bound);
  Json& aggregate = json["aggregate"];
  aggregate["math"] = pairs_to_json(math.pairs);
  aggregate["math"]["verdict"] = verdict_name(math.aggregate);
  aggregate["math"]["needed_cases"] = optional_int(math.aggregate_needed);
  aggregate["math"]["other_parser"] = {{"control_correct", math.pairs.alt_control_correct},
                                       {"candidate_correct", math.pairs.alt_candidate_correct}};
  if (math.aggregate_bound) {
    aggregate["math"]["alpha"] = math.aggregate_bound->alpha;
    aggregate["math"]["net_pp"] = 100.0 * math.aggregate_bound->net_change;
    aggregate["math"]["lower_pp"] = 100.0 * math.aggregate_bound->lower;
    aggregate["math"]["upper_pp"] = 100.0 * math.aggregate_bound->upper;
    aggregate["math"]["margin_pp"] = 100.0 * math.aggregate_bound->margin;
    aggregate["math"]["bound_verdict"] = verdict_name(math.aggregate_bound->verdict);
  }
  return json;
}

Json make_certificate(const CertificateInputs& inputs) {
  const Run& run = inputs.run;
  const DType native = parse_dtype(run.identity.native_dtype);
  Json arms = Json::object();
  Json outcome_hashes = Json::object();
  for (const ArmId arm : run.arms) {
    const std::string name(arm_name(arm));
    outcome_hashes[name] = sha256_file_hex(inputs.folder / "outcomes" / (name + ".jsonl"));
    if (arm == ArmId::kN2) continue;
    arms[name] = {{"format", format_to_json(arm, native)}, {"bytes_per_token", inputs.bytes_per_token.at(arm)}};
  }
  for (const ArmJudgement& judged : inputs.judgement.arms) {
    arms[std::string(arm_name(judged.arm))]["vs"] = {
        {std::string(arm_name(judged.control)), arm_judgement_to_json(judged)}};
  }
  Json certificate = {{"schema", "asymkv.certificate/1"},
                      {"protocol", protocol_to_json(run.protocol)},
                      {"protocol_sha256", run.protocol_sha256},
                      {"alpha_per_bound", inputs.judgement.alpha},
                      {"identity", identity_to_json(run.identity)},
                      {"probe", probe_to_json(inputs.probe)},
                      {"arms", std::move(arms)},
                      {"cases_sha256", sha256_file_hex(inputs.folder / "cases.jsonl")},
                      {"outcomes_sha256", std::move(outcome_hashes)}};
  certificate["noise_floor"] =
      inputs.judgement.noise_floor ? arm_judgement_to_json(*inputs.judgement.noise_floor) : Json();
  return certificate;
}

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

std::vector<std::string> table_row(const ArmJudgement& arm, const ArmBytes& bytes) {
  const bool noise = arm.arm == ArmId::kN2;
  std::vector<std::string> row = {std::string(arm_name(arm.arm)),
                                  noise ? "native again (noise floor)" : arm_description(arm.arm)};
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
  row.push_back(noise ? "" : std::string(verdict_words(arm.preservation)));
  row.push_back(noise ? "" : std::string(verdict_words(arm.aggregate)));
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

}  // namespace

std::string render_table(const Run& run, const Judgement& judgement, const ArmBytes& bytes,
                         const PolicyDecision& policy) {
  std::vector<std::string> header = {"arm", "stored keys/values", "saves"};
  for (const RetrievalPanel& panel : run.protocol.retrieval)
    header.push_back(fmt::format("retr {} lost, <=", panel.length));
  if (run.protocol.math) header.emplace_back("math lost gained, <=");
  header.insert(header.end(), {"loss, <=", "preservation", "aggregate"});
  std::vector<std::vector<std::string>> rows = {std::move(header)};
  if (judgement.noise_floor) rows.push_back(table_row(*judgement.noise_floor, bytes));
  for (const ArmJudgement& arm : judgement.arms) rows.push_back(table_row(arm, bytes));
  std::string text = format_rows(rows) + native_line(run, judgement);
  for (const ArmJudgement& arm : judgement.arms) {
    if (arm.math && arm.preservation == stats::Verdict::kNotEstablished && arm.math->preservation_needed) {
      text += fmt::format("{}: preservation needs about n = {} math cases at the observed rate\n", arm_name(arm.arm),
                          *arm.math->preservation_needed);
    }
  }
  text += fmt::format("policy ({}): {}: {}\n", policy_mode_name(policy.mode), tier_name(policy.tier), policy.reason);
  for (const CapacityOption& option : policy.capacity_options) {
    text += fmt::format("capacity option: {} ({}), {:.1f}% fewer bytes: certified, its serving gate has not run\n",
                        arm_name(option.arm), arm_description(option.arm), option.saved_pct);
  }
  return text;
}

}  // namespace asymkv
