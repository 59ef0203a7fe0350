#include "asymkv/kernels/cuda/device_write.h"

#include <algorithm>
#include <numeric>

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

int64_t num_slots(const WriteTarget& target) {
  return target.cache.num_pages * target.cache.layout->geometry().page_size;
}

// Tokens of a target in a kept pass.
int64_t even_share(const WriteKvParams& params) {
  const auto targets = std::max<int64_t>(1, std::ssize(params.targets));
  return (params.num_tokens + targets - 1) / targets;
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
    launch_narrow({params.k, own_k.get(), nullptr, 1, elems, is_bf16(params.native_dtype)}, current_stream());
    launch_narrow({params.v, own_v.get(), nullptr, 1, elems, is_bf16(params.native_dtype)}, current_stream());
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
  Pass& pass = pass_of(params);
  const Rows rows(params);
  const bool wide = params.row_dtype == DType::kF32;
  // The first target that takes every token leaves fresh keys on the way.
  const DType k_dtype = fresh_key_dtype_of(params);
  const std::shared_ptr<void> own_fresh = wide && params.fresh_k != nullptr ? stream_memory(elems * 2) : nullptr;
  void* fresh = wide ? own_fresh.get() : params.fresh_k;
  bool has_fresh = fresh == nullptr;
  side_by_side(std::ssize(params.targets), [&](int64_t i) {
    const auto target_idx = static_cast<size_t>(i);
    const bool every = pass.targets[target_idx].num_written == params.num_tokens;
    const bool takes = !has_fresh && every && k_dtype == params.native_dtype;
    store(params, pass, target_idx, rows, takes ? fresh : nullptr);
    has_fresh = has_fresh || takes;
  });
  if (!has_fresh) fresh_keys(params, pass, rows, fresh);
  if (wide) {
    if (fresh != nullptr) launch_widen_16bit(fresh, params.fresh_k, elems, is_bf16(k_dtype), current_stream());
    if (params.fresh_v != nullptr) {
      launch_round_twice(params.v, params.fresh_v, elems, is_bf16(params.native_dtype),
                         is_bf16(fresh_value_dtype_of(params)), current_stream());
    }
  } else if (params.fresh_v != nullptr) {  // values are complete, and of the fresh type
    copy_on_device(params.v, params.fresh_v, elems * 2);
  }
  check_launches();
}

// The planned pass of a call; null if there is none.
DeviceWrite::Pass* DeviceWrite::find(const WriteKvParams& params) {
  const auto kept = kept_.find(params.pass);
  Pass& pass = kept == kept_.end() ? last_ : kept->second;
  if (params.pass == 0 || params.pass != pass.number || pass.num_tokens == 0) return nullptr;
  const auto slots_of = [](const WriteTarget& target) { return target.slots.data(); };
  ASYMKV_CHECK(params.num_tokens == pass.num_tokens && std::ranges::equal(params.targets, pass.slots, {}, slots_of),
               "two writes of pass {} with other tokens or targets", pass.number);
  return &pass;
}

DeviceWrite::Pass& DeviceWrite::pass_of(const WriteKvParams& params) {
  if (Pass* known = find(params)) return *known;
  ASYMKV_CHECK(current_stream() == nullptr, "a write of {} tokens is planned within a recording", params.num_tokens);
  Pass pass;
  pass.number = params.pass;
  pass.num_tokens = params.num_tokens;
  pass.kept = kept_.contains(params.pass);
  if (params.placed_positions == nullptr) pass.own_positions = stream_copy(std::as_bytes(params.positions));
  for (const WriteTarget& target : params.targets) {
    pass.slots.push_back(target.slots.data());
    pass.targets.push_back(make_plan(target.slots, num_slots(target), pass.kept ? even_share(params) : 0));
  }
  Pass& at = pass.kept ? kept_[params.pass] : last_;
  at = std::move(pass);
  return at;
}

// What a launch takes, counted in `plan`. room: runs that are launched at least; those without tokens do nothing.
std::vector<WriteRun> DeviceWrite::list_runs(std::span<const int64_t> slots, int64_t num_slots, int64_t room,
                                             Plan& plan) {
  const WritePlan planned = plan_write(slots, num_slots);
  std::vector<WriteRun> runs = planned.launch_order();
  if (std::ssize(runs) < room) runs.resize(static_cast<size_t>(room));
  plan.num_runs = std::ssize(runs);
  plan.num_whole = planned.num_whole();
  plan.num_written = planned.num_written;
  return runs;
}

DeviceWrite::Plan DeviceWrite::make_plan(std::span<const int64_t> slots, int64_t num_slots, int64_t room) {
  Plan plan;
  const std::vector<WriteRun> runs = list_runs(slots, num_slots, room, plan);
  plan.runs = stream_copy(std::as_bytes(std::span(runs)));
  return plan;
}

