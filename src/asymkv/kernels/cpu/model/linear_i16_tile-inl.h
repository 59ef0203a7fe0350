// Products of many rows of rounded activations with a tile of unpacked weights; compiled once per SIMD target. Outputs
// are in the lanes, so that nothing is summed across them; the sums are those of linear_i16-inl.h, bit for bit.
#if defined(ASYMKV_KERNELS_CPU_MODEL_LINEAR_I16_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASYMKV_KERNELS_CPU_MODEL_LINEAR_I16_TILE_INL_H_
#undef ASYMKV_KERNELS_CPU_MODEL_LINEAR_I16_TILE_INL_H_
#else
#define ASYMKV_KERNELS_CPU_MODEL_LINEAR_I16_TILE_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "asymkv/kernels/cpu/model/linear_i16-inl.h"
#include "asymkv/kernels/cpu/model/linear_kernels.h"
#include "asymkv/kernels/cpu/model/weight_groups-inl.h"
#include "asymkv/kernels/cpu/model/weight_scales-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
constexpr int64_t kPanel = 2 * kLanes;    // outputs of a tile that a kernel takes at once
constexpr int64_t kPairs = kGroup / 2;    // pairs of codes in a group
using PairI32 = hn::RebindToSigned<F32>;  // a pair of codes or their products' sum, of one output, in each lane
using PairI16 = hn::Repartition<int16_t, PairI32>;
using VecPair = hn::Vec<PairI32>;

// Panels of unpacked weights, each [groups][kPairs][kPanel] pairs of codes, and [groups][factors][kPanel] floats.
struct TileView {
  int32_t* pairs;
  float* factors;
};

// What a group has besides codes: a scale, a scale and an offset, or a scale for each half.
enum class Factors { kScale, kOffset, kSplit };
template <typename Group>
constexpr Factors kFactorsOf = Group::kOffset  ? Factors::kOffset
                               : Group::kSplit ? Factors::kSplit
                                               : Factors::kScale;
constexpr int64_t num_factors(Factors factors) {
  return factors == Factors::kScale ? 1 : 2;
}

template <Factors kFactors>
HWY_INLINE TileView tile_panel(const RoundedTile& tile, int64_t groups, int64_t panel) {
  return {tile.pairs + panel * groups * kPairs * kPanel,
          tile.factors + panel * groups * num_factors(kFactors) * kPanel};
}

// Puts four groups of one stored row, from group g on, into lane `lane` of a panel; groups past `count` are left out.
template <typename Group, typename Scales>
HWY_INLINE void unpack_quad(const GroupQuad<Group>& quad, int64_t count, int64_t g, const TileView& tile,
                            int64_t lane) {
  const Scales scales(quad);
  HWY_ALIGN float factors[2][kQuad];
  hn::Store(scales.scale, QuadF32(), factors[0]);
  if constexpr (Group::kSplit) hn::Store(scales.upper_scale, QuadF32(), factors[1]);
  if constexpr (Group::kOffset) hn::Store(scales.offset, QuadF32(), factors[1]);
  for (int64_t i = 0; i < count; ++i) {
    VecI16 codes[kGroupI16Vecs];
    widen_codes<Group>(quad.block[i], quad.part + i, codes);
    HWY_ALIGN int32_t pairs[kPairs];
#pragma GCC unroll 8
    for (int64_t v = 0; v < kGroupI16Vecs; ++v) {
      hn::Store(hn::BitCast(I32(), codes[v]), I32(), pairs + v * kI16Lanes / 2);
    }
    int32_t* out = tile.pairs + (g + i) * kPairs * kPanel + lane;
    for (int64_t p = 0; p < kPairs; ++p) out[p * kPanel] = pairs[p];
    constexpr int64_t kCount = num_factors(kFactorsOf<Group>);
    for (int64_t f = 0; f < kCount; ++f) tile.factors[((g + i) * kCount + f) * kPanel + lane] = factors[f][i];
  }
}

// Rows past the last are zeros.
template <typename Group, typename Scales>
void unpack_i16_tile(const StoredRows& w, int64_t depth, const RoundedTile& tile) {
  constexpr Factors kFactors = kFactorsOf<Group>;
  const int64_t groups = depth / kGroup;
  const int64_t panels = (w.num_rows + kPanel - 1) / kPanel;
  if (w.num_rows % kPanel != 0) {
    const TileView last = tile_panel<kFactors>(tile, groups, panels - 1);
    std::fill_n(last.pairs, groups * kPairs * kPanel, 0);
    std::fill_n(last.factors, groups * num_factors(kFactors) * kPanel, 0.0F);
  }
  for (int64_t o = 0; o < w.num_rows; ++o) {
    const uint8_t* row = w.data + o * w.row_bytes;
    const TileView view = tile_panel<kFactors>(tile, groups, o / kPanel);
    for (int64_t g = 0; g < groups; g += kQuad) {
      const int64_t part = g % Group::kBlockGroups;
      const GroupQuad<Group> quad(row + g / Group::kBlockGroups * Group::kBlockBytes, part, groups - g);
      unpack_quad<Group, Scales>(quad, std::min(kQuad, groups - g), g, view, o % kPanel);
    }
  }
}

