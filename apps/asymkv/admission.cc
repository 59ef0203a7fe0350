#include "admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "admission_recorder.h"
#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/base/progress.h"
#include "asymkv/engine/cache_setup.h"
#include "asymkv/gate/certificate.h"
#include "asymkv/gate/merge.h"
#include "asymkv/gate/report.h"
#include "asymkv/gate/run_files.h"
#include "asymkv/gate/run_folder.h"
#include "asymkv/runtime/backends.h"
#include "memory_guard.h"
#include "probe_runner.h"
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
      print_note("arm {} left out: {} has no key bias to take out\n", arm_name(arm), request.model.string());
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
  if (std::ranges::none_of(arms, arm_needs_fixed_scales)) {
    if (!request.scales_file.empty()) throw_usage("--scales: no arm of {} has fixed scales", join_arms(arms));
    return std::nullopt;
  }
  if (!request.scales_file.empty()) {
    const std::string origin = request.scales_file.string();
    const Json file = read_json_file(request.scales_file);
    ScaleSet set = scales_from_json(file, origin, model.config(), model.files.weights_sha256());
    // As read, so that the hash in run.json follows from the copy in the folder.
    Json json = scales_to_json(set, model.files.weights_sha256(), string_or(file, "data_sha256", "", origin));
    return FixedScales{std::move(set), std::move(json)};
  }
  const auto documents = make_side_documents(model, request.protocol, request.files, kCalibrationSeedOffset);
  if (documents.empty()) {
    throw_usage("arms with fixed scales need --scales: protocol {} has no texts of its own to calibrate with",
                request.protocol.name);
  }
  print_note("calibrating fixed scales on {} documents\n", documents.size());
  ScaleSet set = calibrate_scales(model, documents);
  std::string data;
  for (const std::vector<int32_t>& tokens : documents) data += Json(tokens).dump();
  Json json = scales_to_json(set, model.files.weights_sha256(), sha256_hex(data));
  return FixedScales{std::move(set), std::move(json)};
}

ProbeResult prepare_probe(const AdmissionRequest& request, LoadedModel& model) {
  auto documents = make_side_documents(model, request.protocol, request.files, kProbeSeedOffset);
  // A protocol of files alone has no texts of its own.
  if (documents.empty()) {
    documents = make_side_documents(model, builtin_protocol("quick"), request.files, kProbeSeedOffset);
  }
  ProbeResult probe = run_probe(model, documents);
  print_note("probe: keys look {} (logit noise: mean {:.3g}, worst layer {:.3g})\n", fragility_name(probe.verdict),
             probe.mean_logit_noise, probe.worst_logit_noise());
  return probe;
}

RunIdentity make_identity(const AdmissionRequest& request, const LoadedModel& model, const std::vector<ArmId>& arms,
                          const std::optional<FixedScales>& scales) {
  RunIdentity identity;
  identity.model = model.files.name();
  identity.model_sha256 = model.files.weights_sha256();
  identity.config_sha256 = model.files.config_sha256;
  identity.tokenizer_sha256 = model.tokenizer.sha256();
  identity.build = build_id();
  identity.worker = worker_name(request.backends);
  if (std::ranges::any_of(arms, arm_uses_control_kernels) && request.backends.control != nullptr) {
    identity.worker += fmt::format("{}{}", kControlMark, request.backends.control->name());
  }
  identity.native_dtype = dtype_name(model.config().native_dtype);
  if (scales) identity.scales_sha256 = scales_sha256(scales->set.source);
  return identity;
}

// Every arm's cache was allocated with as many bytes a token as the certificate is going to say.
void check_bytes(const EngineRunner& runner, const ArmBytes& bytes) {
  for (const auto& [arm, count] : bytes) {
    const KvCache* cache = runner.cache_of(arm);
    ASYMKV_CHECK(cache != nullptr, "arm {} has no cache", arm_name(arm));
    const CacheInventory inventory = cache->inventory();
    const int64_t slots = inventory.num_pages * cache->layout().geometry().page_size;
    ASYMKV_CHECK(inventory.planes.total() == count * slots, "arm {} holds {} bytes, its layout says {}", arm_name(arm),
                 inventory.planes.total(), count * slots);
  }
}

// A file that nothing reads is a mistake of the caller's, not a default.
void refuse_unread_files(const Protocol& protocol, const CaseFiles& files) {
  const auto is_file = [](const auto& panel) { return panel.source == DataSource::kFile; };
  const auto refuse = [&](std::string_view option, bool read) {
    if (!read) throw_usage("{}: protocol {} does not read that file; leave the option out", option, protocol.name);
  };
  const bool math = protocol.math && is_file(*protocol.math);
  if (!files.filler.empty()) refuse("--filler", std::ranges::any_of(protocol.retrieval, is_file));
  if (!files.math_questions.empty()) refuse("--math-questions", math);
  if (!files.math_few_shot.empty()) refuse("--math-examples", math && protocol.math->few_shot > 0);
  if (!files.loss_texts.empty()) refuse("--loss-text", std::ranges::any_of(protocol.loss, is_file));
}

