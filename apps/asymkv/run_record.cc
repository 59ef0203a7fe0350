#include "run_record.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/hash.h"
#include "asymkv/base/parallel.h"
#include "asymkv/device/device.h"
#include "asymkv/engine/scales.h"
#include "asymkv/gate/protocol.h"
#include "asymkv/kv/key_transform.h"
#include "asymkv/runtime/backends.h"
#include "command.h"

namespace asymkv::app {
namespace {

std::vector<std::string>& stored_argv() {
  static std::vector<std::string> argv;
  return argv;
}

// Launches on caches of exactly this format, served as this one is, since `before`.
LaunchCounts own_launches(const LoadedModel& model, const KvCache& cache, const LaunchCounts& before) {
  const KvFormat& format = cache.layout().format();
  const std::optional<DType>& query = cache.config().use.query_dtype;
  const std::string query_name = query ? std::string(dtype_name(*query)) : "";
  LaunchCounts own;
  for (const auto& [launch, total] : launches_so_far(model)) {
    const bool same = launch.family == model.decoder.attention_of(cache).name() && launch.key == format.key.id() &&
                      launch.value == format.value.id() && launch.scale == scale_kind_name(format.scale()) &&
                      (launch.query == query_name || launch.phase == phase_name(Phase::kWrite));
    const auto earlier = before.find(launch);
    const int64_t count = total - (earlier == before.end() ? 0 : earlier->second);
    if (same && count != 0) own[launch] = count;
  }
  return own;
}

// The kernels of these launches, whatever their batch; seen from one side.
std::vector<LaunchedKernel> launched(const LaunchCounts& launches, bool key_side) {
  std::vector<LaunchedKernel> kernels;
  for (const auto& [launch, count] : launches) {
    const std::string instance = launch_instance(launch.phase, launch.kernel, launch.query);
    const auto same = std::ranges::find(kernels, instance, &LaunchedKernel::instance);
    if (same != kernels.end()) {
      same->count += count;
    } else {
      kernels.push_back({launch.family, instance, key_side ? launch.key : launch.value, build_id(), count});
    }
  }
  return kernels;
}

int64_t largest_batch(const LaunchCounts& launches) {
  int64_t largest = 0;
  for (const auto& [launch, count] : launches) largest = std::max(largest, launch.batch);
  return largest;
}

// Prompts are enqueued call by call even where decode steps are replayed.
std::string launch_mode(const LaunchCounts& launches) {
  const bool graph = std::ranges::any_of(launches, [](const auto& entry) { return entry.first.mode == "graph"; });
  return graph ? "graph" : "eager";
}

AllocatedSide allocated(const KvCache& cache, bool key_side) {
  const KvFormat& format = cache.layout().format();
  const PageBytes page = cache.layout().page_bytes();
  const CacheInventory inventory = cache.inventory();
  AllocatedSide side;
  side.format = key_side ? format.key.id() : format.value.id();
  side.scale = scale_kind_name(key_side ? format.key.scale : format.value.scale);
  side.page_bytes = key_side ? page.k_payload : page.v_payload;
  side.scale_bytes = key_side ? page.k_scales : page.v_scales;
  side.payload_bytes = key_side ? inventory.planes.k_payload : inventory.planes.v_payload;
  return side;
}

// The requested words of one side: of "f16/e4m3" its own half, of a preset the whole preset.
std::optional<std::string> requested_side(const std::string& kv, bool key_side) {
  if (kv.empty()) return std::nullopt;
  const size_t slash = kv.find('/');
  if (slash == std::string::npos) return kv;
  return key_side ? kv.substr(0, slash) : kv.substr(slash + 1);
}

SideFacts side_facts(const KvCache& cache, const RequestedKv& requested, const LaunchCounts& launches, bool key_side) {
  SideFacts facts;
  const KvFormat& format = cache.layout().format();
  facts.requested = requested_side(requested.kv, key_side);
  facts.resolved = key_side ? format.key.id() : format.value.id();
  facts.allocated = allocated(cache, key_side);
  facts.launched = launched(launches, key_side);
  return facts;
}

Record::Scales scale_facts(const KvCache& cache) {
  const std::string& source = cache.config().scale_source;
  Record::Scales scales;
  scales.source = source.substr(0, source.find(':'));
  scales.sha256 = scales_sha256(source);
  return scales;
}

Record::Device cpu_facts() {
  Record::Device device;
  device.kind = "cpu";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; device.name.empty() && std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) device.name = line.substr(colon + 2);
  }
  return device;
}

