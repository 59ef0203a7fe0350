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
#include "asymkv/kernels/cpu/row_source-inl.h"
#include "asymkv/kernels/cpu/scratch.h"
#include "asymkv/kernels/cpu/tile_math-inl.h"
#include "asymkv/ops/attention.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu {
namespace HWY_NAMESPACE {

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
        map_(tile_map(params.sequences[static_cast<size_t>(task.sequence_idx)])),
        rows_(params, task, scratch) {
    const int64_t v_panels = (params.v_head_dim + kPanel - 1) / kPanel;
    key_elems_ = params.k_head_dim * kTileKeys;
    value_elems_ = v_panels * kTileKeys * kPanel;
    keys_ = scratch.key_tile.reserve(key_elems_);
    values_ = scratch.value_tile.reserve(value_elems_);
    key_rows_ = scratch.key_rows.reserve(kTileKeys * params.k_head_dim);
    clear();
  }

  Tile load_tile(int64_t tile_idx) {
    Tile tile;
    tile.first_pos = map_.first_pos(tile_idx);
    tile.num_keys = map_.num_keys(tile_idx);
    if (tile.num_keys < kTileKeys) clear();
    const bool stored = map_.is_stored(tile_idx);
    const Rows keys = rows_.key_rows(stored, tile.first_pos, tile.num_keys, key_rows_);
    pack_keys(keys.data, keys.stride, tile.num_keys, params_.k_head_dim, keys_);
    tile.values_finite = pack_values(stored, tile);
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

  // Into the panels [panel][key][kPanel]; false if any value is not finite (0 * x is then NaN).
  bool pack_values(bool stored, const Tile& tile) {
    const Narrow d;
    VecNarrow zeros = hn::Zero(d);
    rows_.value_rows(stored, tile.first_pos, tile.num_keys, [&](int64_t key, int64_t c, VecNarrow v) HWY_ATTR {
      zeros = hn::MulAdd(v, hn::Zero(d), zeros);
      hn::StoreU(v, d, values_ + c / kPanel * kTileKeys * kPanel + key * kPanel + c % kPanel);
    });
    return hn::AllTrue(d, hn::Eq(zeros, zeros));
  }

  const AttendParams& params_;
  TileMap map_;
  RowSource rows_;
  int64_t key_elems_ = 0;
  int64_t value_elems_ = 0;
  float* keys_ = nullptr;
  float* values_ = nullptr;
  float* key_rows_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
