#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cfloat>

#include "asymkv/kernels/cuda/key_norm.h"
#include "asymkv/kernels/cuda/write_kernel.h"
#include "asymkv/kv/tiled_layout.h"

// The writer's row path: one warp writes one row of one KV head, element by element, with the scalar definitions of
// kv/codec.h. It serves runs that do not fill a page, and every row of a whole page that the page path cannot take:
// rows that hold NaN or infinities, saturate, or have scales outside the reciprocal's range.
namespace asymkv::cuda {

constexpr int kWriteWarps = 4;
constexpr float kE4M3Largest = 448.0F, kE4M3Edge = 464.0F;  // kv/codec.h: larger magnitudes count as saturated
constexpr float kI8Largest = 127.0F, kI8Edge = 127.5F;

__device__ __forceinline__ float widen(uint16_t bits, bool bf16) {
  return bf16 ? __uint_as_float(static_cast<uint32_t>(bits) << 16) : __half2float(__ushort_as_half(bits));
}
__device__ __forceinline__ uint16_t narrow_16(float x, bool bf16) {
  const uint32_t u = __float_as_uint(x);
  const bool nan = (u & 0x7fffffffU) > 0x7f800000U;
  if (bf16) return static_cast<uint16_t>(nan ? (u >> 16) | 0x40U : (u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
  if (nan) return static_cast<uint16_t>((u >> 16 & 0x8000U) | 0x7e00U | (u >> 13 & 0x1ffU));
  return __half_as_ushort(__float2half_rn(x));
}
__device__ __forceinline__ uint8_t encode(DType dtype, float scaled) {
  const bool nan = isnan(scaled);
  if (dtype == DType::kE4M3)
    return nan ? 0 : static_cast<uint8_t>(__nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, __NV_E4M3));
  return nan ? 128 : static_cast<uint8_t>(static_cast<int>(rintf(fminf(fmaxf(scaled, -kI8Largest), kI8Largest))) + 128);
}

template <DType dtype>
inline constexpr float kLargest = dtype == DType::kI8 ? kI8Largest : kE4M3Largest;
template <DType dtype>
inline constexpr float kEdge = dtype == DType::kI8 ? kI8Edge : kE4M3Edge;
template <DType dtype>
inline constexpr bool kIs8Bit = dtype == DType::kE4M3 || dtype == DType::kI8;

// One side of a block.
template <DType dtype>
constexpr int64_t stored_bytes(int head_dim) {
  return kPageSize * tiled_channels(dtype_bytes(dtype), head_dim) * dtype_bytes(dtype);
}

struct Counts {
  uint32_t saturated = 0, non_finite = 0;
};

// Stores one element, 8-bit ones as encode(x / scale).
template <DType dtype>
__device__ __forceinline__ void store_element(std::byte* at, float x, float scale, Counts& counts) {
  if (!isfinite(x)) ++counts.non_finite;
  if constexpr (kIs8Bit<dtype>) {
    const float scaled = __fdiv_rn(x, scale);
    if (isfinite(x) && fabsf(scaled) > kEdge<dtype>) ++counts.saturated;
    *at = static_cast<std::byte>(encode(dtype, scaled));
  } else {
    *reinterpret_cast<uint16_t*>(at) = narrow_16(x, dtype == DType::kBF16);
  }
}

// A row in registers: element i of lane l is channel l + 32 i, where there is one.
template <int kCount>
struct LaneRow {
  static constexpr int kLaneElems = (kCount + 31) / 32;
  float at[kLaneElems];
  __device__ __forceinline__ float top() const {  // largest finite magnitude of the row
    float largest = 0.0F;
#pragma unroll
    for (int i = 0; i < kLaneElems; ++i) largest = fmaxf(largest, isfinite(at[i]) ? fabsf(at[i]) : 0.0F);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, step));
    return largest;
  }
};

// A row that is turned: the first and the second channels of its pairs.
template <int kHalf>
struct TurnedRow {
  LaneRow<kHalf> low, high;
};

