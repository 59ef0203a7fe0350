// The codec of kv/codec.h and tensor/dtype.h eight channels at a time, byte for byte; compiled once per SIMD target.
#if defined(ASYMKV_KERNELS_CPU_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASYMKV_KERNELS_CPU_ENCODE_INL_H_
#undef ASYMKV_KERNELS_CPU_ENCODE_INL_H_
#else
#define ASYMKV_KERNELS_CPU_ENCODE_INL_H_
#endif

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "asymkv/kernels/cpu/narrow-inl.h"
#include "asymkv/kv/codec.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu {
namespace HWY_NAMESPACE {

using NarrowU = hn::Rebind<uint32_t, Narrow>;
using NarrowI = hn::Rebind<int32_t, Narrow>;
using VecNarrowU = hn::Vec<NarrowU>;

HWY_INLINE VecNarrowU bits_of(VecNarrow x) {
  return hn::BitCast(NarrowU(), x);
}
HWY_INLINE VecNarrowU set_bits(uint32_t bits) {
  return hn::Set(NarrowU(), bits);
}
HWY_INLINE int64_t count_true(hn::Mask<Narrow> mask) {
  return static_cast<int64_t>(hn::CountTrue(Narrow(), mask));
}
HWY_INLINE hn::Mask<Narrow> is_finite(VecNarrow x) {
  return hn::Lt(hn::Abs(x), hn::Set(Narrow(), HUGE_VALF));  // false for NaN
}
// a where a < b as unsigned numbers below 2^31.
HWY_INLINE auto less(VecNarrowU a, VecNarrowU b) {
  return hn::RebindMask(NarrowU(), hn::Lt(hn::BitCast(NarrowI(), a), hn::BitCast(NarrowI(), b)));
}

// f32_to_bf16 in the low half of each lane.
HWY_INLINE VecNarrowU to_bf16(VecNarrow x) {
  const VecNarrowU u = bits_of(x);
  const VecNarrowU odd = hn::And(hn::ShiftRight<16>(u), set_bits(1));
  const VecNarrowU rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, set_bits(0x7fff))));
  const VecNarrowU quiet = hn::Or(hn::ShiftRight<16>(u), set_bits(0x40));
  return hn::IfThenElse(less(set_bits(0x7f800000U), hn::And(u, set_bits(0x7fffffffU))), quiet, rounded);
}

// f32_to_f16 in the low half of each lane; the branches of the scalar form as selections.
HWY_INLINE VecNarrowU to_f16(VecNarrow x) {
  const VecNarrowU u = bits_of(x);
  const VecNarrowU magnitude = hn::And(u, set_bits(0x7fffffffU));
  const VecNarrowU sign = hn::ShiftRight<16>(hn::Xor(u, magnitude));
  const VecNarrowU odd = hn::And(hn::ShiftRight<13>(magnitude), set_bits(1));
  const VecNarrowU normal =
      hn::ShiftRight<13>(hn::Sub(hn::Add(magnitude, hn::Add(odd, set_bits(0xfff))), set_bits(0x38000000U)));
  const VecNarrow shifted = hn::Add(hn::BitCast(Narrow(), magnitude), hn::Set(Narrow(), 0.5F));
  const VecNarrowU subnormal = hn::Sub(bits_of(shifted), set_bits(0x3f000000U));
  const VecNarrowU nan = hn::Or(set_bits(0x7e00), hn::And(hn::ShiftRight<13>(magnitude), set_bits(0x3ff)));
  VecNarrowU half = hn::IfThenElse(less(magnitude, set_bits(0x38800000U)), subnormal, normal);
  half = hn::IfThenElse(less(magnitude, set_bits(0x477ff000U)), half, set_bits(0x7c00));
  half = hn::IfThenElse(less(set_bits(0x7f800000U), magnitude), nan, half);
  return hn::Or(sign, half);
}

// encode_e4m3 in the low byte of each lane.
HWY_INLINE VecNarrowU to_e4m3(VecNarrow x) {
  const Narrow d;
  const auto is_number = hn::RebindMask(NarrowU(), hn::Eq(x, x));  // Ne is ordered on some targets
  const VecNarrow capped = hn::Min(hn::Abs(x), hn::Set(d, kE4M3Max));
  const VecNarrowU bits = bits_of(capped);
  const VecNarrowU odd = hn::And(hn::ShiftRight<20>(bits), set_bits(1));
  const VecNarrowU rounded = hn::Add(bits, hn::Add(odd, set_bits(0x7ffff)));
  const VecNarrowU normal = hn::ShiftRight<20>(hn::Sub(rounded, set_bits(120U << 23)));
  const VecNarrow big = hn::Set(d, 0x1p14F);
  const VecNarrowU subnormal = hn::Sub(bits_of(hn::Add(capped, big)), bits_of(big));
  const auto is_subnormal = hn::RebindMask(NarrowU(), hn::Lt(capped, hn::Set(d, 0x1p-6F)));
  const VecNarrowU sign = hn::And(hn::ShiftRight<24>(bits_of(x)), set_bits(0x80));
  const VecNarrowU code = hn::Or(sign, hn::IfThenElse(is_subnormal, subnormal, normal));
  return hn::IfThenElseZero(is_number, code);
}

