#include "asymkv/kernels/cuda/host_write.h"

#include <algorithm>

#include "asymkv/base/error.h"
#include "asymkv/kernels/checks.h"
#include "asymkv/kernels/cuda/host_pages.h"
#include "asymkv/kernels/cuda/write_kernel.h"

namespace asymkv::cuda {
namespace {

// One layer's write: the rows of a call in the native type, the target's pages.
class LayerWriter {
 public:
  explicit LayerWriter(const WriteKvParams& params)
      : params_(params),
        elems_(static_cast<size_t>(params.num_tokens * params.geometry.num_kv_heads * params.geometry.k_head_dim)),
        k_(to_device(to_16bit(params.native_dtype, std::span(params.k, elems_)))),
        v_(to_device(to_16bit(params.native_dtype, std::span(params.v, elems_)))) {
    std::vector<float> cosines, sines;
    std::vector<int32_t> rows;
    const int64_t pairs = params.rope->num_pairs();
    for (const int32_t position : params.positions) {  // one row of the tables a token
      const float* cosine = params.rope->cos_row(position);
      const float* sine = params.rope->sin_row(position);
      cosines.insert(cosines.end(), cosine, cosine + pairs);
      sines.insert(sines.end(), sine, sine + pairs);
      rows.push_back(static_cast<int32_t>(rows.size()));
    }
    cosines_ = to_device(cosines);
    sines_ = to_device(sines);
    rows_ = to_device(rows);
    const auto bias_elems = static_cast<size_t>(params.geometry.num_kv_heads * params.geometry.k_head_dim);
    if (params.k_bias != nullptr) bias_ = to_device(std::span(params.k_bias, bias_elems));
  }

  void store(const WriteTarget& target) const {
    const KvLayout& layout = *target.cache.layout;
    const DecodeConfig config = choose_decode(layout.geometry(), layout.format(), 1).config;
    const int64_t page_size = layout.geometry().page_size;
    DevicePages pages(target.cache);
    std::vector<int64_t> slots;
    int64_t num_slots = 0;
    for (const int64_t slot : target.slots) {
      if (slot >= 0) slots.push_back(pages.add(slot / page_size) * page_size + slot % page_size);
      if (slot < 0) slots.push_back(-1);
      num_slots = std::max(num_slots, slots.back() + 1);
    }
    if (num_slots == 0) return;
    pages.upload();
    const KeyTransform* transform = target.cache.transform;
    const DeviceBuffer removed = transform == nullptr ? DeviceBuffer() : to_device(transform->removed);
    const WritePlan plan = plan_write(slots, num_slots);
    const WriteCounters seen = launch(config, plan, pages.blocks(), pages.scales(), pages.fixed_scales(), removed, {});
    pages.download();
    const int64_t written = plan.num_written * params_.geometry.num_kv_heads;
    add(target.k_counters, written * params_.geometry.k_head_dim, seen.k_saturated, seen.k_non_finite);
    add(target.v_counters, written * params_.geometry.v_head_dim, seen.v_saturated, seen.v_non_finite);
  }

  // fresh_k of every token, skipped ones too: written to scratch pages on the way.
  void fresh_keys(float* to) const {
    const DType dtype = fresh_key_dtype_of(params_);
    const KvGeometry geometry{params_.geometry.num_kv_heads, params_.geometry.k_head_dim, params_.geometry.k_head_dim};
    const KvFormat format{{.dtype = dtype}, {.dtype = dtype}};
    const TiledLayout tiled(geometry, format);
    std::vector<int64_t> slots;
    for (int64_t t = 0; t < params_.num_tokens; ++t) slots.push_back(t);
    const DeviceBuffer blocks(tiled.plane_bytes((params_.num_tokens + kPageSize - 1) / kPageSize));
    const DeviceBuffer fresh(static_cast<int64_t>(elems_) * 2);
    launch(choose_decode(geometry, format, 1).config, plan_write(slots, params_.num_tokens), blocks, {}, nullptr, {},
           fresh);
    const std::vector<uint16_t> bits = to_host<uint16_t>(fresh, static_cast<int64_t>(elems_));
    std::ranges::copy(from_16bit(dtype, bits), to);
  }

 private:
  static void add(SideCounters* counters, int64_t elems, unsigned long long saturated, unsigned long long non_finite) {
    if (counters == nullptr) return;
    *counters += {elems, static_cast<int64_t>(saturated), static_cast<int64_t>(non_finite)};
  }

  WriteCounters launch(const DecodeConfig& config, const WritePlan& plan, const DeviceBuffer& blocks,
                       const DeviceBuffer& scales, const float* fixed, const DeviceBuffer& removed,
                       const DeviceBuffer& fresh) const {
    const DeviceBuffer runs = to_device(plan.launch_order());
    const DeviceBuffer counters = to_device(std::vector<WriteCounters>(1));
    WriteParams p;
    p.k = k_.data();
    p.v = v_.data();
    p.k_bias = bias_.as<float>();
    p.removed = removed.as<float>();
    p.cosines = cosines_.as<float>();
    p.sines = sines_.as<float>();
    p.positions = rows_.as<int32_t>();
    p.runs = runs.as<WriteRun>();
    p.num_runs = static_cast<int32_t>(plan.runs.size());
    p.num_whole = static_cast<int32_t>(plan.num_whole());
    p.num_kv_heads = static_cast<int32_t>(params_.geometry.num_kv_heads);
    p.blocks = blocks.data();
    p.scales = scales.data();
    p.fixed_scales = fixed;
    p.fresh_k = fresh.data();
    p.counters = counters.as<WriteCounters>();
    p.native_is_bf16 = params_.native_dtype == DType::kBF16;
    launch_write(config, p, nullptr);
    return to_host<WriteCounters>(counters, 1).front();  // waits for the launch
  }

  const WriteKvParams& params_;
  size_t elems_;
  DeviceBuffer k_, v_, cosines_, sines_, rows_, bias_;
};

}  // namespace

void write_from_host(const WriteKvParams& params) {
  if (params.native_dtype == DType::kF32) {
    throw_unsupported("the CUDA writer takes rows in BF16 or FP16, not in f32");
  }
  if (params.num_tokens == 0) return;
  const LayerWriter writer(params);
  for (const WriteTarget& target : params.targets) writer.store(target);
  if (params.fresh_k != nullptr) writer.fresh_keys(params.fresh_k);
  if (params.fresh_v == nullptr) return;
  const DType dtype = fresh_value_dtype_of(params);
  const int64_t elems = params.num_tokens * params.geometry.num_kv_heads * params.geometry.v_head_dim;
  for (int64_t i = 0; i < elems; ++i) params.fresh_v[i] = round_to(dtype, round_to(params.native_dtype, params.v[i]));
}

}  // namespace asymkv::cuda