// Dot products of pairs [kBegin, kEnd) of a group with kRows rows of activations.
template <int64_t kRows, int64_t kBegin, int64_t kEnd>
HWY_INLINE void multiply_pairs(const int32_t* HWY_RESTRICT pairs, const int16_t* HWY_RESTRICT x, int64_t x_stride,
                               VecPair (&dots)[static_cast<size_t>(kRows)][2]) {
  const PairI32 d;
  VecPair rest[static_cast<size_t>(kRows)][2];  // of targets that do not add a pair's products at once
#pragma GCC unroll 16
  for (int64_t r = 0; r < kRows; ++r) {
    dots[r][0] = dots[r][1] = rest[r][0] = rest[r][1] = hn::Zero(d);
  }
#pragma GCC unroll 4
  for (int64_t p = kBegin; p < kEnd; ++p) {
    const auto w0 = hn::BitCast(PairI16(), hn::LoadU(d, pairs + p * kPanel));
    const auto w1 = hn::BitCast(PairI16(), hn::LoadU(d, pairs + p * kPanel + kLanes));
#pragma GCC unroll 16
    for (int64_t r = 0; r < kRows; ++r) {
      int32_t pair;
      std::memcpy(&pair, x + r * x_stride + 2 * p, sizeof(pair));
      const auto a = hn::BitCast(PairI16(), hn::Set(d, pair));
      dots[r][0] = hn::ReorderWidenMulAccumulate(d, a, w0, dots[r][0], rest[r][0]);
      dots[r][1] = hn::ReorderWidenMulAccumulate(d, a, w1, dots[r][1], rest[r][1]);
    }
  }
#pragma GCC unroll 16
  for (int64_t r = 0; r < kRows; ++r) {
    dots[r][0] = hn::RearrangeToOddPlusEven(dots[r][0], rest[r][0]);
    dots[r][1] = hn::RearrangeToOddPlusEven(dots[r][1], rest[r][1]);
  }
}

// sums[kRows][kPanel] += product(row, v, x) for both vectors v of a panel; x: the row's number of `x_factors`.
template <int64_t kRows, typename Product>
HWY_INLINE void add_products(const float* x_factors, int64_t x_stride, float* HWY_RESTRICT sums,
                             const Product& product) {
#pragma GCC unroll 16
  for (int64_t r = 0; r < kRows; ++r) {
    const VecF32 x = hn::Set(F32(), x_factors[r * x_stride]);
#pragma GCC unroll 2
    for (int64_t v = 0; v < 2; ++v) {
      float* sum = sums + r * kPanel + v * kLanes;
      hn::StoreU(hn::Add(hn::LoadU(F32(), sum), product(r, v, x)), F32(), sum);
    }
  }
}

// sums += dot product * (scale * x_scale).
template <int64_t kRows>
HWY_INLINE void add_scaled(const VecPair (&dots)[static_cast<size_t>(kRows)][2], const float* scale,
                           const float* x_scale, int64_t x_stride, float* HWY_RESTRICT sums) {
  add_products<kRows>(x_scale, x_stride, sums, [&](int64_t r, int64_t v, VecF32 x) HWY_ATTR {
    const VecF32 factor = hn::Mul(hn::LoadU(F32(), scale + v * kLanes), x);
    return hn::Mul(hn::ConvertTo(F32(), dots[r][v]), factor);
  });
}

// sums += offset * x_sum.
template <int64_t kRows>
HWY_INLINE void add_offsets(const float* offset, const float* x_sum, int64_t x_stride, float* HWY_RESTRICT sums) {
  add_products<kRows>(x_sum, x_stride, sums, [&](int64_t /*r*/, int64_t v, VecF32 x) HWY_ATTR {
    return hn::Mul(hn::LoadU(F32(), offset + v * kLanes), x);
  });
}

// kRows rows of activations against one panel: four sums, of groups i, i + 4, ...
template <Factors kFactors, int64_t kRows>
HWY_INLINE void multiply_panel(const TileView& panel, const RoundedInput& in, float (&sums)[kQuad][kRows * kPanel]) {
  for (auto& sum : sums) std::fill_n(sum, kRows * kPanel, 0.0F);
  const int64_t groups = in.depth / kGroup;
  const int64_t x_stride = in.groups * kGroup;
  for (int64_t g = 0; g < groups; ++g) {
    const int32_t* pairs = panel.pairs + g * kPairs * kPanel;
    const float* factors = panel.factors + g * num_factors(kFactors) * kPanel;
    const int16_t* x = in.codes + g * kGroup;
    float* sum = sums[g % kQuad];
    VecPair dots[static_cast<size_t>(kRows)][2];
    if constexpr (kFactors == Factors::kSplit) {
      multiply_pairs<kRows, 0, kPairs / 2>(pairs, x, x_stride, dots);
      add_scaled<kRows>(dots, factors, in.scales + g, in.groups, sum);
      multiply_pairs<kRows, kPairs / 2, kPairs>(pairs, x, x_stride, dots);
      add_scaled<kRows>(dots, factors + kPanel, in.scales + g, in.groups, sum);
    } else {
      multiply_pairs<kRows, 0, kPairs>(pairs, x, x_stride, dots);
      add_scaled<kRows>(dots, factors, in.scales + g, in.groups, sum);
    }
    if constexpr (kFactors == Factors::kOffset) add_offsets<kRows>(factors + kPanel, in.sums + g, in.groups, sum);
  }
}

template <Factors kFactors, int64_t kRows>
void multiply_i16_tile(const RoundedTile& tile, const RoundedInput& in, const LinearOutput& out) {
  const int64_t panels = (tile.num_rows + kPanel - 1) / kPanel;
  for (int64_t p = 0; p < panels; ++p) {
    HWY_ALIGN float sums[kQuad][kRows * kPanel];
    multiply_panel<kFactors, kRows>(tile_panel<kFactors>(tile, in.depth / kGroup, p), in, sums);
    const int64_t count = std::min(kPanel, tile.num_rows - p * kPanel);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t o = 0; o < count; ++o) {
        const int64_t e = r * kPanel + o;
        const float sum = (sums[0][e] + sums[1][e]) + (sums[2][e] + sums[3][e]);
        put(out, r, tile.first_column + p * kPanel + o, sum);
      }
    }
  }
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