// encode_i8 in the low byte of each lane.
HWY_INLINE VecNarrowU to_i8(VecNarrow x) {
  const Narrow d;
  const VecNarrow number = hn::IfThenElse(hn::Eq(x, x), x, hn::Zero(d));
  const VecNarrow clamped = hn::Min(hn::Max(number, hn::Set(d, -kI8Max)), hn::Set(d, kI8Max));
  return hn::BitCast(NarrowU(), hn::Add(hn::ConvertTo(NarrowI(), hn::Round(clamped)), hn::Set(NarrowI(), 128)));
}

// round_to: x as the 16-bit type holds it.
template <DType kType>
HWY_INLINE VecNarrow rounded_to(VecNarrow x) {
  if constexpr (kType == DType::kBF16) {
    return hn::BitCast(Narrow(), hn::ShiftLeft<16>(to_bf16(x)));
  } else if constexpr (kType == DType::kF16) {
    HWY_ALIGN uint16_t half[kNarrow];
    hn::Store(hn::DemoteTo(hn::Rebind<uint16_t, Narrow>(), hn::BitCast(NarrowI(), to_f16(x))),
              hn::Rebind<uint16_t, Narrow>(), half);
    return widen<DType::kF16>(reinterpret_cast<const std::byte*>(half));
  } else {
    return x;
  }
}

// dynamic_scale of one row.
HWY_INLINE float row_scale(DType dtype, const float* row, int64_t elems) {
  const Narrow d;
  VecNarrow largest = hn::Zero(d);
  for (int64_t i = 0; i < elems; i += kNarrow) {
    const VecNarrow x = hn::LoadU(d, row + i);
    largest = hn::Max(largest, hn::IfThenElseZero(is_finite(x), hn::Abs(x)));
  }
  const float amax = hn::GetLane(hn::MaxOfLanes(d, largest));
  const float scale = amax / (dtype == DType::kI8 ? kI8Max : kE4M3Max);
  return scale < FLT_MIN ? FLT_MIN : scale;
}

template <DType kType>
HWY_INLINE void encode_8bit(const float* row, float scale, int64_t elems, std::byte* out, SideCounters& counters) {
  const Narrow d;
  // 464 ties to 448; 127.5 ties to 128, which is clipped but not counted, as in the scalar form.
  const VecNarrow edge = hn::Set(d, kType == DType::kE4M3 ? 464.0F : kI8Max + 0.5F);
  const hn::Rebind<uint8_t, Narrow> d8;
  for (int64_t i = 0; i < elems; i += kNarrow) {
    const VecNarrow x = hn::LoadU(d, row + i);
    const VecNarrow scaled = hn::Div(x, hn::Set(d, scale));
    const auto finite = is_finite(x);
    counters.non_finite += kNarrow - count_true(finite);
    counters.saturated += count_true(hn::And(finite, hn::Gt(hn::Abs(scaled), edge)));
    const VecNarrowU code = kType == DType::kE4M3 ? to_e4m3(scaled) : to_i8(scaled);
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(NarrowI(), code)), d8, reinterpret_cast<uint8_t*>(out + i));
  }
}

template <DType kType>
HWY_INLINE void encode_wide(const float* row, int64_t elems, std::byte* out, SideCounters& counters) {
  const Narrow d;
  const hn::Rebind<uint16_t, Narrow> d16;
  for (int64_t i = 0; i < elems; i += kNarrow) {
    const VecNarrow x = hn::LoadU(d, row + i);
    counters.non_finite += kNarrow - count_true(is_finite(x));
    if constexpr (kType == DType::kF32) {
      std::memcpy(out + i * 4, &x, sizeof(x));
    } else {
      const VecNarrowU code = kType == DType::kBF16 ? to_bf16(x) : to_f16(x);
      hn::StoreU(hn::DemoteTo(d16, hn::BitCast(NarrowI(), code)), d16, reinterpret_cast<uint16_t*>(out + i * 2));
    }
  }
}

// encode_row.
template <DType kType>
HWY_INLINE void encode_elems(const float* row, float scale, int64_t elems, std::byte* out, SideCounters& counters) {
  counters.elems += elems;
  if constexpr (dtype_bytes(kType) == 1) {
    encode_8bit<kType>(row, scale, elems, out, counters);
  } else {
    encode_wide<kType>(row, elems, out, counters);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
