// Products with activations rounded to 16 bits in groups of 32; compiled once per SIMD target. A result is the FP32 sum
// of each group's exact integer dot product times the product of its two scales, and of its offset times the sum of its
// activations: groups i, i + 4, ... in order, then the four sums. The other rows of a batch do not matter.
#if defined(ASYMKV_KERNELS_CPU_MODEL_LINEAR_I16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASYMKV_KERNELS_CPU_MODEL_LINEAR_I16_INL_H_
#undef ASYMKV_KERNELS_CPU_MODEL_LINEAR_I16_INL_H_
#else
#define ASYMKV_KERNELS_CPU_MODEL_LINEAR_I16_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "asymkv/kernels/cpu/model/linear_f32-inl.h"
#include "asymkv/kernels/cpu/model/linear_kernels.h"
#include "asymkv/kernels/cpu/model/weight_groups-inl.h"
#include "asymkv/kernels/cpu/model/weight_scales-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu {
namespace HWY_NAMESPACE {

// x of each group = scale * code, |code| <= 32767, code rounded to nearest even.
void round_to_i16(const float* x, int64_t depth, int16_t* codes, float* scales, float* sums) {
  const hn::RebindToSigned<F32> d32;
  const hn::Rebind<int16_t, F32> d16;
  for (int64_t g = 0; g < depth / kGroup; ++g, x += kGroup, codes += kGroup) {
    VecF32 max = hn::Zero(F32());
    for (int64_t i = 0; i < kGroup; i += kLanes) max = hn::Max(max, hn::Abs(hn::LoadU(F32(), x + i)));
    const float largest = hn::GetLane(hn::MaxOfLanes(F32(), max));
    const VecF32 inverse = hn::Set(F32(), largest > 0.0F ? 32767.0F / largest : 0.0F);
    auto total = hn::Zero(d32);
    for (int64_t i = 0; i < kGroup; i += kLanes) {
      const auto code = hn::NearestInt(hn::Mul(hn::LoadU(F32(), x + i), inverse));
      total = hn::Add(total, code);
      hn::StoreU(hn::DemoteTo(d16, code), d16, codes + i);
    }
    scales[g] = largest / 32767.0F;
    sums[g] = scales[g] * static_cast<float>(hn::GetLane(hn::SumOfLanes(d32, total)));
  }
}

#if HWY_TARGET != HWY_SCALAR
using I16 = hn::CappedTag<int16_t, 16>;
using I32 = hn::RepartitionToWide<I16>;
using VecI16 = hn::Vec<I16>;
using VecI32 = hn::Vec<I32>;
constexpr int64_t kI16Lanes = HWY_MIN(HWY_LANES(int16_t), 16);
constexpr int64_t kHalfVecs = kGroup / 2 / kI16Lanes;
constexpr int64_t kGroupI16Vecs = 2 * kHalfVecs;

// The codes of a group as 16-bit integers, in order.
template <typename Group>
HWY_INLINE void widen_codes(const uint8_t* block, int64_t part, VecI16 (&out)[kGroupI16Vecs]) {
  const hn::RebindToSigned<Bytes> d8;
  const hn::Half<decltype(d8)> half;
  VecBytes codes[kByteVecs];
  Group::codes(block, part, codes);
#pragma GCC unroll 8
  for (int64_t i = 0; i < kByteVecs; ++i) {
    const auto bytes = hn::BitCast(d8, codes[i]);
    out[2 * i] = hn::PromoteTo(I16(), hn::LowerHalf(half, bytes));
    out[2 * i + 1] = hn::PromoteTo(I16(), hn::UpperHalf(half, bytes));
  }
}

// Exact sums of the lanes of four vectors, one in each lane.
HWY_INLINE hn::Vec<QuadI32> sum_lanes_of_four(VecI32 a, VecI32 b, VecI32 c, VecI32 d) {
  const I32 d32;
  const hn::RepartitionToWide<I32> d64;
  const auto ab = hn::BitCast(d64, hn::Add(hn::InterleaveLower(d32, a, b), hn::InterleaveUpper(d32, a, b)));
  const auto cd = hn::BitCast(d64, hn::Add(hn::InterleaveLower(d32, c, d), hn::InterleaveUpper(d32, c, d)));
  const auto sum =
      hn::Add(hn::BitCast(d32, hn::InterleaveLower(d64, ab, cd)), hn::BitCast(d32, hn::InterleaveUpper(d64, ab, cd)));
#if HWY_MAX_BYTES == 16
  return sum;
#else
  return hn::Add(hn::LowerHalf(QuadI32(), sum), hn::UpperHalf(QuadI32(), sum));
#endif
}

// Exact dot products of vectors [kBegin, kEnd) of four groups: a lane of a pair stays below 2 * 128 * 32767.
template <int64_t kBegin, int64_t kEnd>
HWY_INLINE hn::Vec<QuadI32> dot_four(const VecI16 (&w)[kQuad][kGroupI16Vecs], const int16_t* x) {
  VecI32 sums[kQuad];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kQuad; ++i) {
    VecI32 even = hn::Zero(I32());
    VecI32 odd = hn::Zero(I32());
#pragma GCC unroll 8
    for (int64_t v = kBegin; v < kEnd; ++v) {
      even = hn::ReorderWidenMulAccumulate(I32(), w[i][v], hn::LoadU(I16(), x + i * kGroup + v * kI16Lanes), even, odd);
    }
    sums[i] = hn::Add(even, odd);
  }
  return sum_lanes_of_four(sums[0], sums[1], sums[2], sums[3]);
}

