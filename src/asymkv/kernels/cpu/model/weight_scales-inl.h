// Scales of four consecutive groups of a stored row, a group in each lane; compiled once per SIMD target.
#if defined(ASYMKV_KERNELS_CPU_MODEL_WEIGHT_SCALES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASYMKV_KERNELS_CPU_MODEL_WEIGHT_SCALES_INL_H_
#undef ASYMKV_KERNELS_CPU_MODEL_WEIGHT_SCALES_INL_H_
#else
#define ASYMKV_KERNELS_CPU_MODEL_WEIGHT_SCALES_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "asymkv/kernels/cpu/model/weight_groups-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
constexpr int64_t kQuad = 4;  // groups that are computed together, in the lanes of a vector
using QuadF32 = hn::CappedTag<float, kQuad>;
using QuadI32 = hn::CappedTag<int32_t, kQuad>;
using VecQuad = hn::Vec<QuadF32>;

// The blocks of groups [part, part + 4) of the block at `row`, or of four blocks of one group each. Groups past the
// last of `left` stand for it again: their activations are 0.
template <typename Group>
struct GroupQuad {
  HWY_INLINE GroupQuad(const uint8_t* row, int64_t first_part, int64_t left) : part(first_part) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < kQuad; ++i) {
      block[i] = row + (Group::kBlockGroups == 1 ? std::min(i, left - 1) * Group::kBlockBytes : 0);
    }
  }

  const uint8_t* block[kQuad];
  int64_t part;
};

// Asks for the bytes of as many groups some way ahead: short rows end before the processor's own prefetching gets far.
template <typename Group>
HWY_INLINE void prefetch_quad(const GroupQuad<Group>& quad) {
  constexpr int64_t kAhead = 1536;
  constexpr int64_t kLine = 64;
  const uint8_t* bytes = quad.block[0] + quad.part * Group::kBlockBytes / Group::kBlockGroups + kAhead;
  for (int64_t i = 0; i < kQuad * Group::kBlockBytes / Group::kBlockGroups; i += kLine) hwy::Prefetch(bytes + i);
}

// The half at byte `at` of each block.
HWY_INLINE VecQuad load_halves(const uint8_t* const (&block)[kQuad], int64_t at) {
#if HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON
  uint64_t bits = 0;
#pragma GCC unroll 8
  for (int64_t i = 0; i < kQuad; ++i) {
    uint16_t half;
    std::memcpy(&half, block[i] + at, sizeof(half));
    bits |= uint64_t{half} << (16 * i);
  }
  const hn::CappedTag<uint64_t, 1> d64;
  const hn::Rebind<hwy::float16_t, QuadF32> d16;
  return hn::PromoteTo(QuadF32(), hn::BitCast(d16, hn::Set(d64, bits)));
#else
  HWY_ALIGN float values[kQuad];
  for (int64_t i = 0; i < kQuad; ++i) values[i] = load_half(block[i] + at);
  return hn::Load(QuadF32(), values);
#endif
}

HWY_INLINE uint32_t load_word(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

// The four bytes of a word, unsigned.
HWY_INLINE VecQuad bytes_as_floats(uint32_t word) {
  const hn::Rebind<uint8_t, QuadF32> d8;
  const hn::CappedTag<uint32_t, 1> d32;
  return hn::ConvertTo(QuadF32(), hn::PromoteTo(QuadI32(), hn::BitCast(d8, hn::Set(d32, word))));
}

// One scale a block, at its beginning.
struct LegacyScales {
  template <typename Group>
  HWY_INLINE explicit LegacyScales(const GroupQuad<Group>& quad) : scale(load_halves(quad.block, 0)) {}

  VecQuad scale;
};

// And the value of code 0.
struct LegacyOffsetScales {
  template <typename Group>
  HWY_INLINE explicit LegacyOffsetScales(const GroupQuad<Group>& quad)
      : scale(load_halves(quad.block, 0)), offset(load_halves(quad.block, 2)) {}

  VecQuad scale;
  VecQuad offset;
};

// Eight 6-bit scales and minima in 12 bytes (tensor/ggml_quants.cc says how).
struct K4Scales {
  template <typename Group>
  HWY_INLINE explicit K4Scales(const GroupQuad<Group>& quad) {
    const uint8_t* block = quad.block[0];
    uint32_t scales = load_word(block + 4);
    uint32_t mins = load_word(block + 8);
    if (quad.part == 0) {
      scales &= 0x3f3f3f3f;
      mins &= 0x3f3f3f3f;
    } else {
      const uint32_t low = load_word(block + 12);
      scales = (low & 0x0f0f0f0f) | ((scales >> 2) & 0x30303030);
      mins = ((low >> 4) & 0x0f0f0f0f) | ((mins >> 2) & 0x30303030);
    }
    scale = hn::Mul(hn::Set(QuadF32(), load_half(block)), bytes_as_floats(scales));
    offset = hn::Mul(hn::Set(QuadF32(), -load_half(block + 2)), bytes_as_floats(mins));
  }

  VecQuad scale;
  VecQuad offset;
};

// Sixteen signed bytes, one for each half of a group.
struct K6Scales {
  template <typename Group>
  HWY_INLINE explicit K6Scales(const GroupQuad<Group>& quad) {
    const hn::Rebind<int16_t, QuadF32> d16;
    const hn::Repartition<uint8_t, decltype(d16)> d8;
    const uint8_t* block = quad.block[0];
    const auto pairs = hn::PromoteTo(QuadI32(), hn::BitCast(d16, hn::LoadU(d8, block + 192 + 2 * quad.part)));
    const VecQuad super = hn::Set(QuadF32(), load_half(block + 208));
    scale = hn::Mul(super, hn::ConvertTo(QuadF32(), hn::ShiftRight<24>(hn::ShiftLeft<24>(pairs))));
    upper_scale = hn::Mul(super, hn::ConvertTo(QuadF32(), hn::ShiftRight<8>(pairs)));
  }

  VecQuad scale;
  VecQuad upper_scale;
};
#endif

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
