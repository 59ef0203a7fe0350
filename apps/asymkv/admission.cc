#include "admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/engine/cache_setup.h"
#include "asymkv/gate/certificate.h"
#include "asymkv/gate/report.h"
#include "asymkv/gate/run_folder.h"
#include "engine_runner.h"
#include "probe_runner.h"
#include "run_record.h"
#include "side_documents.h"

namespace asymkv::app {
namespace {

namespace fs = std::filesystem;

// Seeds of texts that are like the cases but are not the cases.
constexpr uint64_t kProbeSeedOffset = 1'000'003;
constexpr uint64_t kCalibrationSeedOffset = 2'000'003;

fs::path run_folder_of(const AdmissionRequest& request) {
  if (!request.folder.empty()) return request.folder;
  return fs::path("asymkv-admit") / model_name(request.model);
}

// The arms to run: what the user named, or the protocol's without those the model cannot have, each said aloud.
std::vector<ArmId> choose_arms(const AdmissionRequest& request, const LoadedModel& model) {
  if (!request.arms.empty()) return request.arms;
  std::vector<ArmId> arms;
  for (const ArmId arm : request.protocol.default_arms) {
    if (arm_needs_key_bias(arm) && !has_removable_key_vector(model.decoder)) {
      fmt::print(stderr, "arm {} left out: {} has no key bias to take out\n", arm_name(arm), request.model.string());
      continue;
    }
    arms.push_back(arm);
  }
  return arms;
}

// Fixed scales for the F arms and the file's JSON: the file the user named, or a calibration on texts of the protocol's
// kind. Calibrating again on resume gives the same scales; the run's identity checks that it does.
struct FixedScales {
  ScaleSet set;
  Json json;
};
std::optional<FixedScales> prepare_scales(const AdmissionRequest& request, LoadedModel& model,
                                          const std::vector<ArmId>& arms) {
  if (std::ranges::none_of(arms, arm_needs_fixed_scales)) return std::nullopt;
  if (!request.scales_file.empty()) {
    const std::string origin = request.scales_file.string();
    Json json = read_json_file(request.scales_file);
    ScaleSet set = scales_from_json(json, origin, model.config(), model.files.weights_sha256());
    return FixedScales{std::move(set), std::move(json)};
  }
  const auto documents = make_side_documents(model, request.protocol, request.files, kCalibrationSeedOffset);
  if (documents.empty()) {
    throw_usage("arms with fixed scales need --scales: protocol {} has no texts of its own to calibrate with",
                request.protocol.name);
  }
  fmt::print(stderr, "calibrating fixed scales on {} documents\n", documents.size());
  ScaleSet set = calibrate_scales(model, documents);
  std::string data;
  for (const std::vector<int32_t>& tokens : documents) data += Json(tokens).dump();
  Json json = scales_to_json(set, model.files.weights_sha256(), sha256_hex(data));
  return FixedScales{std::move(set), std::move(json)};
}

ProbeResult prepare_probe(const AdmissionRequest& request, LoadedModel& model) {
  Protocol texts = request.protocol;
  if (texts.retrieval.empty() && !texts.math) texts = builtin_protocol("quick");
  return run_probe(model, make_side_documents(model, texts, request.files, kProbeSeedOffset));
}

RunIdentity make_identity(const AdmissionRequest& request, const LoadedModel& model,
                          const std::optional<FixedScales>& scales) {
  RunIdentity identity;
  identity.model = model.files.name();
  identity.model_sha256 = model.files.weights_sha256();
  identity.config_sha256 = model.files.config_sha256;
  identity.tokenizer_sha256 = model.tokenizer.sha256();
  identity.build = build_id();
  identity.worker = fmt::format("{}+{}", request.backends.attention->name(), request.backends.model->name());
  identity.native_dtype = dtype_name(model.config().native_dtype);
  if (scales) identity.scales_sha256 = scales->set.source.substr(scales->set.source.find(':') + 1);
  return identity;
}

// Exact bytes per token of each arm, from the layout its cache was allocated with; arms that must weigh the same do.
ArmBytes measure_bytes(EngineRunner& runner, const std::vector<ArmId>& arms) {
  ArmBytes bytes;
  for (const ArmId arm : arms) {
    const KvCache* cache = runner.cache_of(arm);
    ASYMKV_CHECK(cache != nullptr, "arm {} has no cache", arm_name(arm));
    const KvLayout& layout = cache->layout();
    const CacheInventory inventory = cache->inventory();
    const PageBytes expected = layout.page_bytes().scaled(inventory.num_pages * inventory.num_layers);
    ASYMKV_CHECK(inventory.planes == expected, "arm {} holds {} bytes, its layout says {}", arm_name(arm),
                 inventory.planes.total(), expected.total());
    bytes[arm] = layout.page_bytes().total() * inventory.num_layers / layout.geometry().page_size;
  }
  for (const auto& [arm, count] : bytes) {
    const std::optional<ArmId> twin = equal_bytes_arm(arm);
    if (!twin || !bytes.contains(*twin)) continue;
    ASYMKV_CHECK(bytes.at(*twin) == count, "arms {} and {} must have equal bytes: {} and {}", arm_name(arm),
                 arm_name(*twin), count, bytes.at(*twin));
  }
  return bytes;
}

struct Verdicts {
  Run run;
  Judgement judgement;
  ProbeResult probe;
  ArmBytes bytes;
  PolicyDecision policy;
};

void write_json(const fs::path& path, const Json& json) {
  write_file_atomic(path, canonical_json(json) + "\n");
}

// Everything written after the last case; pure functions of the run's files, so a resumed run writes the same.
AdmissionResult write_results(const Verdicts& v, const fs::path& folder, const Json& record,
                              const std::vector<std::string>& repairs) {
  AdmissionResult result;
  result.folder = folder;
  result.model = v.run.identity.model;
  result.tier = v.policy.tier;
  result.certificate = make_certificate({v.run, v.judgement, v.probe, v.bytes, folder});
  write_json(folder / "certificate.json", result.certificate);
  result.policy = policy_to_json(v.policy, v.run, sha256_file_hex(folder / "certificate.json"));
  write_json(folder / "policy.json", result.policy);
  write_json(folder / "record.json", record);
  write_file_atomic(folder / "report.html",
                    render_report_html({v.run, v.judgement, v.probe, v.bytes, v.policy, record, repairs}));

  result.table = render_table(v.run, v.judgement, v.bytes, v.policy);
  return result;
}

}  // namespace

AdmissionResult run_admission(const AdmissionRequest& request) {
  const RunClock clock;
  const fs::path folder = run_folder_of(request);
  RunRequest run;
  run.folder = folder;
  run.resume = request.resume;
  run.protocol = resolve_data(request.protocol, request.files);
  require_attainable(run.protocol, "protocol " + run.protocol.name);
  const auto model = load_model(request.model, request.backends);
  run.arms = choose_arms(request, *model);
  const std::optional<FixedScales> scales = prepare_scales(request, *model, run.arms);
  run.identity = make_identity(request, *model, scales);
  run.cases = make_cases(run.protocol, request.files, case_tokenizer(*model));

  EngineRunnerOptions options;
  options.path = run.protocol.path;
  options.prefill = run.protocol.prefill;
  options.chunk_tokens = run.protocol.chunk_tokens;
  options.scales = scales ? &scales->set : nullptr;
  EngineRunner runner(*model, options);
  runner.check_arms(run.arms);

  Verdicts verdicts;
  verdicts.probe = prepare_probe(request, *model);
  fmt::print(stderr, "probe: keys look {} (mean logit noise {:.3g})\n", fragility_name(verdicts.probe.verdict),
             verdicts.probe.mean_logit_noise);
  const RunSummary summary = run_panels(run, runner);
  for (const std::string& repair : summary.repairs) fmt::print(stderr, "repaired: {}\n", repair);

  verdicts.run = read_run(folder);
  verdicts.judgement = judge_run(verdicts.run);
  verdicts.bytes = measure_bytes(runner, run.arms);
  verdicts.policy = choose_policy(verdicts.judgement, verdicts.probe, run.protocol, verdicts.bytes, request.mode);
  Json record = make_admission_record(*model, runner.caches(), run, clock);
  record["repairs"] = summary.repairs;
  if (scales) write_json(folder / "scales.json", scales->json);
  AdmissionResult result = write_results(verdicts, folder, record, summary.repairs);
  result.seconds = clock.seconds();
  return result;
}

}  // namespace asymkv::app
