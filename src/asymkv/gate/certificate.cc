#include "asymkv/gate/certificate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "asymkv/base/error.h"
#include "asymkv/base/hash.h"
#include "asymkv/gate/run_files.h"

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

// What an arm made of each panel, apart from any comparison.
Json panels_to_json(const std::vector<Outcome>& outcomes) {
  Json panels = Json::object();
  std::map<std::string, double> nll;
  for (const Outcome& outcome : outcomes) {
    Json& panel = panels[outcome.panel];
    if (panel.is_null()) panel = {{"cases", 0}, {"correct", 0}, {"failed", 0}, {"truncated", 0}};
    const auto count = [&panel](const char* field, bool one) {
      panel[field] = panel[field].get<int64_t>() + (one ? 1 : 0);
    };
    count("cases", true);
    count("correct", outcome.correct);
    count("failed", outcome.failed);
    count("truncated", outcome.truncated);
    if (outcome.scored_tokens > 0) nll[outcome.panel] += outcome.nll;
  }
  for (const auto& [name, sum] : nll) {
    Json& panel = panels[name];
    panel["mean_nll"] = sum / static_cast<double>(panel["cases"].get<int64_t>() - panel["failed"].get<int64_t>());
    panel.erase("correct");
    panel.erase("truncated");
  }
  return panels;
}

Json optional_int(const std::optional<int64_t>& value) {
  return value ? Json(*value) : Json();
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
  json["needed_cases"] = optional_int(judgement.needed);
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
    const stats::LeaveOneOut& without = *judgement.leave_one_out;
    json["leave_one_out"] = {{"lowest_pct", 100.0 * without.lowest},
                             {"highest_pct", 100.0 * without.highest},
                             {"most_moving_case", judgement.most_moving_case},
                             {"without_it_pct", 100.0 * without.without_it}};
  }
  json["document_deltas"] = judgement.document_deltas;
  json["verdict"] = verdict_name(judgement.verdict);
  return json;
}

Json format_to_json(ArmId arm, DType native) {
  const KvFormat format = arm_format(arm, native);
  return {{"key", format.key.id()},
          {"value", format.value.id()},
          {"scale", scale_kind_name(format.scale())},
          {"query", arm_query(arm)}};
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

int64_t bytes_of(const ArmBytes& bytes, ArmId arm) {
  const auto it = bytes.find(arm);
  ASYMKV_CHECK(it != bytes.end() && it->second > 0, "no bytes per token of arm {}", arm_name(arm));
  return it->second;
}

void check_equal_bytes(const Run& run, const ArmBytes& bytes) {
  for (const ArmId arm : run.arms) {
    const auto twin = equal_bytes_arm(arm);
    if (!twin || std::ranges::find(run.arms, *twin) == run.arms.end()) continue;
    ASYMKV_CHECK(bytes_of(bytes, arm) == bytes_of(bytes, *twin), "{} stores {} bytes a token, {} stores {}",
                 arm_name(arm), bytes_of(bytes, arm), arm_name(*twin), bytes_of(bytes, *twin));
  }
}

Json file_hash_or_null(const std::filesystem::path& path) {
  return std::filesystem::exists(path) ? Json(sha256_file_hex(path)) : Json();
}

}  // namespace

Json arm_judgement_to_json(const ArmJudgement& judgement) {
  Json json = {{"control", arm_name(judgement.control)},
               {"certified", judgement.certified},
               {"preservation", {{"verdict", verdict_name(judgement.preservation)}}},
               {"aggregate", {{"verdict", verdict_name(judgement.aggregate)}}},
               {"retrieval", Json::object()},
               {"loss", Json::object()}};
  if (judgement.num_looks > 1) json["look"] = {{"at", judgement.look}, {"of", judgement.num_looks}};
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
  check_equal_bytes(run, inputs.bytes_per_token);
  Json arms = Json::object();
  Json outcome_hashes = Json::object();
  for (size_t i = 0; i < run.arms.size(); ++i) {
    const ArmId arm = run.arms[i];
    const std::string name(arm_name(arm));
    outcome_hashes[name] = sha256_file_hex(run_files::outcomes_path(inputs.folder, arm));
    if (arm == ArmId::kN2) continue;
    arms[name] = {{"format", format_to_json(arm, native)},
                  {"bytes_per_token", bytes_of(inputs.bytes_per_token, arm)},
                  {"panels", panels_to_json(run.outcomes[i])}};
  }
  for (const ArmJudgement& judged : inputs.judgement.arms) {
    arms[std::string(arm_name(judged.arm))]["vs"][std::string(arm_name(judged.control))] =
        arm_judgement_to_json(judged);
  }
  Json certificate = {{"schema", "asymkv.certificate/1"},
                      {"protocol", protocol_to_json(run.protocol)},
                      {"protocol_sha256", run.protocol_sha256},
                      {"alpha_per_bound", inputs.judgement.alpha},
                      {"identity", identity_to_json(run.identity)},
                      {"probe", probe_to_json(inputs.probe)},
                      {"arms", std::move(arms)},
                      {"cases_sha256", sha256_file_hex(inputs.folder / run_files::kCases)},
                      {"scales_file_sha256", file_hash_or_null(inputs.folder / run_files::kScales)},
                      {"outcomes_sha256", std::move(outcome_hashes)}};
  if (run.protocol.looks != Looks()) certificate["look_levels"] = run.protocol.look_levels();
  certificate["noise_floor"] =
      inputs.judgement.noise_floor ? arm_judgement_to_json(*inputs.judgement.noise_floor) : Json();
  return certificate;
}

std::string certificate_bytes(const Json& certificate) {
  return canonical_json(certificate) + "\n";
}

}  // namespace asymkv
