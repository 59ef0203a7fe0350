#include "asymkv/gate/judgement_testkit.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/gate/looks.h"
#include "asymkv/gate/merge.h"
#include "asymkv/gate/score.h"

namespace asymkv::gate_testkit {
namespace {

// Scales of the test model, and their hash as run.json names it.
Json test_scales() {
  return {{"schema", "asymkv.scales/1"},
          {"model_weights_sha256", ""},
          {"data_sha256", ""},
          {"layers", {{{"key", 0.5}, {"value", 0.25}}, {{"key", 0.75}, {"value", 0.125}}}}};
}

std::string answer_text(const Case& asked, bool right) {
  if (asked.kind == PanelKind::kMath) return fmt::format("So it is.\n#### {}", right ? asked.expected : "-1");
  return right ? asked.expected : "00000";
}

// Place of each case in its panel.
std::map<std::string, int64_t> panel_places(const std::vector<Case>& cases, std::map<std::string, int64_t>& sizes) {
  std::map<std::string, int64_t> places;
  for (const Case& value : cases) places[value.id] = sizes[value.panel]++;
  return places;
}

class PlannedRunner : public CaseRunner {
 public:
  PlannedRunner(const RunPlan& plan, const std::vector<Case>& cases)
      : plan_(plan), places_(panel_places(cases, sizes_)) {}

  RawOutcome answer(const Case& asked, ArmId arm) const {
    RawOutcome raw;
    raw.arm = arm;
    const ArmPlan* arm_plan = plan_.arms.contains(arm) ? &plan_.arms.at(arm) : nullptr;
    PanelPlan panel;
    if (arm_plan != nullptr && arm_plan->panels.contains(asked.panel)) panel = arm_plan->panels.at(asked.panel);
    const int64_t place = places_.at(asked.id), size = sizes_.at(asked.panel);
    if (place >= size - panel.failed) {
      raw.failure = "a logit was not finite";
      return raw;
    }
    if (asked.kind == PanelKind::kLoss) {
      const double wave = 1.0 + 0.3 * static_cast<double>(place % 5 - 2);
      const double native = 1.5 + 0.05 * static_cast<double>(place % 7);
      raw.nll = native * (1.0 + (arm_plan != nullptr ? arm_plan->loss_ratio * wave : 0.0));
      raw.scored_tokens = asked.scored_tokens;
      return raw;
    }
    const int64_t native_correct =
        plan_.native_correct.contains(asked.panel) ? plan_.native_correct.at(asked.panel) : size;
    const bool right = place < native_correct ? place >= panel.lost : place < native_correct + panel.gained;
    raw.text = answer_text(asked, right);
    raw.tokens = 5;
    raw.truncated = place < panel.truncated;
    return raw;
  }

  std::vector<RawOutcome> run_unit(const Unit& unit) override {
    std::vector<RawOutcome> raws;
    for (const ArmSlot& slot : unit.slots) {
      for (const int64_t i : slot.order) {
        raws.push_back(answer(unit.cases[static_cast<size_t>(i)], slot.arm));
        raws.back().case_idx = i;
      }
    }
    return raws;
  }

