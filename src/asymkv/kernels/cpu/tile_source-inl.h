// Keys and values of one tile, widened to FP32 and packed for the micro-kernels; compiled once per SIMD target.
#if defined(ASYMKV_KERNELS_CPU_TILE_SOURCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASYMKV_KERNELS_CPU_TILE_SOURCE_INL_H_
#undef ASYMKV_KERNELS_CPU_TILE_SOURCE_INL_H_
#else
#define ASYMKV_KERNELS_CPU_TILE_SOURCE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "asymkv/kernels/cpu/attend_plan.h"
#include "asymkv/kernels/cpu/narrow-inl.h"
#include "asymkv/kernels/cpu/scratch.h"
#include "asymkv/kernels/cpu/tile_math-inl.h"
#include "asymkv/ops/attention.h"
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

// Transposes num_keys rows into panels [panel][channel][kPanel]; columns past num_keys are left alone.
HWY_INLINE void pack_keys(const float* rows, int64_t row_stride, int64_t num_keys, int64_t dim, float* tile) {
  int64_t key = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  const auto pair_low = [&](auto a, auto b) {
    return hn::BitCast(d, hn::InterleaveLower(d64, hn::BitCast(d64, a), hn::BitCast(d64, b)));
  };
  const auto pair_high = [&](auto a, auto b) {
    return hn::BitCast(d, hn::InterleaveUpper(d64, hn::BitCast(d64, a), hn::BitCast(d64, b)));
  };
  for (; key + 4 <= num_keys; key += 4) {
    float* column = tile + key / kPanel * dim * kPanel + key % kPanel;
    const float* row = rows + key * row_stride;
    for (int64_t c = 0; c < dim; c += 4) {
      const auto r0 = hn::LoadU(d, row + c);
      const auto r1 = hn::LoadU(d, row + row_stride + c);
      const auto r2 = hn::LoadU(d, row + 2 * row_stride + c);
      const auto r3 = hn::LoadU(d, row + 3 * row_stride + c);
      const auto low01 = hn::InterleaveLower(d, r0, r1);
      const auto low23 = hn::InterleaveLower(d, r2, r3);
      const auto high01 = hn::InterleaveUpper(d, r0, r1);
      const auto high23 = hn::InterleaveUpper(d, r2, r3);
      hn::StoreU(pair_low(low01, low23), d, column + c * kPanel);
      hn::StoreU(pair_high(low01, low23), d, column + (c + 1) * kPanel);
      hn::StoreU(pair_low(high01, high23), d, column + (c + 2) * kPanel);
      hn::StoreU(pair_high(high01, high23), d, column + (c + 3) * kPanel);
    }
  }
#endif
  for (; key < num_keys; ++key) {
    float* column = tile + key / kPanel * dim * kPanel + key % kPanel;
    for (int64_t c = 0; c < dim; ++c) column[c * kPanel] = rows[key * row_stride + c];
  }
}

// Widens one row into the value panels [panel][key][kPanel]; returns 0 * x summed, NaN if any x is not finite.
template <DType kType>
HWY_INLINE VecNarrow pack_value(const std::byte* row, float scale, int64_t key, int64_t dim, float* tile,
                                VecNarrow finite) {
  const Narrow d;
  constexpr int64_t kBytes = dtype_bytes(kType);
  const auto factor = hn::Set(d, scale * kCodeUnit<kType>);
  for (int64_t c = 0; c < dim; c += kNarrow) {
    VecNarrow v = widen<kType>(row + c * kBytes);
    if constexpr (kBytes == 1) v = hn::Mul(v, factor);
    finite = hn::MulAdd(v, hn::Zero(d), finite);
    hn::StoreU(v, d, tile + c / kPanel * kTileKeys * kPanel + key * kPanel + c % kPanel);
  }
  return finite;
}

// A packed tile.
struct Tile {
  int64_t first_pos = 0;
  int64_t num_keys = 0;
  const float* keys = nullptr;    // [panel][k_head_dim][kPanel], zero past num_keys
  const float* values = nullptr;  // [panel][kTileKeys][kPanel], zero past num_keys and v_head_dim
  bool values_finite = true;
};

// Loads the tiles of one KV head of one sequence into scratch memory.
class TileSource {
 public:
  TileSource(const AttendParams& params, const AttendTask& task, Scratch& scratch)
      : params_(params),
        sequence_(params.sequences[static_cast<size_t>(task.sequence_idx)]),
        kv_head_(task.kv_head),
        map_(tile_map(sequence_)),
        scratch_(scratch) {
    const int64_t v_panels = (params.v_head_dim + kPanel - 1) / kPanel;
    key_elems_ = params.k_head_dim * kTileKeys;
    value_elems_ = v_panels * kTileKeys * kPanel;
    keys_ = scratch.key_tile.reserve(key_elems_);
    values_ = scratch.value_tile.reserve(value_elems_);
    rows_ = scratch.key_rows.reserve(kTileKeys * params.k_head_dim);
    clear();
    const KeyTransform* transform = sequence_.cache.transform;
    if (sequence_.stored_len == 0 || transform == nullptr) return;
    find_removed_groups(transform->removed_of(kv_head_), params.k_head_dim / 2, scratch.removed_groups);
  }