// The same memory gets other runs, where as many are launched.
bool DeviceWrite::replan(const WriteKvParams& params) {
  const auto kept = kept_.find(params.pass);
  if (kept == kept_.end()) return false;
  Pass& pass = kept->second;
  if (pass.num_tokens != params.num_tokens || pass.targets.size() != params.targets.size()) return false;
  if (params.placed_positions == nullptr) return false;
  finish();  // replays count from the first place on
  for (size_t i = 0; i < params.targets.size(); ++i) {
    const WriteTarget& target = params.targets[i];
    Plan next;
    const std::vector<WriteRun> runs = list_runs(target.slots, num_slots(target), even_share(params), next);
    Plan& plan = pass.targets[i];
    if (next.num_runs != plan.num_runs || next.num_whole != plan.num_whole) return false;
    copy_to_device(std::as_bytes(std::span(runs)), plan.runs.get());
    plan.num_written = next.num_written;
    pass.slots[i] = target.slots.data();
  }
  return true;
}

void DeviceWrite::replayed(const WriteKvParams& params) {
  const Pass& pass = kept_.at(params.pass);
  ASYMKV_CHECK(pending_.empty(), "{} writes before a replay are not counted yet", pending_.size());
  for (const auto& [counters, target_idx] : pass.recorded) {
    Pending pending = pending_of(params, target_idx, pass.targets[target_idx]);
    pending.k = counters.k;
    pending.v = counters.v;
    pending_.push_back(pending);
  }
}

WriteParams DeviceWrite::common_params(const WriteKvParams& params, const Pass& pass, const Rows& rows,
                                       const Plan& plan) {
  const DeviceTables::Rope rope = tables_.rope(*params.rope);
  WriteParams p;
  p.k = rows.k;
  p.v = rows.v;
  p.k_bias = params.k_bias;
  p.cosines = rope.cosines;
  p.sines = rope.sines;
  p.positions = params.placed_positions != nullptr ? params.placed_positions
                                                   : static_cast<const int32_t*>(pass.own_positions.get());
  p.runs = static_cast<const WriteRun*>(plan.runs.get());
  p.num_runs = static_cast<int32_t>(plan.num_runs);
  p.num_whole = static_cast<int32_t>(plan.num_whole);
  p.num_kv_heads = static_cast<int32_t>(params.geometry.num_kv_heads);
  p.native_is_bf16 = is_bf16(params.native_dtype);
  return p;
}

void DeviceWrite::store(const WriteKvParams& params, Pass& pass, size_t target_idx, const Rows& rows, void* fresh_k) {
  const WriteTarget& target = params.targets[target_idx];
  const KvLayerView& cache = target.cache;
  const KvGeometry& geometry = cache.layout->geometry();
  const Plan& on_device = pass.targets[target_idx];
  if (on_device.num_runs == 0) return;
  WriteParams p = common_params(params, pass, rows, on_device);
  if (cache.transform != nullptr) p.removed = tables_.of(cache.transform->removed);
  p.blocks = cache.tiled_blocks;
  p.scales = cache.tiled_scales;
  p.fixed_scales = tables_.of(std::vector<float>{cache.fixed_scales.key, cache.fixed_scales.value});
  p.fresh_k = fresh_k;
  const Pending pending = pending_of(params, target_idx, on_device);
  p.counters = params.recorded ? recorded_counters(pass) : next_counters(pending);
  if (params.recorded) pass.recorded.emplace_back(pending, target_idx);
  launch_write(choose_decode(geometry, cache.layout->format(), 1).config, p, current_stream());
}

// Of every token, also those that no target takes: written to scratch pages on the way.
void DeviceWrite::fresh_keys(const WriteKvParams& params, Pass& pass, const Rows& rows, void* fresh_k) {
  const DType dtype = fresh_key_dtype_of(params);
  const KvGeometry geometry{params.geometry.num_kv_heads, params.geometry.k_head_dim, params.geometry.k_head_dim};
  const KvFormat format{{.dtype = dtype}, {.dtype = dtype}};
  const TiledLayout tiled(geometry, format);
  if (pass.every_token.num_runs == 0) {
    std::vector<int64_t> slots(static_cast<size_t>(params.num_tokens));
    std::iota(slots.begin(), slots.end(), int64_t{0});
    pass.every_token = make_plan(slots, params.num_tokens, 0);
  }
  const int64_t num_pages = (params.num_tokens + kTiledPageSize - 1) / kTiledPageSize;
  const std::shared_ptr<void> blocks = stream_memory(tiled.plane_bytes(num_pages));
  WriteParams p = common_params(params, pass, rows, pass.every_token);
  p.blocks = static_cast<std::byte*>(blocks.get());
  p.fresh_k = fresh_k;
  launch_write(choose_decode(geometry, format, 1).config, p, current_stream());
}

DeviceWrite::Pending DeviceWrite::pending_of(const WriteKvParams& params, size_t target_idx, const Plan& plan) {
  const WriteTarget& target = params.targets[target_idx];
  const int64_t rows = plan.num_written * params.geometry.num_kv_heads;
  return {target.k_counters, target.v_counters, rows * params.geometry.k_head_dim, rows * params.geometry.v_head_dim};
}

WriteCounters* DeviceWrite::next_counters(const Pending& pending) {
  if (std::ssize(pending_) == kMaxPending) finish();
  pending_.push_back(pending);
  return counters_.as<WriteCounters>() + pending_.size() - 1;
}

// Replays count from the first place on.
WriteCounters* DeviceWrite::recorded_counters(const Pass& pass) const {
  ASYMKV_CHECK(std::ssize(pass.recorded) < kMaxPending, "a recording of more than {} writes", kMaxPending);
  return counters_.as<WriteCounters>() + pass.recorded.size();
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