HWY_INLINE VecQuad scaled(hn::Vec<QuadI32> dot, VecQuad scale) {
  return hn::Mul(hn::ConvertTo(QuadF32(), dot), scale);
}

// Adds four groups of one stored row, of groups [g, g + 4), to kRows sums: each weight is unpacked once.
template <typename Group, typename Scales, int64_t kRows>
HWY_INLINE void add_quad(const GroupQuad<Group>& quad, int64_t g, const RoundedInput& in,
                         VecQuad (&sums)[static_cast<size_t>(kRows)]) {
  const QuadF32 d;
  prefetch_quad(quad);
  const Scales scales(quad);
  VecI16 weights[kQuad][kGroupI16Vecs];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kQuad; ++i) widen_codes<Group>(quad.block[i], quad.part + i, weights[i]);
#pragma GCC unroll 8
  for (int64_t r = 0; r < kRows; ++r) {
    const int16_t* x = in.codes + (r * in.groups + g) * kGroup;
    const VecQuad x_scale = hn::LoadU(d, in.scales + r * in.groups + g);
    if constexpr (Group::kSplit) {
      const auto lower = dot_four<0, kHalfVecs>(weights, x);
      const auto upper = dot_four<kHalfVecs, kGroupI16Vecs>(weights, x);
      sums[r] = hn::Add(sums[r], scaled(lower, hn::Mul(scales.scale, x_scale)));
      sums[r] = hn::Add(sums[r], scaled(upper, hn::Mul(scales.upper_scale, x_scale)));
    } else {
      sums[r] = hn::Add(sums[r], scaled(dot_four<0, kGroupI16Vecs>(weights, x), hn::Mul(scales.scale, x_scale)));
    }
    if constexpr (Group::kOffset) {
      sums[r] = hn::Add(sums[r], hn::Mul(scales.offset, hn::LoadU(d, in.sums + r * in.groups + g)));
    }
  }
}

// One stored row against kRows rows of activations. Lane i of a sum gathers groups i, i + 4, ...
template <typename Group, typename Scales, int64_t kRows>
HWY_INLINE void multiply_i16(const uint8_t* row, const RoundedInput& in, VecQuad (&sums)[static_cast<size_t>(kRows)]) {
#pragma GCC unroll 8
  for (int64_t r = 0; r < kRows; ++r) sums[r] = hn::Zero(QuadF32());
  const int64_t groups = in.depth / kGroup;
  int64_t g = 0;
  if constexpr (Group::kBlockGroups == 1) {
    for (; g + kQuad <= groups; g += kQuad, row += kQuad * Group::kBlockBytes) {
      add_quad<Group, Scales, kRows>(GroupQuad<Group>(row, 0, kQuad), g, in, sums);
    }
    if (g < groups) add_quad<Group, Scales, kRows>(GroupQuad<Group>(row, 0, groups - g), g, in, sums);
  } else {
    static_assert(Group::kBlockGroups == 2 * kQuad);
    for (; g < groups; g += 2 * kQuad, row += Group::kBlockBytes) {
      add_quad<Group, Scales, kRows>(GroupQuad<Group>(row, 0, kQuad), g, in, sums);
      add_quad<Group, Scales, kRows>(GroupQuad<Group>(row, kQuad, kQuad), g + kQuad, in, sums);
    }
  }
}

template <typename Group, typename Scales, int64_t kRows>
void multiply_i16_rows(const StoredRows& w, const RoundedInput& in, const LinearOutput& out) {
  for (int64_t o = 0; o < w.num_rows; ++o) {
    VecQuad sums[static_cast<size_t>(kRows)];
    multiply_i16<Group, Scales, kRows>(w.data + o * w.row_bytes, in, sums);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      HWY_ALIGN float lanes[kQuad];
      hn::Store(sums[r], QuadF32(), lanes);
      put(out, r, w.first_column + o, (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
    }
  }
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