 private:
  const RunPlan& plan_;
  std::map<std::string, int64_t> sizes_;
  std::map<std::string, int64_t> places_;
};

std::vector<ArmId> asked_arms(const RunPlan& plan) {
  std::vector<ArmId> arms = {ArmId::kN};
  for (const auto& [arm, unused] : plan.arms) {
    if (arm != ArmId::kN && arm != ArmId::kN2) arms.push_back(arm);
  }
  return arms;
}

void add_cases(const std::string& panel, int64_t count, Case sample, int64_t depths, std::vector<Case>& cases) {
  for (int64_t i = 0; i < count; ++i) {
    sample.id = fmt::format("{}/{:04}", panel, i);
    sample.panel = panel;
    sample.depth = static_cast<double>(i % depths) / static_cast<double>(depths);
    cases.push_back(sample);
  }
}

}  // namespace

RunIdentity test_identity() {
  return {.model = "tiny-fragile",
          .model_sha256 = std::string(64, 'a'),
          .config_sha256 = std::string(64, 'b'),
          .tokenizer_sha256 = std::string(64, 'c'),
          .build = "0123abcd",
          .worker = "cpu/avx512",
          .native_dtype = "bf16",
          .scales_sha256 = sha256_hex(canonical_json(test_scales()))};
}

CacheShape test_cache() {
  return {2, {.num_kv_heads = 2, .k_head_dim = 128, .v_head_dim = 128, .page_size = 16}};
}

Protocol test_protocol(int64_t math_cases, int64_t divisor) {
  Protocol p = builtin_protocol("builtin");
  p.name = "test";
  p.divisor = divisor;
  // Of its own, so that a retuned builtin protocol changes no expectation.
  p.retrieval.at(0).count = 132;
  p.retrieval.at(0).depths = 22;
  p.retrieval.at(0).limit = 0.05;
  p.retrieval.at(1).count = 32;
  p.retrieval.at(1).depths = 16;
  p.retrieval.at(1).limit = 0.20;
  p.loss.at(0).documents = 24;
  p.math->count = math_cases;
  p.bootstrap_resamples = 2000;
  return p;
}

std::vector<Case> make_test_cases(const Protocol& protocol) {
  std::vector<Case> cases;
  Case needle;
  needle.kind = PanelKind::kRetrieval;
  needle.context = "The code is 12345.";
  needle.question = "What is it?";
  needle.expected = "12345";
  for (const RetrievalPanel& panel : protocol.retrieval) {
    needle.length = panel.length;
    add_cases(panel.name(), panel.count, needle, panel.depths, cases);
  }
  Case problem;
  problem.kind = PanelKind::kMath;
  problem.context = "Three and four?";
  problem.expected = "7";
  if (protocol.math) add_cases(protocol.math->name(), protocol.math->count, problem, 1, cases);
  Case document;
  document.kind = PanelKind::kLoss;
  document.context = "Once upon a time";
  for (const LossPanel& panel : protocol.loss) {
    document.length = panel.document_tokens;
    document.scored_tokens = panel.scored_tokens;
    add_cases(panel.name(), panel.documents, document, 1, cases);
  }
  return order_by_looks(protocol, std::move(cases));
}

Run make_run(const RunPlan& plan) {
  Run run;
  run.protocol = plan.protocol;
  run.protocol_sha256 = protocol_sha256(plan.protocol);
  run.identity = plan.identity;
  run.mode = plan.mode;
  run.cache = test_cache();
  run.arms = asked_arms(plan);
  if (plan.protocol.noise_floor) run.arms.insert(run.arms.begin() + 1, ArmId::kN2);
  run.cases = make_test_cases(plan.protocol);
  const PlannedRunner runner(plan, run.cases);
  const AnswerParser parser = plan.protocol.math ? plan.protocol.math->parser : AnswerParser::kStrict;
  for (const ArmId arm : run.arms) {
    std::vector<Outcome>& outcomes = run.outcomes.emplace_back();
    for (const Case& asked : run.cases) outcomes.push_back(score_outcome(asked, runner.answer(asked, arm), parser));
  }
  return run;
}

namespace {

SideFacts make_side(const std::string& format, ScaleKind scale, int64_t page_bytes, int64_t scale_bytes) {
  SideFacts side;
  side.requested = side.resolved = format;
  side.allocated = {format, std::string(scale_kind_name(scale)), page_bytes, scale_bytes, 6 * page_bytes};
  side.launched = {{"cpu-fake", "decode:fake", format, test_identity().build, 1'000'000}};
  return side;
}

}  // namespace

AdmissionRecord make_record(const Run& run) {
  AdmissionRecord record;
  for (const ArmId arm : run.arms) {
    const KvFormat format = arm_format(arm, parse_dtype(run.identity.native_dtype));
    const PageBytes page = KvLayout(run.cache.layer, format).page_bytes();
    Record& facts = record.arms[arm];
    facts.key = make_side(format.key.id(), format.key.scale, page.k_payload, page.k_scales);
    facts.value = make_side(format.value.id(), format.value.scale, page.v_payload, page.v_scales);
    for (SideFacts* side : {&facts.key, &facts.value}) {
      side->launched[0].build = run.identity.build;
      if (arm_query_dtype(arm)) side->launched[0].instance = launch_instance("decode", "fake", arm_query(arm));
      if (arm_uses_control_kernels(arm)) side->launched[0].family = "ref";
    }
    facts.model = {run.identity.model,         "",
                   run.identity.model_sha256,  run.identity.tokenizer_sha256,
                   run.identity.config_sha256, run.identity.native_dtype};
    const ScaleKind kind = format.scale();
    facts.scales.source = kind == ScaleKind::kFixed ? "calibrated" : std::string(scale_kind_name(kind));
    if (kind == ScaleKind::kFixed) facts.scales.sha256 = run.identity.scales_sha256;
    if (format.key.prebias) facts.transform = {"key_bias_removed", std::string(64, 'e')};
    facts.layout = {"plain-1", run.cache.layer.page_size};
    facts.worker =
        arm_uses_control_kernels(arm) ? "ref" : run.identity.worker.substr(0, run.identity.worker.find(kControlMark));
    facts.build.hash = run.identity.build;
    facts.protocol_sha256 = run.protocol_sha256;
  }
  return record;
}

void write_run(const RunPlan& plan, const std::filesystem::path& folder) {
  const std::vector<Case> cases = make_test_cases(plan.protocol);
  PlannedRunner runner(plan, cases);
  RunRequest request;
  request.folder = folder;
  request.protocol = plan.protocol;
  request.cases = cases;
  request.arms = asked_arms(plan);
  request.identity = plan.identity;
  request.mode = plan.mode;
  request.shard = plan.shard;
  request.cache = test_cache();
  run_panels(request, runner);
}

void write_finished_run(const RunPlan& plan, Fragility verdict, const std::filesystem::path& folder) {
  write_run(plan, folder);
  const bool whole = plan.shard.is_whole();
  Run run = whole ? read_run(folder) : make_run(plan);
  if (std::ranges::any_of(run.arms, arm_needs_fixed_scales)) {
    Json scales = test_scales();
    scales["model_weights_sha256"] = plan.identity.model_sha256;
    write_file_atomic(folder / "scales.json", canonical_json(scales) + "\n");
  }
  AdmissionRecord record = make_record(run);
  write_file_atomic(folder / "record.json", admission_record_bytes(record));
  if (!whole) {
    write_shard_probe(folder, make_probe(verdict));
    return;
  }
  const FinishedRun finished = finish_run(std::move(run), make_probe(verdict), std::move(record));
  write_certificate(finished, folder);
  write_policy_and_report(finished, folder);
}

ProbeResult make_probe(Fragility verdict, int64_t num_layers) {
  const double noise = verdict == Fragility::kRobust ? 0.08 : verdict == Fragility::kUndecided ? 0.3 : 1.6;
  std::vector<LayerProbe> layers;
  for (int64_t i = 0; i < num_layers; ++i) {
    LayerProbe layer;
    layer.layer_idx = i;
    layer.logit_noise = noise * (1.0 + 0.6 * static_cast<double>((i * 5) % 7 - 3) / 3.0);
    layer.logit_noise_max = 1.4 * layer.logit_noise;
    layer.logit_change_max = 4.0 * layer.logit_noise;
    layer.k_max = 12 + 150 * layer.logit_noise;
    layer.v_max = 3.5;
    layer.k_bias_norm = 100 * layer.logit_noise;
    layer.row_kl = 0.1 * layer.logit_noise;
    layer.k_snr_db = 31.4;
    layer.v_snr_db = 31.9;
    layer.k8_output_error = 0.2 * layer.logit_noise;
    layer.v8_output_error = 0.02;
    layers.push_back(layer);
  }
  return judge_probe(std::move(layers));
}

ArmBytes make_bytes() {
  return {{ArmId::kN, 2048},  {ArmId::kNR, 2048}, {ArmId::kQD, 1056}, {ArmId::kAF, 1536}, {ArmId::kAD, 1552},
          {ArmId::kRF, 1536}, {ArmId::kRD, 1552}, {ArmId::kSF, 1024}, {ArmId::kSD, 1056}, {ArmId::kPF, 1024},
          {ArmId::kPD, 1056}, {ArmId::kID, 1056}, {ArmId::kJD, 1056}};
}

namespace {

RunPlan pair_plan(const std::string& model) {
  RunPlan plan;
  plan.protocol = test_protocol(336, 40);
  plan.identity = test_identity();
  plan.identity.model = model;
  plan.native_correct = {{"math", 330}};
  for (const ArmId arm : all_arms()) {
    if (!arm_is_control(arm)) plan.arms[arm] = {{}, 0.00004};
  }
  plan.arms[ArmId::kN2] = {};
  return plan;
}

}  // namespace

RunPlan fragile_plan() {
  RunPlan plan = pair_plan("tiny-fragile");
  const auto harm = [&plan](ArmId arm, int64_t near, int64_t far, int64_t math, double loss) {
    plan.arms[arm] = {{{"retrieval-1024", {.lost = near}},
                       {"retrieval-8192", {.lost = far}},
                       {"math", {.lost = math, .gained = 2, .truncated = math / 20}}},
                      loss};
  };
  for (const ArmId arm : {ArmId::kRF, ArmId::kRD, ArmId::kSF, ArmId::kSD}) harm(arm, 122, 26, 316, 0.21);
  harm(ArmId::kID, 30, 16, 220, 0.04);
  return plan;
}

RunPlan robust_plan() {
  RunPlan plan = pair_plan("tiny-robust");
  for (const ArmId arm : {ArmId::kPF, ArmId::kPD, ArmId::kJD}) plan.arms.erase(arm);
  return plan;
}

}  // namespace asymkv::gate_testkit
