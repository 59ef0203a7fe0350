#include "asymkv/kernels/cpu/write_rows.h"

#include <algorithm>
#include <vector>

#include "asymkv/kernels/checks.h"

namespace asymkv::cpu {
namespace {

// One call's constants and one task's rows.
class RowWriter {
 public:
  RowWriter(const WriteKvParams& params, TargetCounters* counters)
      : params_(params),
        counters_(counters),
        k_dtype_(fresh_key_dtype_of(params)),
        v_dtype_(fresh_value_dtype_of(params)),
        key_(static_cast<size_t>(params.geometry.k_head_dim)),
        bare_key_(key_.size()),
        value_(static_cast<size_t>(params.geometry.v_head_dim)) {}

  void write(int64_t token, int64_t head) {
    const KvGeometry& geometry = params_.geometry;
    const int64_t row = token * geometry.num_kv_heads + head;
    turn_key(token, head, nullptr, k_dtype_, key_);
    const float* v = params_.v + row * geometry.v_head_dim;
    for (size_t i = 0; i < value_.size(); ++i) value_[i] = round_to(v_dtype_, v[i]);
    if (params_.fresh_k != nullptr) std::ranges::copy(key_, params_.fresh_k + row * geometry.k_head_dim);
    if (params_.fresh_v != nullptr) std::ranges::copy(value_, params_.fresh_v + row * geometry.v_head_dim);
    for (size_t t = 0; t < params_.targets.size(); ++t) store(token, head, t);
  }

 private:
  void turn_key(int64_t token, int64_t head, const float* removed, DType dtype, std::vector<float>& key) const {
    const int64_t dim = params_.geometry.k_head_dim;
    const float* k = params_.k + (token * params_.geometry.num_kv_heads + head) * dim;
    const float* bias = params_.k_bias == nullptr ? nullptr : params_.k_bias + head * dim;
    for (int64_t i = 0; i < dim; ++i) {
      float constant = bias == nullptr ? 0.0F : bias[i];
      if (removed != nullptr) constant -= removed[i];
      key[static_cast<size_t>(i)] = k[i] + constant;
    }
    params_.rope->rotate(params_.positions[static_cast<size_t>(token)], key.data());
    for (float& x : key) x = round_to(dtype, x);
  }

  void store(int64_t token, int64_t head, size_t target_idx) {
    const WriteTarget& target = params_.targets[target_idx];
    const int64_t slot_idx = target.slots[static_cast<size_t>(token)];
    if (slot_idx < 0) return;
    const KvLayerView& cache = target.cache;
    const KvLayout& layout = *cache.layout;
    const KvFormat& format = layout.format();
    const int64_t page = slot_idx / layout.geometry().page_size;
    const int64_t slot = slot_idx % layout.geometry().page_size;
    const int64_t scale_idx = layout.scale_index(page, head, slot);
    std::span<const float> key = key_;
    if (cache.transform != nullptr) {
      turn_key(token, head, cache.transform->removed_of(head), params_.native_dtype, bare_key_);
      key = bare_key_;
    }
    if (cache.k_scales != nullptr) cache.k_scales[scale_idx] = dynamic_scale(format.key.dtype, key);
    if (cache.v_scales != nullptr) cache.v_scales[scale_idx] = dynamic_scale(format.value.dtype, value_);
    encode_row(format.key.dtype, cache.k_scale(page, head, slot), key,
               cache.k_plane + layout.k_row_offset_bytes(page, head, slot), counters_[target_idx].k);
    encode_row(format.value.dtype, cache.v_scale(page, head, slot), value_,
               cache.v_plane + layout.v_row_offset_bytes(page, head, slot), counters_[target_idx].v);
  }

  const WriteKvParams& params_;
  TargetCounters* counters_;
  DType k_dtype_;
  DType v_dtype_;
  std::vector<float> key_;
  std::vector<float> bare_key_;  // without the removed vector
  std::vector<float> value_;
};

}  // namespace

void write_tokens(const WriteKvParams& params, int64_t begin, int64_t end, TargetCounters* counters) {
  RowWriter writer(params, counters);
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t head = 0; head < params.geometry.num_kv_heads; ++head) writer.write(token, head);
  }
}

}  // namespace asymkv::cpu