// Of the device that caches lie on.
Record::Device gpu_facts() {
  const DeviceInfo gpu = require_device();
  return {"cuda", gpu.name, gpu.driver, gpu.toolkit,
          fmt::format("{}.{}", gpu.compute_capability / 10, gpu.compute_capability % 10)};
}

// What a record says whatever the cache is; `attention`: the family that served it.
Record common_facts(const LoadedModel& model, std::string_view attention, const RunClock& clock) {
  Record record;
  record.engine_version = kVersion;
  record.model.id = model.files.name();
  record.model.weights_sha256 = model.files.weights_sha256();
  if (!model.files.random_seed) record.model.tokenizer_sha256 = model.tokenizer.sha256();
  record.model.config_sha256 = model.files.config_sha256;
  record.model.native_dtype = dtype_name(model.config().native_dtype);
  record.worker = fmt::format("{}+{}", attention, model.decoder.backends().model->name());
  record.device = on_device(model.decoder.backends()) ? gpu_facts() : cpu_facts();
  record.launch.threads = num_threads();
  record.build = {build_id(), __VERSION__};
  record.argv_sha256 = argv_sha256();
  record.started = utc_timestamp(clock.start());
  record.ended = utc_timestamp(std::chrono::system_clock::now());
  return record;
}

Record make_record(const LoadedModel& model, const KvCache& cache, const RequestedKv& requested,
                   const RecordStart& start) {
  Record record = common_facts(model, model.decoder.attention_of(cache).name(), start.clock);
  const LaunchCounts launches = own_launches(model, cache, start.before);
  record.key = side_facts(cache, requested, launches, true);
  record.value = side_facts(cache, requested, launches, false);
  record.launch.batch = largest_batch(launches);
  record.launch.mode = launch_mode(launches);
  record.scales = scale_facts(cache);
  if (cache.layout().format().key.prebias) {
    record.transform = {"key_bias_removed", key_transforms_sha256(cache.config().transforms)};
  }
  record.layout = {cache.layout_id(), cache.layout().geometry().page_size};
  return record;
}

}  // namespace

std::string worker_name(const Backends& backends) {
  return fmt::format("{}+{}", backends.attention->name(), backends.model->name());
}

double token_rate(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
}

std::string build_id() {
  static const std::string id = sha256_file_hex("/proc/self/exe");
  return id;
}

void remember_argv(int argc, char** argv) {
  stored_argv().assign(argv, argv + argc);
}

std::string argv_sha256() {
  return argv_fingerprint(stored_argv());
}

Json make_run_record(const LoadedModel& model, const KvCache& cache, const RequestedKv& requested,
                     const RunClock& clock) {
  return record_to_json(make_record(model, cache, requested, {clock, {}}));
}

Json make_model_record(const LoadedModel& model, const RunClock& clock) {
  return record_to_json(common_facts(model, model.decoder.backends().attention->name(), clock));
}

LaunchCounts launches_so_far(const LoadedModel& model) {
  LaunchCounts counts;
  for (const auto& attention : {model.decoder.backends().attention, model.decoder.backends().control}) {
    const auto* log = dynamic_cast<const LoggedAttention*>(attention.get());
    if (log != nullptr) counts.insert(log->launches().begin(), log->launches().end());
  }
  return counts;
}

std::map<ArmId, Record> make_arm_records(const LoadedModel& model, const std::map<ArmId, KvCache*>& caches,
                                         const RunRequest& run, const RecordStart& start) {
  std::map<ArmId, Record> records;
  for (const auto& [arm, cache] : caches) {
    const KvFormat format = arm_format(arm, model.config().native_dtype);
    Record record = make_record(model, *cache, {format.id(), std::string(scale_kind_name(format.scale()))}, start);
    record.protocol_sha256 = protocol_sha256(run.protocol);
    records[arm] = std::move(record);
  }
  return records;
}

}  // namespace asymkv::app
