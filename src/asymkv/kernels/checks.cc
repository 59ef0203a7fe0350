#include "asymkv/kernels/checks.h"

#include <algorithm>

#include "asymkv/base/error.h"
#include "asymkv/kv/limits.h"

namespace asymkv {
namespace {

void check_planes(const KvLayerView& view, KvMemory memory) {
  const KvLayout& layout = *view.layout;
  const bool k_scales = layout.has_k_scales(), v_scales = layout.has_v_scales();
  if (memory == KvMemory::kDevice) {
    ASYMKV_CHECK(view.tiled_blocks != nullptr, "cache of {} pages without planes in device memory", view.num_pages);
    ASYMKV_CHECK((k_scales || v_scales) == (view.tiled_scales != nullptr), "scale planes do not fit the format {}",
                 layout.format().id());
    return;
  }
  ASYMKV_CHECK(view.k_plane != nullptr && view.v_plane != nullptr, "cache of {} pages without planes in host memory",
               view.num_pages);
  ASYMKV_CHECK(k_scales == (view.k_scales != nullptr) && v_scales == (view.v_scales != nullptr),
               "scale planes do not fit the format {}", layout.format().id());
}

void check_view(const KvLayerView& view, const KvGeometry& geometry, KvMemory memory) {
  const KvLayout& layout = *view.layout;
  const KvGeometry& own = layout.geometry();
  ASYMKV_CHECK(own.num_kv_heads == geometry.num_kv_heads && own.k_head_dim == geometry.k_head_dim &&
                   own.v_head_dim == geometry.v_head_dim,
               "cache of {} KV heads x {}/{} in a call of {} x {}/{}", own.num_kv_heads, own.k_head_dim, own.v_head_dim,
               geometry.num_kv_heads, geometry.k_head_dim, geometry.v_head_dim);
  check_planes(view, memory);
  const KeyTransform* transform = view.transform;
  ASYMKV_CHECK(layout.format().key.prebias == (transform != nullptr), "key transform does not fit the format {}",
               layout.format().id());
  if (transform == nullptr) return;
  ASYMKV_CHECK(transform->num_kv_heads == own.num_kv_heads && transform->head_dim == own.k_head_dim,
               "transform of {} x {} for keys of {} x {}", transform->num_kv_heads, transform->head_dim,
               own.num_kv_heads, own.k_head_dim);
}

void check_rope(const RopeTable* rope, int64_t k_head_dim, int64_t num_positions) {
  ASYMKV_CHECK(rope != nullptr, "no RoPE table where keys are turned");
  ASYMKV_CHECK(2 * rope->num_pairs() == k_head_dim, "RoPE table of {} pairs for a key head dim of {}",
               rope->num_pairs(), k_head_dim);
  ASYMKV_CHECK(num_positions <= rope->num_positions(), "RoPE table of {} positions, {} needed", rope->num_positions(),
               num_positions);
}

void check_target(const WriteKvParams& params, const WriteTarget& target) {
  ASYMKV_CHECK(static_cast<int64_t>(target.slots.size()) == params.num_tokens, "{} slots for {} tokens",
               target.slots.size(), params.num_tokens);
  const int64_t num_slots = target.cache.num_pages * target.cache.layout->geometry().page_size;
  for (const int64_t slot : target.slots) {
    ASYMKV_CHECK(slot >= -1 && slot < num_slots, "slot {} outside the plane of {} slots", slot, num_slots);
  }
  const KvFormat& format = target.cache.layout->format();
  ASYMKV_CHECK(fresh_key_dtype(format, params.native_dtype) == fresh_key_dtype_of(params) &&
                   fresh_value_dtype(format, params.native_dtype) == fresh_value_dtype_of(params),
               "targets of one write with different fresh types: {}", format.id());
}

void check_stored_view(const AttendParams& params, const AttendSequence& sequence, KvMemory memory) {
  if (sequence.stored_len == 0) return;
  ASYMKV_CHECK(sequence.cache.layout != nullptr, "{} stored keys without a layout", sequence.stored_len);
  const int64_t page_size = sequence.cache.layout->geometry().page_size;
  check_view(sequence.cache, {params.num_kv_heads, params.k_head_dim, params.v_head_dim, page_size}, memory);
  if (sequence.cache.transform != nullptr) check_rope(params.rope, params.k_head_dim, sequence.stored_len);
}

void check_stored_pages(const AttendSequence& sequence) {
  if (sequence.stored_len == 0) return;
  const KvLayout& layout = *sequence.cache.layout;
  const int64_t needed = layout.pages_for(sequence.stored_len);
  ASYMKV_CHECK(static_cast<int64_t>(sequence.pages.size()) >= needed, "{} pages for {} stored keys of {} a page",
               sequence.pages.size(), sequence.stored_len, layout.geometry().page_size);
  for (int64_t i = 0; i < needed; ++i) {
    const int64_t page = page_index(sequence.pages[static_cast<size_t>(i)]);
    ASYMKV_CHECK(page >= 0 && page < sequence.cache.num_pages, "page id {} outside the pool of {}", page,
                 sequence.cache.num_pages);
  }
}

void check_rows(DType dtype, KvMemory memory) {
  ASYMKV_CHECK(dtype == DType::kF32 || (dtype == DType::kBF16 && memory == KvMemory::kDevice), "rows of {}",
               dtype_name(dtype));
}

void check_sequence(const AttendSequence& sequence) {
  ASYMKV_CHECK(sequence.query_row >= 0 && sequence.num_queries >= 0 && sequence.query_pos >= 0 &&
                   sequence.stored_len >= 0 && sequence.num_fresh >= 0,
               "negative size: row {}, {} queries at {}, {} stored, {} fresh", sequence.query_row, sequence.num_queries,
               sequence.query_pos, sequence.stored_len, sequence.num_fresh);
  ASYMKV_CHECK(sequence.num_fresh == 0 || (sequence.fresh_k != nullptr && sequence.fresh_v != nullptr),
               "{} fresh keys without data", sequence.num_fresh);
  ASYMKV_CHECK(sequence.num_fresh == 0 || sequence.stored_len <= sequence.query_pos,
               "{} stored keys overlap fresh ones from position {}", sequence.stored_len, sequence.query_pos);
  check_stored_pages(sequence);
}

}  // namespace

DType fresh_key_dtype_of(const WriteKvParams& params) {
  if (params.targets.empty()) return params.native_dtype;
  return fresh_key_dtype(params.targets[0].cache.layout->format(), params.native_dtype);
}

DType fresh_value_dtype_of(const WriteKvParams& params) {
  if (params.targets.empty()) return params.native_dtype;
  return fresh_value_dtype(params.targets[0].cache.layout->format(), params.native_dtype);
}

std::string common_refusal(const KvGeometry& geometry, int64_t group) {
  if (group < 1 || group > kMaxQueryGroup) {
    return fmt::format("{} query heads per KV head: groups of 1 to {} are served", group, kMaxQueryGroup);
  }
  if (geometry.num_kv_heads <= 0 || geometry.k_head_dim <= 0 || geometry.v_head_dim <= 0 || geometry.page_size <= 0) {
    return fmt::format("KV geometry needs positive sizes: {} KV heads, key dim {}, value dim {}, page size {}",
                       geometry.num_kv_heads, geometry.k_head_dim, geometry.v_head_dim, geometry.page_size);
  }
  return {};
}

void check_write_params(const WriteKvParams& params, KvMemory memory) {
  ASYMKV_CHECK(params.num_tokens >= 0 && static_cast<int64_t>(params.positions.size()) == params.num_tokens,
               "{} positions for {} tokens", params.positions.size(), params.num_tokens);
  ASYMKV_CHECK(dtype_bytes(params.native_dtype) >= 2, "native dtype {} is no model type",
               dtype_name(params.native_dtype));
  check_rows(params.row_dtype, memory);
  ASYMKV_CHECK(params.row_dtype == DType::kF32 ||
                   (params.row_dtype == params.native_dtype && fresh_key_dtype_of(params) == params.row_dtype &&
                    fresh_value_dtype_of(params) == params.row_dtype),
               "{} rows where the native or a fresh type is another", dtype_name(params.row_dtype));
  int64_t num_positions = 0;
  for (const int32_t position : params.positions) {
    ASYMKV_CHECK(position >= 0, "negative position {}", position);
    num_positions = std::max<int64_t>(num_positions, int64_t{position} + 1);
  }
  check_write_layer(params, memory);
  check_rope(params.rope, params.geometry.k_head_dim, num_positions);
  for (const WriteTarget& target : params.targets) check_target(params, target);
}

void check_write_layer(const WriteKvParams& params, KvMemory memory) {
  ASYMKV_CHECK(params.num_tokens == 0 || (params.k != nullptr && params.v != nullptr), "{} tokens without data",
               params.num_tokens);
  for (const WriteTarget& target : params.targets) {
    ASYMKV_CHECK(target.cache.layout != nullptr, "write target without a layout");
    check_view(target.cache, params.geometry, memory);
  }
}

void check_attend_params(const AttendParams& params, KvMemory memory) {
  ASYMKV_CHECK(params.num_kv_heads > 0 && params.num_q_heads > 0 && params.num_q_heads % params.num_kv_heads == 0,
               "{} query heads do not divide over {} KV heads", params.num_q_heads, params.num_kv_heads);
  ASYMKV_CHECK(params.k_head_dim > 0 && params.v_head_dim > 0, "head dims {} and {}", params.k_head_dim,
               params.v_head_dim);
  ASYMKV_CHECK(params.window >= 0 && params.logit_soft_cap >= 0.0F, "window {}, soft cap {}", params.window,
               params.logit_soft_cap);
  check_rows(params.row_dtype, memory);
  ASYMKV_CHECK(params.row_dtype == DType::kF32 || params.row_dtype == params.fresh_dtype, "{} rows, fresh ones of {}",
               dtype_name(params.row_dtype), dtype_name(params.fresh_dtype));
  check_attend_layer(params, memory);
  for (const AttendSequence& sequence : params.sequences) check_sequence(sequence);
}

void check_attend_layer(const AttendParams& params, KvMemory memory) {
  ASYMKV_CHECK(params.sequences.empty() || (params.q != nullptr && params.out != nullptr), "no query or output rows");
  for (const AttendSequence& sequence : params.sequences) check_stored_view(params, sequence, memory);
}

void require_write_support(const AttentionBackend& backend, const WriteKvParams& params) {
  for (const WriteTarget& target : params.targets) {
    const KvLayout& layout = *target.cache.layout;
    const Support support = backend.supports(layout.geometry(), layout.format(), 1, Phase::kWrite);
    if (!support.ok) throw_unsupported("{}", support.reason);
  }
}

void require_attend_support(const AttentionBackend& backend, const AttendParams& params) {
  const int64_t group = params.num_q_heads / params.num_kv_heads;
  const KvLayout* last = nullptr;
  for (const AttendSequence& sequence : params.sequences) {
    KvGeometry geometry{params.num_kv_heads, params.k_head_dim, params.v_head_dim};
    KvFormat format;
    if (sequence.cache.layout != nullptr) {
      if (sequence.cache.layout == last) continue;
      last = sequence.cache.layout;
      geometry = last->geometry();
      format = last->format();
    }
    const Support support = backend.supports(geometry, format, group, Phase::kMixed);
    if (!support.ok) throw_unsupported("{}", support.reason);
  }
}

}  // namespace asymkv
