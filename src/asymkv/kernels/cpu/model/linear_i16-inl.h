// Products with activations rounded to 16 bits in groups of 32, for few rows; compiled once per SIMD target.
#if defined(ASYMKV_KERNELS_CPU_MODEL_LINEAR_I16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASYMKV_KERNELS_CPU_MODEL_LINEAR_I16_INL_H_
#undef ASYMKV_KERNELS_CPU_MODEL_LINEAR_I16_INL_H_
#else
#define ASYMKV_KERNELS_CPU_MODEL_LINEAR_I16_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "asymkv/kernels/cpu/model/linear_f32-inl.h"
#include "asymkv/kernels/cpu/model/linear_kernels.h"
#include "asymkv/kernels/cpu/model/weight_groups-inl.h"
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
constexpr int64_t kI16Lanes = HWY_MIN(HWY_LANES(int16_t), 16);
constexpr int64_t kHalfVecs = kGroup / 2 / kI16Lanes;
using DotF32 = hn::Rebind<float, I32>;

// Exact sum of 16 products, spread over lanes: each lane stays below 8 * 128 * 32767.
HWY_INLINE hn::Vec<I32> multiply_half(const hn::Vec<I16> (&w)[kHalfVecs], const int16_t* x) {
  hn::Vec<I32> even = hn::Zero(I32());
  hn::Vec<I32> odd = hn::Zero(I32());
#pragma GCC unroll 8
  for (int64_t i = 0; i < kHalfVecs; ++i) {
    even = hn::ReorderWidenMulAccumulate(I32(), w[i], hn::LoadU(I16(), x + i * kI16Lanes), even, odd);
  }
  return hn::Add(even, odd);
}

HWY_INLINE hn::Vec<DotF32> scaled(hn::Vec<I32> dot, float scale, hn::Vec<DotF32> sum) {
  return hn::MulAdd(hn::ConvertTo(DotF32(), dot), hn::Set(DotF32(), scale), sum);
}

template <typename Group, int64_t kRows, int64_t kOuts>
HWY_INLINE void multiply_i16(const StoredRows& w, int64_t first, const RoundedInput& in, const LinearOutput& out) {
  const hn::Rebind<int8_t, I16> d8;
  hn::Vec<DotF32> sums[static_cast<size_t>(kOuts)][static_cast<size_t>(kRows)];
  float offsets[static_cast<size_t>(kOuts)][static_cast<size_t>(kRows)] = {};
#pragma GCC unroll 8
  for (int64_t o = 0; o < kOuts; ++o) {
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) sums[o][r] = hn::Zero(DotF32());
  }
  const uint8_t* block = w.data + first * w.row_bytes;
  const int64_t groups = in.depth / kGroup;
  for (int64_t g = 0; g < groups; block += Group::kBlockBytes) {
    for (int64_t part = 0; part < Group::kBlockGroups; ++part, ++g) {
#pragma GCC unroll 8
      for (int64_t o = 0; o < kOuts; ++o) {
        VecBytes codes[kByteVecs];
        Group::codes(block + o * w.row_bytes, part, codes);
        alignas(32) uint8_t unpacked[kGroup];
#pragma GCC unroll 8
        for (int64_t i = 0; i < kByteVecs; ++i) hn::Store(codes[i], Bytes(), unpacked + i * kByteLanes);
        const GroupScale scale = Group::scale(block + o * w.row_bytes, part);
        hn::Vec<I16> low[kHalfVecs];
        hn::Vec<I16> high[kHalfVecs];
#pragma GCC unroll 8
        for (int64_t i = 0; i < kHalfVecs; ++i) {
          const auto* bytes = reinterpret_cast<const int8_t*>(unpacked) + i * kI16Lanes;
          low[i] = hn::PromoteTo(I16(), hn::LoadU(d8, bytes));
          high[i] = hn::PromoteTo(I16(), hn::LoadU(d8, bytes + kGroup / 2));
        }
#pragma GCC unroll 8
        for (int64_t r = 0; r < kRows; ++r) {
          const int16_t* x = in.codes + r * in.depth + g * kGroup;
          const float x_scale = in.scales[r * groups + g];
          const auto lower = multiply_half(low, x);
          const auto upper = multiply_half(high, x + kGroup / 2);
          if constexpr (Group::kSplit) {
            sums[o][r] = scaled(lower, x_scale * scale.scale, sums[o][r]);
            sums[o][r] = scaled(upper, x_scale * scale.upper_scale, sums[o][r]);
          } else {
            sums[o][r] = scaled(hn::Add(lower, upper), x_scale * scale.scale, sums[o][r]);
          }
          if constexpr (Group::kOffset) offsets[o][r] += scale.offset * in.sums[r * groups + g];
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int64_t o = 0; o < kOuts; ++o) {
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      const float dot = hn::GetLane(hn::SumOfLanes(DotF32(), sums[o][r]));
      put(out, r, w.first_column + first + o, dot + offsets[o][r]);
    }
  }
}

template <typename Group, int64_t kRows>
void multiply_i16_rows(const StoredRows& w, const RoundedInput& in, const LinearOutput& out) {
  constexpr int64_t kOuts = kRows <= 2 ? 4 : 2;
  int64_t o = 0;
  for (; o + kOuts <= w.num_rows; o += kOuts) multiply_i16<Group, kRows, kOuts>(w, o, in, out);
  for (; o < w.num_rows; ++o) multiply_i16<Group, kRows, 1>(w, o, in, out);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
