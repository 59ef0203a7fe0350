// Groups of 32 stored weights, unpacked to codes or widened to FP32; compiled once per SIMD target.
#if defined(ASYMKV_KERNELS_CPU_MODEL_WEIGHT_GROUPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASYMKV_KERNELS_CPU_MODEL_WEIGHT_GROUPS_INL_H_
#undef ASYMKV_KERNELS_CPU_MODEL_WEIGHT_GROUPS_INL_H_
#else
#define ASYMKV_KERNELS_CPU_MODEL_WEIGHT_GROUPS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "asymkv/tensor/dtype.h"
#include "asymkv/tensor/ggml_quants.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VecF32 = hn::Vec<F32>;
constexpr int64_t kLanes = HWY_LANES(float);
constexpr int64_t kGroup = 32;  // weights that are unpacked together; a block is one group or several

// Byte tables need 16 lanes: without SIMD the host's decoder unpacks.
#if HWY_TARGET != HWY_SCALAR
constexpr int64_t kGroupVecs = kGroup / kLanes;

using Bytes = hn::CappedTag<uint8_t, 32>;
using VecBytes = hn::Vec<Bytes>;
constexpr int64_t kByteLanes = HWY_MIN(HWY_LANES(uint8_t), 32);
constexpr int64_t kByteVecs = kGroup / kByteLanes;
static_assert(kByteLanes >= 16, "byte tables need 16 lanes");

// The codes of one group: weight i is scale * code[i] (+ offset), with `upper_scale` for codes 16 to 31.
struct GroupScale {
  float scale;
  float upper_scale;
  float offset;
};

HWY_INLINE float load_half(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, sizeof(half));
#if HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON
  const hn::CappedTag<float, 4> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  const hn::Rebind<uint16_t, decltype(d)> bits;
  return hn::GetLane(hn::PromoteTo(d, hn::BitCast(d16, hn::Set(bits, half))));
#else
  return f16_to_f32(half);
#endif
}

HWY_INLINE VecBytes bytes_of(int value) {
  return hn::Set(Bytes(), static_cast<uint8_t>(value));
}

// Legacy order: byte j holds code j (low nibble) and code j + 16 (high nibble).
HWY_INLINE void split_nibbles(const uint8_t* q, VecBytes (&codes)[kByteVecs]) {
  const Bytes d;
  if constexpr (kByteLanes == 32) {
    alignas(32) static constexpr uint32_t kShifts[8] = {0, 0, 0, 0, 4, 4, 4, 4};
    const hn::Repartition<uint32_t, Bytes> d32;
    const auto twice = hn::BitCast(d32, hn::LoadDup128(d, q));
    codes[0] = hn::And(hn::BitCast(d, hn::Shr(twice, hn::Load(d32, kShifts))), bytes_of(15));
  } else {
    const VecBytes both = hn::LoadU(d, q);
    codes[0] = hn::And(both, bytes_of(15));
    codes[kByteVecs - 1] = hn::ShiftRight<4>(both);
  }
}

// All bits of byte i set where bit i of the little-endian word at p is.
HWY_INLINE void spread_bits(const uint8_t* p, VecBytes (&masks)[kByteVecs]) {
  alignas(32) static constexpr uint8_t kByteOf[32] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                                      2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
  const Bytes d;
  const hn::Repartition<uint32_t, Bytes> d32;
  const hn::Repartition<uint64_t, Bytes> d64;
  uint32_t word;
  std::memcpy(&word, p, sizeof(word));
  const VecBytes words = hn::BitCast(d, hn::Set(d32, word));
  const VecBytes bit = hn::BitCast(d, hn::Set(d64, 0x8040201008040201ULL));
#pragma GCC unroll 8
  for (int64_t i = 0; i < kByteVecs; ++i) {
    const VecBytes spread = hn::TableLookupBytes(words, hn::Load(d, kByteOf + i * kByteLanes));
    masks[i] = hn::VecFromMask(d, hn::Eq(hn::And(spread, bit), bit));
  }
}

// kSigned: codes are signed bytes; kOffset: a constant is added; kSplit: the halves of a group have their own scales.
struct Q80Group {
  static constexpr bool kOffset = false;
  static constexpr bool kSplit = false;
  static constexpr int64_t kBlockGroups = 1;
  static constexpr int64_t kBlockBytes = 34;
  static HWY_INLINE void codes(const uint8_t* block, int64_t /*group*/, VecBytes (&out)[kByteVecs]) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < kByteVecs; ++i) out[i] = hn::LoadU(Bytes(), block + 2 + i * kByteLanes);
  }
  static HWY_INLINE GroupScale scale(const uint8_t* block, int64_t /*group*/) {
    const float d = load_half(block);
    return {d, d, 0.0F};
  }
};

