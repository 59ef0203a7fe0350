// The fused writer; compiled once per SIMD target.
#if defined(ASYMKV_KERNELS_CPU_WRITE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASYMKV_KERNELS_CPU_WRITE_ROWS_INL_H_
#undef ASYMKV_KERNELS_CPU_WRITE_ROWS_INL_H_
#else
#define ASYMKV_KERNELS_CPU_WRITE_ROWS_INL_H_
#endif

#include <vector>

#include "asymkv/kernels/checks.h"
#include "asymkv/kernels/cpu/encode-inl.h"
#include "asymkv/kernels/cpu/narrow-inl.h"
#include "asymkv/kernels/cpu/simd_kernels.h"
#include "asymkv/ops/attention.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu {
namespace HWY_NAMESPACE {

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
    turn_key(token, head, nullptr, k_dtype_, key_.data());
    const float* v = params_.v + row * geometry.v_head_dim;
    with_dtype(v_dtype_, [&]<DType kType>() { round_row<kType>(v, geometry.v_head_dim, value_.data()); });
    if (params_.fresh_k != nullptr) copy_row(key_, params_.fresh_k + row * geometry.k_head_dim);
    if (params_.fresh_v != nullptr) copy_row(value_, params_.fresh_v + row * geometry.v_head_dim);
    for (size_t t = 0; t < params_.targets.size(); ++t) store(token, head, t);
  }

 private:
  static void copy_row(const std::vector<float>& row, float* to) {
    std::memcpy(to, row.data(), row.size() * sizeof(float));
  }

  template <DType kType>
  static void round_row(const float* from, int64_t elems, float* to) {
    const Narrow d;
    for (int64_t i = 0; i < elems; i += kNarrow) hn::StoreU(rounded_to<kType>(hn::LoadU(d, from + i)), d, to + i);
  }

  // round_to(dtype, RoPE(k + (bias - removed))), multiply and add apart as RopeTable::rotate does them.
  void turn_key(int64_t token, int64_t head, const float* removed, DType dtype, float* key) const {
    const Narrow d;
    const int64_t dim = params_.geometry.k_head_dim;
    const float* k = params_.k + (token * params_.geometry.num_kv_heads + head) * dim;
    const float* bias = params_.k_bias == nullptr ? nullptr : params_.k_bias + head * dim;
    for (int64_t i = 0; i < dim; i += kNarrow) {
      VecNarrow constant = bias == nullptr ? hn::Zero(d) : hn::LoadU(d, bias + i);
      if (removed != nullptr) constant = hn::Sub(constant, hn::LoadU(d, removed + i));
      hn::StoreU(hn::Add(hn::LoadU(d, k + i), constant), d, key + i);
    }
    rotate(params_.positions[static_cast<size_t>(token)], key);
    with_dtype(dtype, [&]<DType kType>() { round_row<kType>(key, dim, key); });
  }

  void rotate(int64_t position, float* key) const {
    const Narrow d;
    const int64_t half = params_.rope->num_pairs();
    if (half % kNarrow != 0) return params_.rope->rotate(position, key);
    const float* cosine = params_.rope->cos_row(position);
    const float* sine = params_.rope->sin_row(position);
    for (int64_t p = 0; p < half; p += kNarrow) {
      const VecNarrow a = hn::LoadU(d, key + p);
      const VecNarrow b = hn::LoadU(d, key + p + half);
      const VecNarrow c = hn::LoadU(d, cosine + p);
      const VecNarrow s = hn::LoadU(d, sine + p);
      hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), d, key + p);
      hn::StoreU(hn::Add(hn::Mul(b, c), hn::Mul(a, s)), d, key + p + half);
    }
  }

  void store(int64_t token, int64_t head, size_t target_idx) {
    const WriteTarget& target = params_.targets[target_idx];
    const int64_t slot_idx = target.slots[static_cast<size_t>(token)];
    if (slot_idx < 0) return;
    const KvLayerView& cache = target.cache;
    const KvLayout& layout = *cache.layout;
    const int64_t page = slot_idx / layout.geometry().page_size;
    const int64_t slot = slot_idx % layout.geometry().page_size;
    const int64_t scale_idx = layout.scale_index(page, head, slot);
    const float* key = key_.data();
    if (cache.transform != nullptr) {
      turn_key(token, head, cache.transform->removed_of(head), params_.native_dtype, bare_key_.data());
      key = bare_key_.data();
    }
    const DType k_dtype = layout.format().key.dtype;
    const DType v_dtype = layout.format().value.dtype;
    const int64_t k_dim = params_.geometry.k_head_dim;
    const int64_t v_dim = params_.geometry.v_head_dim;
    if (cache.k_scales != nullptr) cache.k_scales[scale_idx] = row_scale(k_dtype, key, k_dim);
    if (cache.v_scales != nullptr) cache.v_scales[scale_idx] = row_scale(v_dtype, value_.data(), v_dim);
    with_dtype(k_dtype, [&]<DType kType>() {
      std::byte* place = cache.k_plane + layout.k_row_offset_bytes(page, head, slot);
      encode_elems<kType>(key, cache.k_scale(page, head, slot), k_dim, place, counters_[target_idx].k);
    });
    with_dtype(v_dtype, [&]<DType kType>() {
      std::byte* place = cache.v_plane + layout.v_row_offset_bytes(page, head, slot);
      encode_elems<kType>(value_.data(), cache.v_scale(page, head, slot), v_dim, place, counters_[target_idx].v);
    });
  }

  const WriteKvParams& params_;
  TargetCounters* counters_;
  DType k_dtype_;
  DType v_dtype_;
  std::vector<float> key_;
  std::vector<float> bare_key_;  // without the removed vector
  std::vector<float> value_;
};

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
