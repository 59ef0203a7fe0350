// Arithmetic on tiles, compiled once per SIMD target.
#if defined(ASYMKV_KERNELS_CPU_TILE_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASYMKV_KERNELS_CPU_TILE_MATH_INL_H_
#undef ASYMKV_KERNELS_CPU_TILE_MATH_INL_H_
#else
#define ASYMKV_KERNELS_CPU_TILE_MATH_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VecF32 = hn::Vec<F32>;
constexpr int64_t kLanes = HWY_LANES(float);
// Width of a panel: the two vectors a micro-kernel keeps per row. With six rows that is 12 accumulators, which with
// two loads and one broadcast fit in 16 registers.
constexpr int64_t kPanel = 2 * kLanes;
constexpr int64_t kStripRows = 6;

HWY_INLINE VecF32 load(const float* from, int64_t offset) {
  return hn::LoadU(F32(), from + offset);
}
HWY_INLINE void store(VecF32 v, float* to, int64_t offset) {
  hn::StoreU(v, F32(), to + offset);
}
HWY_INLINE VecF32 broadcast(float x) {
  return hn::Set(F32(), x);
}

// 2^x for x <= 0: exactly 1 at 0 and exactly 0 below -126 (also -inf); NaN stays NaN. x = n + f with n integer and
// |f| <= 1/2; 2^f by a degree-6 polynomial (relative minimax error 1.9e-9, with FP32 rounding 1.3 ulp); n goes into the
// exponent bits. Adding 1.5 * 2^23 rounds to an integer and leaves n in the low mantissa bits.
HWY_INLINE VecF32 exp2_of(VecF32 x) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const VecF32 magic = broadcast(12582912.0F);
  const VecF32 shifted = hn::Add(x, magic);
  const VecF32 f = hn::Sub(x, hn::Sub(shifted, magic));
  VecF32 p = hn::MulAdd(f, broadcast(0x1.41d3340p-13F), broadcast(0x1.5f456a0p-10F));
  p = hn::MulAdd(f, p, broadcast(0x1.3b2dbc0p-7F));
  p = hn::MulAdd(f, p, broadcast(0x1.c6aed40p-5F));
  p = hn::MulAdd(f, p, broadcast(0x1.ebfbda0p-3F));
  p = hn::MulAdd(f, p, broadcast(0x1.62e4300p-1F));
  p = hn::MulAdd(f, p, broadcast(1.0F));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const VecF32 scaled = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  const VecF32 kept = hn::IfThenElse(hn::Eq(x, x), scaled, x);
  return hn::IfThenZeroElse(hn::Lt(x, broadcast(-126.0F)), kept);
}

// C[kRows, kPanel] = A[kRows, depth] * B, or alpha[row] * C + A * B. B: one panel, [depth][kPanel]. Strides in floats.
template <int64_t kRows, bool kAccumulate>
HWY_INLINE void multiply_panel(const float* HWY_RESTRICT a, int64_t a_stride, const float* HWY_RESTRICT b,
                               int64_t depth, float* HWY_RESTRICT c, int64_t c_stride,
                               const float* HWY_RESTRICT alpha) {
  VecF32 left[static_cast<size_t>(kRows)];
  VecF32 right[static_cast<size_t>(kRows)];
#pragma GCC unroll 6
  for (int64_t r = 0; r < kRows; ++r) {
    if constexpr (kAccumulate) {
      left[r] = hn::Mul(load(c, r * c_stride), broadcast(alpha[r]));
      right[r] = hn::Mul(load(c, r * c_stride + kLanes), broadcast(alpha[r]));
    } else {
      left[r] = right[r] = hn::Zero(F32());
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    const VecF32 b_left = load(b, k * kPanel);
    const VecF32 b_right = load(b, k * kPanel + kLanes);
#pragma GCC unroll 6
    for (int64_t r = 0; r < kRows; ++r) {
      const VecF32 x = broadcast(a[r * a_stride + k]);
      left[r] = hn::MulAdd(x, b_left, left[r]);
      right[r] = hn::MulAdd(x, b_right, right[r]);
    }
  }
#pragma GCC unroll 6
  for (int64_t r = 0; r < kRows; ++r) {
    store(left[r], c, r * c_stride);
    store(right[r], c, r * c_stride + kLanes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
