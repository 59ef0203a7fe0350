// Key and value rows of one KV head of one sequence, widened to FP32; compiled once per SIMD target.
#if defined(ASYMKV_KERNELS_CPU_ROW_SOURCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASYMKV_KERNELS_CPU_ROW_SOURCE_INL_H_
#undef ASYMKV_KERNELS_CPU_ROW_SOURCE_INL_H_
#else
#define ASYMKV_KERNELS_CPU_ROW_SOURCE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "asymkv/kernels/cpu/attend_plan.h"
#include "asymkv/kernels/cpu/narrow-inl.h"
#include "asymkv/kernels/cpu/scratch.h"
#include "asymkv/ops/attention.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu {
namespace HWY_NAMESPACE {

// key += R(position) removed, on the groups of pairs where anything was removed.
HWY_INLINE void add_removed(const float* removed, const RopeTable& rope, int64_t position,
                            const std::vector<int64_t>& groups, float* HWY_RESTRICT key) {
  const Narrow d;
  const int64_t half = rope.num_pairs();
  const float* cosine = rope.cos_row(position);
  const float* sine = rope.sin_row(position);
  for (const int64_t p : groups) {
    const auto a = hn::LoadU(d, removed + p);
    const auto b = hn::LoadU(d, removed + p + half);
    const auto c = hn::LoadU(d, cosine + p);
    const auto s = hn::LoadU(d, sine + p);
    const auto turned_a = hn::NegMulAdd(b, s, hn::Mul(a, c));
    const auto turned_b = hn::MulAdd(a, s, hn::Mul(b, c));
    hn::StoreU(hn::Add(hn::LoadU(d, key + p), turned_a), d, key + p);
    hn::StoreU(hn::Add(hn::LoadU(d, key + p + half), turned_b), d, key + p + half);
  }
}

// First pair of every group of kNarrow pairs in which some pair was removed.
HWY_INLINE void find_removed_groups(const float* removed, int64_t half, std::vector<int64_t>& groups) {
  groups.clear();
  for (int64_t p = 0; p < half; p += kNarrow) {
    bool any = false;
    for (int64_t i = p; i < p + kNarrow; ++i) any |= removed[i] != 0.0F || removed[i + half] != 0.0F;
    if (any) groups.push_back(p);
  }
}

// FP32 rows, `stride` floats apart.
struct Rows {
  const float* data;
  int64_t stride;
};

// Rows are asked for by position; the rows of one request are all stored or all fresh.
class RowSource {
 public:
  RowSource(const AttendParams& params, const AttendTask& task, Scratch& scratch)
      : params_(params),
        sequence_(params.sequences[static_cast<size_t>(task.sequence_idx)]),
        kv_head_(task.kv_head),
        removed_groups_(scratch.removed_groups) {
    if (sequence_.stored_len == 0) return;
    const KvLayerView& cache = sequence_.cache;
    const KvLayout& layout = *cache.layout;
    page_size_ = layout.geometry().page_size;
    keys_ = {cache.k_plane + layout.k_row_offset_bytes(0, kv_head_, 0), layout.k_page_stride_bytes(),
             layout.k_row_stride_bytes(), cache.k_scales};
    values_ = {cache.v_plane + layout.v_row_offset_bytes(0, kv_head_, 0), layout.v_page_stride_bytes(),
               layout.v_row_stride_bytes(), cache.v_scales};
    first_scale_ = layout.scale_index(0, kv_head_, 0);
    page_scales_ = layout.page_scale_elems();
    if (cache.k_scales == nullptr) keys_.fixed_scale = cache.k_scale(0, 0, 0);
    if (cache.v_scales == nullptr) values_.fixed_scale = cache.v_scale(0, 0, 0);
    if (cache.transform == nullptr) return;
    removed_ = cache.transform->removed_of(kv_head_);
    find_removed_groups(removed_, params.k_head_dim / 2, removed_groups_);
  }

  // Key rows [position, position + count); buffer: [count, k_head_dim], used where rows are not FP32 already.
  Rows key_rows(bool stored, int64_t position, int64_t count, float* buffer) const {
    if (!stored) {
      const int64_t stride = params_.num_kv_heads * params_.k_head_dim;
      const int64_t row = position - sequence_.query_pos;
      return {sequence_.fresh_k + row * stride + kv_head_ * params_.k_head_dim, stride};
    }
    with_dtype(sequence_.cache.layout->format().key.dtype,
               [&]<DType kType>() { widen_stored_keys<kType>(position, count, buffer); });
    return {buffer, params_.k_head_dim};
  }

