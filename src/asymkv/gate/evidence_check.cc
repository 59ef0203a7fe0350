#include "asymkv/gate/evidence_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "asymkv/base/error.h"
#include "asymkv/base/hash.h"
#include "asymkv/gate/run_files.h"
#include "asymkv/kv/layout.h"
#include "asymkv/tensor/dtype.h"

namespace asymkv {
namespace {

constexpr std::string_view kAgain = "admit the model again into an empty folder";

// The side that the run's format and cache shape ask for; what only the record can know is kept.
SideFacts expected_side(const SideFacts& recorded, AllocatedSide allocated, const std::string& build) {
  SideFacts side = recorded;
  allocated.payload_bytes = recorded.allocated ? recorded.allocated->payload_bytes : 0;
  side.resolved = allocated.format;
  side.requested = allocated.format;
  for (LaunchedKernel& kernel : side.launched) {
    kernel.format = allocated.format;
    kernel.build = build;
  }
  side.allocated = std::move(allocated);
  return side;
}

// The worker of one arm: with the control family in place of the worker's own where the arm's kernels are independent.
std::string expected_worker(ArmId arm, const std::string& worker) {
  const size_t mark = worker.find(kControlMark);
  const std::string served = worker.substr(0, mark);
  if (!arm_uses_control_kernels(arm) || mark == std::string::npos) return served;
  const size_t model_kernels = std::min(served.find('+'), served.size());
  return worker.substr(mark + kControlMark.size()) + served.substr(model_kernels);
}

Record expected_record(const Record& recorded, ArmId arm, const Run& run) {
  const KvFormat format = arm_format(arm, parse_dtype(run.identity.native_dtype));
  const PageBytes page = KvLayout(run.cache.layer, format).page_bytes();
  Record record = recorded;
  record.engine = "asymkv";
  record.key = expected_side(
      recorded.key, {format.key.id(), std::string(scale_kind_name(format.key.scale)), page.k_payload, page.k_scales},
      run.identity.build);
  record.value = expected_side(
      recorded.value,
      {format.value.id(), std::string(scale_kind_name(format.value.scale)), page.v_payload, page.v_scales},
      run.identity.build);
  record.model = {run.identity.model,         recorded.model.revision,
                  run.identity.model_sha256,  run.identity.tokenizer_sha256,
                  run.identity.config_sha256, run.identity.native_dtype};
  const ScaleKind kind = format.scale();
  record.scales = {kind == ScaleKind::kFixed ? "calibrated" : std::string(scale_kind_name(kind)),
                   kind == ScaleKind::kFixed ? run.identity.scales_sha256 : "", recorded.scales.epoch};
  record.layout.page_size = run.cache.layer.page_size;
  if (record.version >= 2) record.worker = expected_worker(arm, run.identity.worker);
  record.build.hash = run.identity.build;
  record.protocol_sha256 = run.protocol_sha256;
  return record;
}

// Whether the launches of two arms cannot be told apart: N's and N2's.
bool share_launches(ArmId a, ArmId b, DType native) {
  return arm_format(a, native) == arm_format(b, native) && arm_query_dtype(a) == arm_query_dtype(b) &&
         arm_uses_control_kernels(a) == arm_uses_control_kernels(b);
}

// One decode launch a layer for every generated token but the first, over all arms that share them.
int64_t needed_decodes(ArmId arm, const Run& run) {
  const DType native = parse_dtype(run.identity.native_dtype);
  int64_t tokens = 0;
  for (size_t i = 0; i < run.arms.size(); ++i) {
    if (!share_launches(run.arms[i], arm, native)) continue;
    for (const Outcome& outcome : run.outcomes[i]) tokens += std::max<int64_t>(outcome.tokens - 1, 0);
  }
  return tokens * run.cache.num_layers;
}

// Decode launches with the arm's own queries, by a family that may serve it.
int64_t recorded_decodes(const SideFacts& side, ArmId arm, const Run& run) {
  const std::string_view query = arm_query_dtype(arm) ? arm_query(arm) : "";
  int64_t count = 0;
  for (const LaunchedKernel& kernel : side.launched) {
    const bool own_family = !arm_uses_control_kernels(arm) || run.identity.worker.ends_with("; NR: " + kernel.family);
    if (own_family && is_launch_of(kernel.instance, "decode", query)) count += kernel.count;
  }
  return count;
}

void check_side(const SideFacts& side, const std::string& at, ArmId arm, const Run& run, std::vector<Mismatch>& found) {
  const int64_t needed = needed_decodes(arm, run);
  if (!side.attested()) found.push_back({at + ".attested", "false", "true: kernels ran on the stored format alone"});
  if (const int64_t recorded = recorded_decodes(side, arm, run); recorded < needed) {
    found.push_back({at + ".launched", fmt::format("{} decode launches", recorded),
                     fmt::format("the answers took {} or more", needed)});
  }
  if (!side.allocated) return;
  const int64_t page = side.allocated->page_bytes * run.cache.num_layers;
  if (side.allocated->payload_bytes > 0 && side.allocated->payload_bytes % page == 0) return;
  found.push_back({at + ".allocated.payload_bytes", std::to_string(side.allocated->payload_bytes),
                   fmt::format("whole pages of {} bytes in all layers", page)});
}

}  // namespace

std::vector<Mismatch> check_record(const AdmissionRecord& record, const Run& run) {
  std::vector<Mismatch> found;
  for (const ArmId arm : run.arms) {
    const std::string at = fmt::format("{}:arms.{}", run_files::kRecord, arm_name(arm));
    const auto facts = record.arms.find(arm);
    if (facts == record.arms.end()) {
      found.push_back({at, "", fmt::format("is missing: {}", kAgain)});
      continue;
    }
    const Json expected = record_to_json(expected_record(facts->second, arm, run));
    std::ranges::move(json_differences(record_to_json(facts->second), expected, at), std::back_inserter(found));
    check_side(facts->second.key, at + ".key", arm, run, found);
    check_side(facts->second.value, at + ".value", arm, run, found);
  }
  for (const auto& [arm, facts] : record.arms) {
    if (std::ranges::find(run.arms, arm) != run.arms.end()) continue;
    found.push_back({fmt::format("{}:arms.{}", run_files::kRecord, arm_name(arm)), "a record", "no such arm ran"});
  }
  return found;
}

std::vector<Mismatch> check_scales(const std::filesystem::path& folder, const Run& run) {
  const std::string name(run_files::kScales);
  const std::filesystem::path path = folder / name;
  if (!std::ranges::any_of(run.arms, arm_needs_fixed_scales)) {
    if (!std::filesystem::exists(path)) return {};
    return {{name, "a file", "no arm of this run has fixed scales: remove it"}};
  }
  if (!std::filesystem::exists(path)) return {{name, "", fmt::format("is missing: {}", kAgain)}};
  Json scales = read_json_file(path);
  if (!scales.is_object()) return {{name, "", "must be an object"}};
  std::vector<Mismatch> found;
  const Json model = scales.value("model_weights_sha256", Json());
  if (model != run.identity.model_sha256) {
    found.push_back({name + ":model_weights_sha256", model.dump(), Json(run.identity.model_sha256).dump()});
  }
  // The hash is of the scales alone: it names neither the model nor the data they came from.
  scales["model_weights_sha256"] = scales["data_sha256"] = "";
  const std::string hash = sha256_hex(canonical_json(scales));
  if (hash != run.identity.scales_sha256) {
    found.push_back({name, fmt::format("scales with SHA-256 {}", hash),
                     fmt::format("run.json names {}: it was changed after the run began", run.identity.scales_sha256)});
  }
  return found;
}

}  // namespace asymkv
