// Vectors of at most eight channels, widened from stored codes; compiled once per SIMD target.
#if defined(ASYMKV_KERNELS_CPU_NARROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASYMKV_KERNELS_CPU_NARROW_INL_H_
#undef ASYMKV_KERNELS_CPU_NARROW_INL_H_
#else
#define ASYMKV_KERNELS_CPU_NARROW_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "asymkv/tensor/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows are widened eight channels at a time at most, so that every head dim that is a multiple of 8 works.
using Narrow = hn::CappedTag<float, 8>;
using VecNarrow = hn::Vec<Narrow>;
constexpr int64_t kNarrow = HWY_MIN(HWY_LANES(float), 8);

// What a code of widen() has to be multiplied by, besides its scale. Where halves widen in hardware, E4M3 bits are
// moved into a half's place, which makes them 2^-8 of their value.
constexpr bool kHalvesWiden = HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON;
template <DType kType>
inline constexpr float kCodeUnit = (kType == DType::kE4M3 && kHalvesWiden) ? 256.0F : 1.0F;

#if HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON
// E4M3 codes as halves of 2^-8 their value, by moving bits: widened with its sign, a code is its sign and seven bits;
// exponent and mantissa go below a half's exponent, so that subnormal codes become subnormal halves. Only 0x7f has no
// counterpart: it is NaN.
template <class D16>
HWY_INLINE auto e4m3_halves(D16 d16, const std::byte* p) {
  const hn::Rebind<int8_t, D16> d8;
  const auto magnitude = hn::Set(d16, 0x3f80);
  const auto code = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p)));
  const auto bits = hn::And(hn::ShiftLeft<7>(code), hn::Set(d16, static_cast<int16_t>(0xbf80)));
  const auto is_nan = hn::Eq(hn::And(bits, magnitude), magnitude);
  return hn::Or(bits, hn::VecFromMask(d16, is_nan));
}
#endif

// N codes at p as FP32, without scale and unit.
template <DType kType>
HWY_INLINE VecNarrow widen(const std::byte* p) {
  const Narrow d;
  const hn::Rebind<uint32_t, Narrow> du;
  const hn::Rebind<int32_t, Narrow> di;
  if constexpr (kType == DType::kF32) {
    VecNarrow v = hn::Zero(d);
    std::memcpy(&v, p, sizeof(v));
    return v;
  } else if constexpr (kType == DType::kBF16) {
    const hn::Rebind<uint16_t, Narrow> d16;
    const auto h = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, h)));
  } else if constexpr (kType == DType::kF16) {
#if HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON
    const hn::Rebind<hwy::float16_t, Narrow> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
#else
    HWY_ALIGN float wide[kNarrow];
    for (int64_t i = 0; i < kNarrow; ++i) {
      uint16_t h;
      std::memcpy(&h, p + i * 2, sizeof(h));
      wide[i] = f16_to_f32(h);
    }
    return hn::Load(d, wide);
#endif
  } else if constexpr (kCodeUnit<kType> != 1.0F) {
#if HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON
    const hn::Rebind<hwy::float16_t, Narrow> half;
    return hn::PromoteTo(d, hn::BitCast(half, e4m3_halves(hn::Rebind<int16_t, Narrow>(), p)));
#endif
  } else {
    const hn::Rebind<uint8_t, Narrow> d8;
    const auto code = hn::PromoteTo(du, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(p)));
    if constexpr (kType == DType::kI8) {
      return hn::ConvertTo(d, hn::Sub(hn::BitCast(di, code), hn::Set(di, 128)));
    } else {
      // Normal codes move into place; the eight subnormal ones are units of 2^-9; 0x7f is NaN.
      const auto magnitude = hn::And(code, hn::Set(du, 0x7fU));
      const auto sign = hn::ShiftLeft<24>(hn::Xor(code, magnitude));
      const auto normal = hn::BitCast(d, hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(du, 120U << 23)));
      const auto units = hn::ConvertTo(d, hn::BitCast(di, magnitude));
      const auto is_normal = hn::Ge(units, hn::Set(d, 8.0F));
      auto value = hn::IfThenElse(is_normal, normal, hn::Mul(units, hn::Set(d, 0x1p-9F)));
      value = hn::IfThenElse(hn::Eq(units, hn::Set(d, 127.0F)), hn::NaN(d), value);
      return hn::Or(value, hn::BitCast(d, sign));
    }
  }
}

// Calls sink(c, vector) with channels [c, c + kNarrow) of a row, scaled.
template <DType kType, typename Sink>
HWY_INLINE void widen_each(const std::byte* row, float scale, int64_t elems, const Sink& sink) {
  const Narrow d;
  constexpr int64_t kBytes = dtype_bytes(kType);
  const auto factor = hn::Set(d, scale * kCodeUnit<kType>);
  int64_t c = 0;
#if HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON
  if constexpr (kType == DType::kE4M3) {
    // Twice as many codes fit into a vector while they are halves.
    const hn::CappedTag<int16_t, 2 * kNarrow> d16;
    const hn::Half<decltype(d16)> half16;
    const hn::Rebind<hwy::float16_t, Narrow> half;
#pragma GCC unroll 2
    for (; c + 2 * kNarrow <= elems; c += 2 * kNarrow) {
      const auto halves = e4m3_halves(d16, row + c);
      sink(c, hn::Mul(hn::PromoteTo(d, hn::BitCast(half, hn::LowerHalf(half16, halves))), factor));
      sink(c + kNarrow, hn::Mul(hn::PromoteTo(d, hn::BitCast(half, hn::UpperHalf(half16, halves))), factor));
    }
  }
#endif
#pragma GCC unroll 4
  for (; c < elems; c += kNarrow) {
    VecNarrow v = widen<kType>(row + c * kBytes);
    if constexpr (kBytes == 1) v = hn::Mul(v, factor);
    sink(c, v);
  }
}

template <DType kType>
HWY_INLINE void widen_row(const std::byte* in, float scale, int64_t elems, float* HWY_RESTRICT out) {
  widen_each<kType>(in, scale, elems, [out](int64_t c, VecNarrow v) HWY_ATTR { hn::StoreU(v, Narrow(), out + c); });
}

// Calls body with the dtype as a template value.
template <typename Body>
HWY_INLINE void with_dtype(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body.template operator()<DType::kF32>();
    case DType::kF16:
      return body.template operator()<DType::kF16>();
    case DType::kBF16:
      return body.template operator()<DType::kBF16>();
    case DType::kE4M3:
      return body.template operator()<DType::kE4M3>();
    case DType::kI8:
      return body.template operator()<DType::kI8>();
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