// What a run asks, before any model is there; holds the folder from here on.
RunRequest open_run(const AdmissionRequest& request) {
  RunRequest run;
  run.folder = run_folder_of(request);
  run.resume = request.resume;
  run.mode = request.mode;
  refuse_unread_files(request.protocol, request.files);
  run.protocol = resolve_data(request.protocol, request.files);
  require_attainable(run.protocol, "protocol " + run.protocol.name);
  if (run.protocol.device_limit_bytes != 0 && !on_device(request.backends)) {
    throw_usage(
        "protocol {} has device_limit_bytes, but this run uses no GPU: add --device cuda, or take the field out",
        run.protocol.name);
  }
  run.shard = request.shard;
  run.lock = std::make_shared<FolderLock>(run.folder, run.resume);
  return run;
}

}  // namespace

// Everything written after the last case; pure functions of the run's files, so a resumed run writes the same.
AdmissionResult write_results(const FinishedRun& finished, const fs::path& folder) {
  AdmissionResult result;
  result.folder = folder;
  result.model = finished.run.identity.model;
  result.tier = finished.policy.tier;
  result.certificate = write_certificate(finished, folder);
  result.policy = write_policy_and_report(finished, folder);
  result.table = render_table(finished.run, finished.judgement, finished.bytes_per_token, finished.policy);
  return result;
}

Json result_to_json(const AdmissionResult& result) {
  Json arms = Json::object();
  for (const auto& [name, arm] : result.certificate.at("arms").items()) {
    arms[name] = {{"vs", arm.value("vs", Json::object())}, {"panels", arm.at("panels")}};
  }
  Json answer = {{"model", result.model},
                 {"probe", result.certificate.at("probe")},
                 {"noise_floor", result.certificate.at("noise_floor")},
                 {"arms", std::move(arms)},
                 {"policy", result.policy},
                 {"certificate", (result.folder / run_files::kCertificate).string()},
                 {"report", (result.folder / run_files::kReport).string()}};
  if (result.seconds) answer["seconds"] = *result.seconds;
  if (result.device_memory_peak) answer["device_memory_peak_bytes"] = *result.device_memory_peak;
  if (!result.cost.empty()) answer["cost"] = cost_to_json(result.cost);
  return answer;
}

void print_result(const AdmissionResult& result) {
  fmt::print("{}certificate: {}\nreport:      {}\n", result.table, (result.folder / run_files::kCertificate).string(),
             (result.folder / run_files::kReport).string());
  if (result.device_memory_peak) {
    fmt::print("GPU memory:  at most {:.2f} GiB in use\n", static_cast<double>(*result.device_memory_peak) * 0x1p-30);
  }
}

int require_tier(const AdmissionResult& result, std::optional<Tier> required) {
  if (!required || result.tier >= *required) return 0;
  print_note("asymkv: tier {} was required, {} was reached\n", tier_name(*required), tier_name(result.tier));
  return 1;
}

std::optional<AdmissionResult> run_admission(const AdmissionRequest& request) {
  const RunClock clock;
  RunRequest run = open_run(request);
  const auto sampler = on_device(request.backends) ? sample_device_memory() : nullptr;
  const auto model = load_model(request.model, request.backends);
  run.arms = choose_arms(request, *model);
  const std::optional<FixedScales> scales = prepare_scales(request, *model, run.arms);
  run.identity = make_identity(request, *model, run.arms, scales);
  run.cases = make_cases(run.protocol, request.files, case_tokenizer(*model));

  EngineRunnerOptions options;
  options.path = run.protocol.path;
  options.prefill = run.protocol.prefill;
  options.chunk_tokens = run.protocol.chunk_tokens;
  options.scales = scales ? &scales->set : nullptr;
  options.pool_limit_bytes = run.protocol.pool_limit_bytes;
  run.cache = {model->config().num_layers, model->decoder.kv_geometry(options.page_size)};
  EngineRunner runner(*model, options);
  runner.check_plan(plan_units(run.protocol, run.cases, run.arms));

  if (run.resume) require_same_run(run);  // before the probe
  ProbeResult probe = prepare_probe(request, *model);
  AdmissionRecorder recorder(runner, *model, run, clock);
  // Processor time says little where another processor computes.
  CostMeter meter(recorder, on_device(request.backends) ? wall_seconds : processor_seconds);
  MemoryGuard guard(meter, run.protocol, [&] {
    MemoryUse use = host_memory_use();
    if (sampler != nullptr) use.device_peak = sampler->peak().bytes;
    return use;
  });
  const RunSummary summary = run_panels(run, guard);
  for (const std::string& repair : summary.repairs) print_note("repaired: {}\n", repair);
  if (scales) write_file_atomic(run.folder / run_files::kScales, canonical_json(scales->json) + "\n");
  if (!run.shard.is_whole()) {
    write_shard_probe(run.folder, probe);
    return std::nullopt;
  }
  const FinishedRun finished = finish_run(read_run(run.folder), std::move(probe), read_admission_record(run.folder));
  check_bytes(runner, finished.bytes_per_token);
  const auto device_memory_peak = sampler == nullptr ? std::nullopt : std::optional(sampler->peak().bytes);
  AdmissionResult result = write_results(finished, run.folder);
  result.device_memory_peak = device_memory_peak;
  result.seconds = clock.seconds();
  if (request.measure_cost) result.cost = meter.against_native(runner);
  return result;
}

}  // namespace asymkv::app