struct Q40Group {
  static constexpr bool kOffset = false;
  static constexpr bool kSplit = false;
  static constexpr int64_t kBlockGroups = 1;
  static constexpr int64_t kBlockBytes = 18;
  static HWY_INLINE void codes(const uint8_t* block, int64_t /*group*/, VecBytes (&out)[kByteVecs]) {
    split_nibbles(block + 2, out);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kByteVecs; ++i) out[i] = hn::Sub(out[i], bytes_of(8));
  }
  static HWY_INLINE GroupScale scale(const uint8_t* block, int64_t /*group*/) {
    const float d = load_half(block);
    return {d, d, 0.0F};
  }
};

struct Q41Group {
  static constexpr bool kOffset = true;
  static constexpr bool kSplit = false;
  static constexpr int64_t kBlockGroups = 1;
  static constexpr int64_t kBlockBytes = 20;
  static HWY_INLINE void codes(const uint8_t* block, int64_t /*group*/, VecBytes (&out)[kByteVecs]) {
    split_nibbles(block + 4, out);
  }
  static HWY_INLINE GroupScale scale(const uint8_t* block, int64_t /*group*/) {
    const float d = load_half(block);
    return {d, d, load_half(block + 2)};
  }
};

struct Q50Group {
  static constexpr bool kOffset = false;
  static constexpr bool kSplit = false;
  static constexpr int64_t kBlockGroups = 1;
  static constexpr int64_t kBlockBytes = 22;
  // code - 16: the nibble where the fifth bit is set, else the nibble with the upper four bits set.
  static HWY_INLINE void codes(const uint8_t* block, int64_t /*group*/, VecBytes (&out)[kByteVecs]) {
    VecBytes fifth[kByteVecs];
    spread_bits(block + 2, fifth);
    split_nibbles(block + 6, out);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kByteVecs; ++i) out[i] = hn::Or(out[i], hn::AndNot(fifth[i], bytes_of(0xf0)));
  }
  static HWY_INLINE GroupScale scale(const uint8_t* block, int64_t /*group*/) {
    const float d = load_half(block);
    return {d, d, 0.0F};
  }
};

// Eight 6-bit scales and minima in 12 bytes (tensor/ggml_quants.cc says how).
HWY_INLINE GroupScale k_scale(const uint8_t* block, int64_t group) {
  const uint8_t* packed = block + 4;
  int scale = packed[group & 3] & 63;
  int min = packed[(group & 3) + 4] & 63;
  if (group >= 4) {
    scale = (packed[group + 4] & 0xf) | ((packed[group - 4] >> 6) << 4);
    min = (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4);
  }
  const float d = load_half(block) * static_cast<float>(scale);
  return {d, d, -(load_half(block + 2) * static_cast<float>(min))};
}

struct Q4KGroup {
  static constexpr bool kOffset = true;
  static constexpr bool kSplit = false;
  static constexpr int64_t kBlockGroups = 8;
  static constexpr int64_t kBlockBytes = 144;
  static HWY_INLINE void codes(const uint8_t* block, int64_t group, VecBytes (&out)[kByteVecs]) {
    const uint8_t* run = block + 16 + group / 2 * 32;
    const auto shift = static_cast<int>(group % 2 * 4);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kByteVecs; ++i) {
      const VecBytes bytes = hn::LoadU(Bytes(), run + i * kByteLanes);
      out[i] = hn::And(hn::ShiftRightSame(bytes, shift), bytes_of(15));
    }
  }
  static HWY_INLINE GroupScale scale(const uint8_t* block, int64_t group) {
    return k_scale(block, group);
  }
};

struct Q6KGroup {
  static constexpr bool kOffset = false;
  static constexpr bool kSplit = true;
  static constexpr int64_t kBlockGroups = 8;
  static constexpr int64_t kBlockBytes = 210;
  static HWY_INLINE void codes(const uint8_t* block, int64_t group, VecBytes (&out)[kByteVecs]) {
    const int64_t half = group / 4;
    const int64_t quarter = group % 4;
    const uint8_t* low = block + half * 64 + quarter % 2 * 32;
    const uint8_t* high = block + 128 + half * 32;
    const auto low_shift = static_cast<int>(quarter / 2 * 4);
    const auto high_shift = static_cast<int>(quarter * 2);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kByteVecs; ++i) {
      const VecBytes nibbles = hn::ShiftRightSame(hn::LoadU(Bytes(), low + i * kByteLanes), low_shift);
      const VecBytes pairs = hn::ShiftRightSame(hn::LoadU(Bytes(), high + i * kByteLanes), high_shift);
      const VecBytes upper = hn::ShiftLeft<4>(hn::And(pairs, bytes_of(3)));
      out[i] = hn::Sub(hn::Or(hn::And(nibbles, bytes_of(15)), upper), bytes_of(32));
    }
  }
  static HWY_INLINE GroupScale scale(const uint8_t* block, int64_t group) {
    const float d = load_half(block + 208);
    const uint8_t* scales = block + 192 + group * 2;
    return {d * static_cast<float>(static_cast<int8_t>(scales[0])),
            d * static_cast<float>(static_cast<int8_t>(scales[1])), 0.0F};
  }
};

