#include "asymkv/kernels/cuda/device_write.h"

#include <algorithm>

#include "asymkv/base/error.h"
#include "asymkv/kernels/checks.h"
#include "asymkv/kernels/cuda/instance_table.h"
#include "asymkv/kernels/cuda/row_kernels.h"
#include "asymkv/kv/tiled_layout.h"

namespace asymkv::cuda {
namespace {

constexpr int64_t kMaxPending = 4096;

bool is_bf16(DType dtype) {
  return dtype == DType::kBF16;
}

int64_t side_elems(const WriteKvParams& params) {
  return params.num_tokens * params.geometry.num_kv_heads * params.geometry.k_head_dim;
}

}  // namespace

// Keys and values of a call in the native type, as the writer takes them.
struct DeviceWrite::Rows {
  const void* k = nullptr;
  const void* v = nullptr;
  std::shared_ptr<void> own_k, own_v;

  explicit Rows(const WriteKvParams& params) : k(params.k), v(params.v) {
    if (params.row_dtype != DType::kF32) return;
    const int64_t elems = side_elems(params);
    own_k = stream_memory(elems * 2);
    own_v = stream_memory(elems * 2);
    launch_narrow({params.k, own_k.get(), nullptr, 1, elems, is_bf16(params.native_dtype)}, nullptr);
    launch_narrow({params.v, own_v.get(), nullptr, 1, elems, is_bf16(params.native_dtype)}, nullptr);
    k = own_k.get();
    v = own_v.get();
  }
};

DeviceWrite::DeviceWrite(DeviceTables& tables)
    : tables_(tables), counters_(kMaxPending * static_cast<int64_t>(sizeof(WriteCounters))) {
  counters_.fill(0);
}

void DeviceWrite::run(const WriteKvParams& params) {
  if (params.native_dtype == DType::kF32) {
    throw_unsupported("the CUDA writer takes rows in BF16 or FP16, not in f32");
  }
  const int64_t elems = side_elems(params);
  if (elems == 0) return;
  if (!knows(params)) plan_pass(params);
  const Rows rows(params);
  const bool wide = params.row_dtype == DType::kF32;
  // The first target that takes every token leaves fresh keys on the way.
  const DType k_dtype = fresh_key_dtype_of(params);
  const std::shared_ptr<void> own_fresh = wide && params.fresh_k != nullptr ? stream_memory(elems * 2) : nullptr;
  void* fresh = wide ? own_fresh.get() : params.fresh_k;
  bool has_fresh = fresh == nullptr;
  for (size_t i = 0; i < params.targets.size(); ++i) {
    const bool every = pass_.targets[i].num_written == params.num_tokens;
    const bool takes = !has_fresh && every && k_dtype == params.native_dtype;
    store(params, i, rows, takes ? fresh : nullptr);
    has_fresh = has_fresh || takes;
  }
  if (!has_fresh) fresh_keys(params, rows, fresh);
  if (wide) {
    if (fresh != nullptr) launch_widen_16bit(fresh, params.fresh_k, elems, is_bf16(k_dtype), nullptr);
    if (params.fresh_v != nullptr) {
      launch_round_twice(params.v, params.fresh_v, elems, is_bf16(params.native_dtype),
                         is_bf16(fresh_value_dtype_of(params)), nullptr);
    }
  } else if (params.fresh_v != nullptr) {  // values are complete, and of the fresh type
    copy_on_device(params.v, params.fresh_v, elems * 2);
  }
  check_launches();
}

bool DeviceWrite::knows(const WriteKvParams& params) const {
  if (params.pass == 0 || params.pass != pass_.number) return false;
  const bool same =
      params.num_tokens == pass_.num_tokens &&
      std::ranges::equal(params.targets, pass_.slots, {}, [](const WriteTarget& t) { return t.slots.data(); });
  ASYMKV_CHECK(same, "two writes of pass {} with other tokens or targets", pass_.number);
  return true;
}

void DeviceWrite::plan_pass(const WriteKvParams& params) {
  Pass pass{params.pass, params.num_tokens, {}, {}, stream_copy(std::as_bytes(params.positions))};
  for (const WriteTarget& target : params.targets) {
    const int64_t num_slots = target.cache.num_pages * target.cache.layout->geometry().page_size;
    pass.slots.push_back(target.slots.data());
    pass.targets.push_back(plan(target.slots, num_slots));
  }
  pass_ = std::move(pass);
}

DeviceWrite::Plan DeviceWrite::plan(std::span<const int64_t> slots, int64_t num_slots) {
  const WritePlan plan = plan_write(slots, num_slots);
  const std::vector<WriteRun> runs = plan.launch_order();
  return {stream_copy(std::as_bytes(std::span(runs))), static_cast<int64_t>(plan.runs.size()), plan.num_whole(),
          plan.num_written};
}

WriteParams DeviceWrite::common_params(const WriteKvParams& params, const Rows& rows, const Plan& plan) {
  const DeviceTables::Rope rope = tables_.rope(*params.rope);
  WriteParams p;
  p.k = rows.k;
  p.v = rows.v;
  p.k_bias = params.k_bias;
  p.cosines = rope.cosines;
  p.sines = rope.sines;
  p.positions = static_cast<const int32_t*>(pass_.positions.get());
  p.runs = static_cast<const WriteRun*>(plan.runs.get());
  p.num_runs = static_cast<int32_t>(plan.num_runs);
  p.num_whole = static_cast<int32_t>(plan.num_whole);
  p.num_kv_heads = static_cast<int32_t>(params.geometry.num_kv_heads);
  p.native_is_bf16 = is_bf16(params.native_dtype);
  return p;
}

void DeviceWrite::store(const WriteKvParams& params, size_t target_idx, const Rows& rows, void* fresh_k) {
  const WriteTarget& target = params.targets[target_idx];
  const KvLayerView& cache = target.cache;
  const KvGeometry& geometry = cache.layout->geometry();
  const Plan& on_device = pass_.targets[target_idx];
  if (on_device.num_written == 0) return;
  WriteParams p = common_params(params, rows, on_device);
  if (cache.transform != nullptr) p.removed = tables_.of(cache.transform->removed);
  p.blocks = cache.tiled_blocks;
  p.scales = cache.tiled_scales;
  p.fixed_scales = tables_.of(std::vector<float>{cache.fixed_scales.key, cache.fixed_scales.value});
  p.fresh_k = fresh_k;
  p.counters = next_counters(params, target, on_device.num_written);
  launch_write(choose_decode(geometry, cache.layout->format(), 1).config, p, nullptr);
}

// Of every token, also those that no target takes: written to scratch pages on the way.
void DeviceWrite::fresh_keys(const WriteKvParams& params, const Rows& rows, void* fresh_k) {
  const DType dtype = fresh_key_dtype_of(params);
  const KvGeometry geometry{params.geometry.num_kv_heads, params.geometry.k_head_dim, params.geometry.k_head_dim};
  const KvFormat format{{.dtype = dtype}, {.dtype = dtype}};
  const TiledLayout tiled(geometry, format);
  std::vector<int64_t> slots;
  for (int64_t t = 0; t < params.num_tokens; ++t) slots.push_back(t);
  const Plan on_device = plan(slots, params.num_tokens);
  const int64_t num_pages = (params.num_tokens + kTiledPageSize - 1) / kTiledPageSize;
  const std::shared_ptr<void> blocks = stream_memory(tiled.plane_bytes(num_pages));
  WriteParams p = common_params(params, rows, on_device);
  p.blocks = static_cast<std::byte*>(blocks.get());
  p.fresh_k = fresh_k;
  launch_write(choose_decode(geometry, format, 1).config, p, nullptr);
}

WriteCounters* DeviceWrite::next_counters(const WriteKvParams& params, const WriteTarget& target, int64_t num_written) {
  if (static_cast<int64_t>(pending_.size()) == kMaxPending) finish();
  const int64_t rows = num_written * params.geometry.num_kv_heads;
  pending_.push_back(
      {target.k_counters, target.v_counters, rows * params.geometry.k_head_dim, rows * params.geometry.v_head_dim});
  return counters_.as<WriteCounters>() + pending_.size() - 1;
}

void DeviceWrite::finish() {
  if (pending_.empty()) return;
  const auto seen = to_host<WriteCounters>(counters_, static_cast<int64_t>(pending_.size()));
  counters_.fill(0);
  for (size_t i = 0; i < seen.size(); ++i) {
    const auto count = [](unsigned long long n) { return static_cast<int64_t>(n); };
    const Pending& p = pending_[i];
    if (p.k != nullptr) *p.k += {p.k_elems, count(seen[i].k_saturated), count(seen[i].k_non_finite)};
    if (p.v != nullptr) *p.v += {p.v_elems, count(seen[i].v_saturated), count(seen[i].v_non_finite)};
  }
  pending_.clear();
}

}  // namespace asymkv::cuda