  // Value rows [position, position + count): sink(j, c, vector) takes channels [c, c + kNarrow) of row j.
  template <typename Sink>
  void value_rows(bool stored, int64_t position, int64_t count, const Sink& sink) const {
    if (!stored) {
      const int64_t stride = params_.num_kv_heads * params_.v_head_dim;
      const float* rows = sequence_.fresh_v + (position - sequence_.query_pos) * stride + kv_head_ * params_.v_head_dim;
      for (int64_t j = 0; j < count; ++j) {
        for (int64_t c = 0; c < params_.v_head_dim; c += kNarrow)
          sink(j, c, hn::LoadU(Narrow(), rows + j * stride + c));
      }
      return;
    }
    with_dtype(sequence_.cache.layout->format().value.dtype,
               [&]<DType kType>() { widen_stored_values<kType>(position, count, sink); });
  }

  // Asks memory for stored rows that will be wanted soon; those past the stored ones are left out.
  // Inlined, as GCC drops calls of functions that do nothing but prefetch.
  HWY_INLINE void prefetch(int64_t position, int64_t count) const {
    count = std::min(count, sequence_.stored_len - position);
    prefetch_side(keys_, position, count);
    prefetch_side(values_, position, count);
  }

 private:
  static constexpr int64_t kCacheLineBytes = 64;

  // One side of the cache.
  struct Side {
    const std::byte* rows = nullptr;  // of this KV head
    int64_t page_stride_bytes = 0;
    int64_t row_stride_bytes = 0;
    const float* scales = nullptr;  // null: fixed_scale
    float fixed_scale = 1.0F;
  };
  // Neighbouring slots of one page.
  struct Run {
    int64_t count;
    const std::byte* rows;
    const float* scales;  // null where the side's scale is fixed
  };

  // The stored rows from `position` on that share its page, at most `count`.
  HWY_INLINE Run run_at(const Side& side, int64_t position, int64_t count) const {
    const auto narrow_position = static_cast<uint32_t>(position);  // 32-bit divisions take half the time
    const auto narrow_size = static_cast<uint32_t>(page_size_);
    const int64_t page = page_index(sequence_.pages[narrow_position / narrow_size]);
    const int64_t slot = narrow_position % narrow_size;
    const std::byte* rows = side.rows + page * side.page_stride_bytes + slot * side.row_stride_bytes;
    const float* scales = side.scales == nullptr ? nullptr : side.scales + first_scale_ + page * page_scales_ + slot;
    return {std::min(count, page_size_ - slot), rows, scales};
  }

  HWY_INLINE void prefetch_side(const Side& side, int64_t position, int64_t count) const {
    for (int64_t done = 0; done < count;) {
      const Run run = run_at(side, position + done, count - done);
      const int64_t bytes = run.count * side.row_stride_bytes;
      for (int64_t i = 0; i < bytes; i += kCacheLineBytes) hwy::Prefetch(run.rows + i);
      done += run.count;
    }
  }

  template <DType kType>
  void widen_stored_keys(int64_t position, int64_t count, float* buffer) const {
    for (int64_t done = 0; done < count;) {
      const Run run = run_at(keys_, position + done, count - done);
      for (int64_t i = 0; i < run.count; ++i) {
        float* row = buffer + (done + i) * params_.k_head_dim;
        const float scale = run.scales == nullptr ? keys_.fixed_scale : run.scales[i];
        widen_row<kType>(run.rows + i * keys_.row_stride_bytes, scale, params_.k_head_dim, row);
        if (removed_ != nullptr) add_removed(removed_, *params_.rope, position + done + i, removed_groups_, row);
      }
      done += run.count;
    }
  }

  template <DType kType, typename Sink>
  void widen_stored_values(int64_t position, int64_t count, const Sink& sink) const {
    for (int64_t done = 0; done < count;) {
      const Run run = run_at(values_, position + done, count - done);
      for (int64_t i = 0; i < run.count; ++i) {
        const float scale = run.scales == nullptr ? values_.fixed_scale : run.scales[i];
        widen_each<kType>(run.rows + i * values_.row_stride_bytes, scale, params_.v_head_dim,
                          [&](int64_t c, VecNarrow v) HWY_ATTR { sink(done + i, c, v); });
      }
      done += run.count;
    }
  }

  const AttendParams& params_;
  const AttendSequence& sequence_;
  int64_t kv_head_;
  int64_t page_size_ = 1;
  int64_t first_scale_ = 0;  // of this KV head, in a page
  int64_t page_scales_ = 0;
  Side keys_;
  Side values_;
  const float* removed_ = nullptr;  // [k_head_dim]; null: nothing was removed
  std::vector<int64_t>& removed_groups_;
};

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