// key_norm.h. Lane r (and r + 16) forms sum r.
template <int kHeadDim>
__device__ __forceinline__ float norm_factor(const uint16_t* row, bool bf16, float eps, int lane) {
  float sum = 0.0F;
#pragma unroll
  for (int c = 0; c < kHeadDim; c += kNormSums) {
    const float x = widen(row[c + lane % kNormSums], bf16);
    sum = __fmaf_rn(x, x, sum);
  }
#pragma unroll
  for (int step = 1; step < kNormSums; step *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0U, sum, step));
  return __fdiv_rn(1.0F, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, static_cast<float>(kHeadDim)), eps)));
}

// Everything the warp needs to know of one row.
template <int kHeadDim>
struct RowAt {
  int token, head, slot;
  int64_t block;  // (page, KV head)
  __device__ __forceinline__ const uint16_t* input(const void* base, int64_t stride, int heads) const {
    if (stride == 0) stride = int64_t{heads} * kHeadDim;
    return static_cast<const uint16_t*>(base) + token * stride + int64_t{head} * kHeadDim;
  }
};

// round(RoPE(norm(k) + (bias - removed))), without fused multiply-add: stored bytes must not depend on the compiler.
template <int kHeadDim>
__device__ __forceinline__ TurnedRow<kHeadDim / 2> turned_row(const WriteParams& p, const RowAt<kHeadDim>& at,
                                                              const float* removed, bool round_bf16, int lane) {
  constexpr int kHalf = kHeadDim / 2;
  const uint16_t* row = at.input(p.k, p.k_token_stride, p.num_kv_heads);
  const int64_t angle = int64_t{p.positions[at.token]} * kHalf;
  const float factor = p.k_norm != nullptr ? norm_factor<kHeadDim>(row, p.native_is_bf16, p.k_norm_eps, lane) : 1.0F;
  auto whole = [&](int channel) {
    const int64_t i = int64_t{at.head} * kHeadDim + channel;
    float x = widen(row[channel], p.native_is_bf16);
    if (p.k_norm != nullptr) x = __fmul_rn(__fmul_rn(x, factor), p.k_norm[channel]);
    float constant = p.k_bias == nullptr ? 0.0F : p.k_bias[i];
    if (removed != nullptr) constant = __fsub_rn(constant, removed[i]);
    return __fadd_rn(x, constant);
  };
  TurnedRow<kHalf> out = {};
#pragma unroll
  for (int i = 0; i < LaneRow<kHalf>::kLaneElems; ++i) {
    const int pair = lane + 32 * i;
    if (pair >= kHalf) continue;
    const float a = whole(pair), b = whole(pair + kHalf), c = p.cosines[angle + pair], s = p.sines[angle + pair];
    const float low = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s)), high = __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s));
    out.low.at[i] = widen(narrow_16(low, round_bf16), round_bf16);
    out.high.at[i] = widen(narrow_16(high, round_bf16), round_bf16);
  }
  return out;
}

template <DType dtype>
__device__ __forceinline__ float row_scale(const float* fixed, bool dynamic, float top) {
  if (!dynamic) return kIs8Bit<dtype> ? *fixed : 1.0F;
  return fmaxf(__fdiv_rn(top, kLargest<dtype>), FLT_MIN);
}

__device__ __forceinline__ float* row_scales(const WriteParams& p, int64_t block) {
  const int sides = (p.k_dynamic ? 1 : 0) + (p.v_dynamic ? 1 : 0);
  return reinterpret_cast<float*>(p.scales + block * 4 * kPageSize * sides);
}