  Tile load_tile(int64_t tile_idx) {
    Tile tile;
    tile.first_pos = map_.first_pos(tile_idx);
    tile.num_keys = map_.num_keys(tile_idx);
    if (tile.num_keys < kTileKeys) clear();
    tile.values_finite = map_.is_stored(tile_idx) ? load_stored(tile) : load_fresh(tile);
    tile.keys = keys_;
    tile.values = values_;
    return tile;
  }

 private:
  // Zeros where a partial tile has no key and where the last value panel has no channel.
  void clear() {
    std::memset(keys_, 0, static_cast<size_t>(key_elems_) * sizeof(float));
    std::memset(values_, 0, static_cast<size_t>(value_elems_) * sizeof(float));
  }

  static bool all_finite(VecNarrow zeros) { return hn::AllTrue(Narrow(), hn::Eq(zeros, zeros)); }

  struct RowPlace {
    int64_t page;
    int64_t slot;
  };
  RowPlace place_of(int64_t position) const {
    const int64_t page_size = sequence_.cache.layout->geometry().page_size;
    return {page_index(sequence_.pages[static_cast<size_t>(position / page_size)]), position % page_size};
  }

  bool load_fresh(const Tile& tile) {
    const int64_t row = (tile.first_pos - sequence_.query_pos) * params_.num_kv_heads + kv_head_;
    const int64_t k_stride = params_.num_kv_heads * params_.k_head_dim;
    const int64_t v_stride = params_.num_kv_heads * params_.v_head_dim;
    pack_keys(sequence_.fresh_k + row * params_.k_head_dim, k_stride, tile.num_keys, params_.k_head_dim, keys_);
    const float* values = sequence_.fresh_v + row * params_.v_head_dim;
    VecNarrow finite = hn::Zero(Narrow());
    for (int64_t j = 0; j < tile.num_keys; ++j) {
      const auto* row_bytes = reinterpret_cast<const std::byte*>(values + j * v_stride);
      finite = pack_value<DType::kF32>(row_bytes, 1.0F, j, params_.v_head_dim, values_, finite);
    }
    return all_finite(finite);
  }

  bool load_stored(const Tile& tile) {
    const KvLayout& layout = *sequence_.cache.layout;
    with_dtype(layout.format().key.dtype, [&]<DType kType>() { load_stored_keys<kType>(tile); });
    bool finite = true;
    with_dtype(layout.format().value.dtype, [&]<DType kType>() { finite = load_stored_values<kType>(tile); });
    return finite;
  }

  template <DType kType>
  void load_stored_keys(const Tile& tile) {
    const KvLayerView& cache = sequence_.cache;
    const KvLayout& layout = *cache.layout;
    const KeyTransform* transform = cache.transform;
    const float* removed = transform == nullptr ? nullptr : transform->removed_of(kv_head_);
    for (int64_t j = 0; j < tile.num_keys; ++j) {
      const int64_t position = tile.first_pos + j;
      const auto [page, slot] = place_of(position);
      float* row = rows_ + j * params_.k_head_dim;
      widen_row<kType>(cache.k_plane + layout.k_row_offset_bytes(page, kv_head_, slot),
                       cache.k_scale(page, kv_head_, slot), params_.k_head_dim, row);
      if (removed != nullptr) add_removed(removed, *params_.rope, position, scratch_.removed_groups, row);
    }
    pack_keys(rows_, params_.k_head_dim, tile.num_keys, params_.k_head_dim, keys_);
  }

  template <DType kType>
  bool load_stored_values(const Tile& tile) {
    const KvLayerView& cache = sequence_.cache;
    const KvLayout& layout = *cache.layout;
    VecNarrow finite = hn::Zero(Narrow());
    for (int64_t j = 0; j < tile.num_keys; ++j) {
      const auto [page, slot] = place_of(tile.first_pos + j);
      finite = pack_value<kType>(cache.v_plane + layout.v_row_offset_bytes(page, kv_head_, slot),
                                 cache.v_scale(page, kv_head_, slot), j, params_.v_head_dim, values_, finite);
    }
    return all_finite(finite);
  }

  const AttendParams& params_;
  const AttendSequence& sequence_;
  int64_t kv_head_;
  TileMap map_;
  Scratch& scratch_;
  int64_t key_elems_ = 0;
  int64_t value_elems_ = 0;
  float* keys_ = nullptr;
  float* values_ = nullptr;
  float* rows_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
