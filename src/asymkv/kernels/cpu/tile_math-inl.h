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

// Calls body<rows>() for the number of rows of a strip.
template <typename Body>
HWY_INLINE void with_strip_rows(int64_t rows, const Body& body) {
  switch (rows) {
    case 1:
      return body.template operator()<1>();
    case 2:
      return body.template operator()<2>();
    case 3:
      return body.template operator()<3>();
    case 4:
      return body.template operator()<4>();
    case 5:
      return body.template operator()<5>();
    default:
      return body.template operator()<kStripRows>();
  }
}

HWY_INLINE void scale_row(float factor, float* row, int64_t count) {
  for (int64_t c = 0; c < count; c += kLanes) store(hn::Mul(load(row, c), broadcast(factor)), row, c);
}

// What one micro-kernel multiplies; strides in floats.
struct Product {
  const float* a = nullptr;  // [rows][depth], both by strides
  int64_t a_row_stride = 0;
  int64_t a_depth_stride = 1;
  const float* b = nullptr;  // [depth][vectors]
  int64_t b_stride = kPanel;
  int64_t depth = 0;
  float* c = nullptr;  // [rows][vectors]
  int64_t c_stride = 0;
};

// C = A * B, or C += A * B. Each element is gathered in order of depth by fused multiply-adds, whatever the shape of
// the kernel.
template <int64_t kRows, int64_t kVecs, bool kAccumulate>
HWY_INLINE void multiply(const Product& product) {
  const auto [a, a_row_stride, a_depth_stride, b, b_stride, depth, c, c_stride] = product;
  VecF32 sums[static_cast<size_t>(kRows)][static_cast<size_t>(kVecs)];
#pragma GCC unroll 16
  for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVecs; ++v) {
      sums[r][v] = kAccumulate ? load(c, r * c_stride + v * kLanes) : hn::Zero(F32());
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    VecF32 right[static_cast<size_t>(kVecs)];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVecs; ++v) right[v] = load(b, k * b_stride + v * kLanes);
#pragma GCC unroll 16
    for (int64_t r = 0; r < kRows; ++r) {
      const VecF32 x = broadcast(a[r * a_row_stride + k * a_depth_stride]);
#pragma GCC unroll 4
      for (int64_t v = 0; v < kVecs; ++v) sums[r][v] = hn::MulAdd(x, right[v], sums[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVecs; ++v) store(sums[r][v], c, r * c_stride + v * kLanes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