template <DType key, DType value, int kHeadDim>
__device__ void write_key_row(const WriteParams& p, const RowAt<kHeadDim>& at, int lane, Counts& counts) {
  constexpr int kHalf = kHeadDim / 2, kBytes = static_cast<int>(dtype_bytes(key));
  constexpr int64_t kBlock = stored_bytes<key>(kHeadDim) + stored_bytes<value>(kHeadDim);
  const bool key_bf16 = kIs8Bit<key> ? p.native_is_bf16 : key == DType::kBF16;
  if (p.fresh_k != nullptr) {
    const TurnedRow<kHalf> fresh = turned_row<kHeadDim>(p, at, nullptr, key_bf16, lane);
    auto* to = static_cast<uint16_t*>(p.fresh_k) + (int64_t{at.token} * p.num_kv_heads + at.head) * kHeadDim;
#pragma unroll
    for (int i = 0; i < LaneRow<kHalf>::kLaneElems; ++i) {
      const int pair = lane + 32 * i;
      if (pair >= kHalf) continue;
      to[pair] = narrow_16(fresh.low.at[i], key_bf16);
      to[pair + kHalf] = narrow_16(fresh.high.at[i], key_bf16);
    }
  }
  const TurnedRow<kHalf> turned = turned_row<kHeadDim>(p, at, p.removed, key_bf16, lane);
  const float scale = row_scale<key>(p.fixed_scales, p.k_dynamic, fmaxf(turned.low.top(), turned.high.top()));
  if (p.k_dynamic && lane == 0) row_scales(p, at.block)[at.slot] = scale;
  std::byte* block = p.blocks + at.block * kBlock;
#pragma unroll
  for (int i = 0; i < LaneRow<kHalf>::kLaneElems; ++i) {
    const int pair = lane + 32 * i;
    if (pair >= kHalf) continue;
    store_element<key>(block + tiled_k_offset(kBytes, at.slot, pair), turned.low.at[i], scale, counts);
    store_element<key>(block + tiled_k_offset(kBytes, at.slot, pair + kHalf), turned.high.at[i], scale, counts);
  }
}

template <DType key, DType value, int kHeadDim>
__device__ void write_value_row(const WriteParams& p, const RowAt<kHeadDim>& at, int lane, Counts& counts) {
  constexpr int kBytes = static_cast<int>(dtype_bytes(value));
  constexpr int64_t kKeyBlock = stored_bytes<key>(kHeadDim);
  constexpr int64_t kBlock = kKeyBlock + stored_bytes<value>(kHeadDim);
  const uint16_t* row = at.input(p.v, p.v_token_stride, p.num_kv_heads);
  LaneRow<kHeadDim> values = {};
#pragma unroll
  for (int i = 0; i < LaneRow<kHeadDim>::kLaneElems; ++i) {
    const int channel = lane + 32 * i;
    if (channel < kHeadDim) values.at[i] = widen(row[channel], p.native_is_bf16);
  }
  const float scale = row_scale<value>(p.fixed_scales + 1, p.v_dynamic, values.top());
  if (p.v_dynamic && lane == 0) row_scales(p, at.block)[(p.k_dynamic ? kPageSize : 0) + at.slot] = scale;
  std::byte* block = p.blocks + at.block * kBlock + kKeyBlock;
#pragma unroll
  for (int i = 0; i < LaneRow<kHeadDim>::kLaneElems; ++i) {
    const int channel = lane + 32 * i;
    if (channel >= kHeadDim) continue;
    store_element<value>(block + tiled_v_offset(kBytes, at.slot, channel), values.at[i], scale, counts);
  }
}

__device__ __forceinline__ void add_counts(const Counts& counts, unsigned long long* saturated,
                                           unsigned long long* non_finite) {
  const uint32_t all_saturated = __reduce_add_sync(~0U, counts.saturated);
  const uint32_t all_non_finite = __reduce_add_sync(~0U, counts.non_finite);
  if (threadIdx.x % 32 != 0) return;
  if (all_saturated > 0) atomicAdd(saturated, all_saturated);
  if (all_non_finite > 0) atomicAdd(non_finite, all_non_finite);
}

enum class Side { kKey, kValue };

// Rows first, first + step, ... of one side of one run and KV head.
template <DType key, DType value, int kHeadDim>
__device__ __noinline__ void write_rows(const WriteParams& p, const WriteRun& run, int head, Side side, int2 rows) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  Counts counts;
  for (int i = rows.x; i < run.count; i += rows.y) {
    const RowAt<kHeadDim> at{run.token_begin + i, head, run.slot_begin + i, int64_t{run.page} * p.num_kv_heads + head};
    if (side == Side::kKey) {
      write_key_row<key, value, kHeadDim>(p, at, lane, counts);
    } else {
      write_value_row<key, value, kHeadDim>(p, at, lane, counts);
    }
  }
  if (p.counters == nullptr) return;
  if (side == Side::kKey) {
    add_counts(counts, &p.counters->k_saturated, &p.counters->k_non_finite);
  } else {
    add_counts(counts, &p.counters->v_saturated, &p.counters->v_non_finite);
  }
}

}  // namespace asymkv::cuda