// Quantised groups as FP32, with the operations of dequantize_ggml: a product of scale and code is exact in FP32
// except for Q6_K, whose single rounding is the same, so that a fused multiply-add rounds as product and sum do.
template <typename Group>
struct QuantisedF32 {
  static constexpr int64_t kBlockGroups = Group::kBlockGroups;
  static constexpr int64_t kBlockBytes = Group::kBlockBytes;
  static HWY_INLINE void widen(const uint8_t* block, int64_t group, VecF32 (&out)[kGroupVecs]) {
    const hn::Rebind<int8_t, F32> d8;
    const hn::RebindToSigned<F32> d32;
    VecBytes codes[kByteVecs];
    Group::codes(block, group, codes);
    alignas(32) uint8_t unpacked[kGroup];
#pragma GCC unroll 8
    for (int64_t i = 0; i < kByteVecs; ++i) hn::Store(codes[i], Bytes(), unpacked + i * kByteLanes);
    const GroupScale scale = Group::scale(block, group);
#pragma GCC unroll 8
    for (int64_t v = 0; v < kGroupVecs; ++v) {
      const auto code = hn::LoadU(d8, reinterpret_cast<const int8_t*>(unpacked) + v * kLanes);
      const VecF32 value = hn::ConvertTo(F32(), hn::PromoteTo(d32, code));
      const bool upper = Group::kSplit && v * kLanes >= kGroup / 2;
      const VecF32 factor = hn::Set(F32(), upper ? scale.upper_scale : scale.scale);
      if constexpr (Group::kOffset) {
        out[v] = hn::MulAdd(factor, value, hn::Set(F32(), scale.offset));
      } else {
        out[v] = hn::Mul(factor, value);
      }
    }
  }
};

// Wide types, 32 elements at a time.
struct WideF32 {
  static constexpr int64_t kBlockGroups = 1;
  static constexpr int64_t kBlockBytes = kGroup * 4;
  static HWY_INLINE void widen(const uint8_t* block, int64_t /*group*/, VecF32 (&out)[kGroupVecs]) {
    const hn::Repartition<uint8_t, F32> d8;
#pragma GCC unroll 8
    for (int64_t v = 0; v < kGroupVecs; ++v) out[v] = hn::BitCast(F32(), hn::LoadU(d8, block + v * kLanes * 4));
  }
};

struct WideBF16 {
  static constexpr int64_t kBlockGroups = 1;
  static constexpr int64_t kBlockBytes = kGroup * 2;
  static HWY_INLINE void widen(const uint8_t* block, int64_t /*group*/, VecF32 (&out)[kGroupVecs]) {
    const hn::Rebind<uint16_t, F32> d16;
    const hn::RebindToUnsigned<F32> d32;
#pragma GCC unroll 8
    for (int64_t v = 0; v < kGroupVecs; ++v) {
      const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(block) + v * kLanes);
      out[v] = hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
    }
  }
};

struct WideF16 {
  static constexpr int64_t kBlockGroups = 1;
  static constexpr int64_t kBlockBytes = kGroup * 2;
  static HWY_INLINE void widen(const uint8_t* block, int64_t /*group*/, VecF32 (&out)[kGroupVecs]) {
#if HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON
    const hn::Rebind<hwy::float16_t, F32> d16;
#pragma GCC unroll 8
    for (int64_t v = 0; v < kGroupVecs; ++v) {
      out[v] = hn::PromoteTo(F32(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(block) + v * kLanes));
    }
#else
    HWY_ALIGN float wide[kGroup];
    for (int64_t i = 0; i < kGroup; ++i) wide[i] = load_half(block + i * 2);
#pragma GCC unroll 8
    for (int64_t v = 0; v < kGroupVecs; ++v) out[v] = hn::Load(F32(), wide + v * kLanes);
#endif
  }
};

#endif

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
