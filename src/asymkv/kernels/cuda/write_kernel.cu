#include "asymkv/kernels/cuda/write_kernel.h"

#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cfloat>

#include "asymkv/kv/tiled_layout.h"

// One CTA writes one run of tokens of one KV head. Warp w owns slots 2w and 2w + 1 of the page, a lane head_dim / 64
// neighbouring RoPE pairs. Rows are staged in shared memory in tiled order; a whole page leaves as 16-byte stores.
namespace asymkv::cuda {
namespace {

constexpr int kWarps = 8;
constexpr float kE4M3Largest = 448.0F, kE4M3Edge = 464.0F;  // kv/codec.h: larger magnitudes count as saturated
constexpr float kI8Largest = 127.0F, kI8Edge = 127.5F;

// --- the scalar definitions of kv/codec.h and tensor/dtype.h

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

struct Counts {
  uint32_t saturated = 0, non_finite = 0;
  __device__ __forceinline__ void see(float input, float scaled, float edge) {
    if (!isfinite(input)) {
      ++non_finite;
    } else if (fabsf(scaled) > edge) {
      ++saturated;
    }
  }
};

// The channels of one row that a lane holds: `low` the first halves of its RoPE pairs, `high` the second.
template <int kPairs>
struct LaneRow {
  float low[kPairs], high[kPairs];
};

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Packed {
  T at[kCount];
};
// The lane's neighbouring elements in one load.
template <int kPairs, typename T>
__device__ __forceinline__ Packed<T, kPairs> load_packed(const T* row, int lane) {
  return *reinterpret_cast<const Packed<T, kPairs>*>(row + lane * kPairs);
}

template <int kPairs>
__device__ __forceinline__ LaneRow<kPairs> load_row(const uint16_t* row, int half, int lane, bool bf16) {
  const auto low = load_packed<kPairs>(row, lane), high = load_packed<kPairs>(row + half, lane);
  LaneRow<kPairs> out;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) out.low[i] = widen(low.at[i], bf16), out.high[i] = widen(high.at[i], bf16);
  return out;
}

// A constant vector, zero where there is none.
template <int kPairs>
__device__ __forceinline__ LaneRow<kPairs> load_vector(const float* vector, int half, int lane) {
  LaneRow<kPairs> out = {};
  if (vector == nullptr) return out;
  const auto low = load_packed<kPairs>(vector, lane), high = load_packed<kPairs>(vector + half, lane);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) out.low[i] = low.at[i], out.high[i] = high.at[i];
  return out;
}

// round(RoPE(k + constant)), without fused multiply-add: stored bytes must not depend on the compiler.
// angle: cosines in low, sines in high.
template <int kPairs>
__device__ __forceinline__ LaneRow<kPairs> turn(const LaneRow<kPairs>& k, const LaneRow<kPairs>& constant,
                                                const LaneRow<kPairs>& angle, bool round_bf16) {
  LaneRow<kPairs> out;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float a = __fadd_rn(k.low[i], constant.low[i]), b = __fadd_rn(k.high[i], constant.high[i]);
    const float c = angle.low[i], s = angle.high[i];
    const float low = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s)), high = __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s));
    out.low[i] = widen(narrow_16(low, round_bf16), round_bf16);
    out.high[i] = widen(narrow_16(high, round_bf16), round_bf16);
  }
  return out;
}

template <int kPairs>
__device__ __forceinline__ float dynamic_scale(const LaneRow<kPairs>& row, float largest) {
  float top = 0.0F;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    top = fmaxf(top, isfinite(row.low[i]) ? fabsf(row.low[i]) : 0.0F);
    top = fmaxf(top, isfinite(row.high[i]) ? fabsf(row.high[i]) : 0.0F);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0U, top, step));
  return fmaxf(__fdiv_rn(top, largest), FLT_MIN);
}

// A stored element as its bits; 8-bit sides divide by the scale.
template <DType dtype>
__device__ __forceinline__ uint32_t store_bits(float x, float scale, Counts& counts) {
  if constexpr (dtype == DType::kBF16 || dtype == DType::kF16) {
    counts.see(x, 0.0F, 1.0F);
    return narrow_16(x, dtype == DType::kBF16);
  } else {
    const float scaled = __fdiv_rn(x, scale);
    counts.see(x, scaled, dtype == DType::kE4M3 ? kE4M3Edge : kI8Edge);
    return encode(dtype, scaled);
  }
}

template <DType dtype>
__device__ __forceinline__ float row_scale(const float* fixed, bool dynamic, float computed) {
  return dynamic ? computed : dtype_bytes(dtype) == 1 ? *fixed : 1.0F;
}

template <DType dtype>
inline constexpr float kLargest = dtype == DType::kI8 ? kI8Largest : kE4M3Largest;

template <int kElemBytes>
__device__ __forceinline__ void put(std::byte* at, uint32_t bits) {
  if constexpr (kElemBytes == 1) {
    *reinterpret_cast<uint8_t*>(at) = static_cast<uint8_t>(bits);
  } else if constexpr (kElemBytes == 2) {
    *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(bits);
  } else {
    *reinterpret_cast<uint32_t*>(at) = bits;
  }
}

// Neighbouring channels of a key row lie side by side in the tiled order.
template <DType dtype, int kPairs>
__device__ __forceinline__ void stage_key(std::byte* block, int slot, const LaneRow<kPairs>& row, float scale, int half,
                                          int lane, Counts& counts) {
  constexpr int kBytes = static_cast<int>(dtype_bytes(dtype));
  if constexpr (kPairs == 1) {
    put<kBytes>(block + tiled_k_offset(kBytes, slot, lane), store_bits<dtype>(row.low[0], scale, counts));
    put<kBytes>(block + tiled_k_offset(kBytes, slot, half + lane), store_bits<dtype>(row.high[0], scale, counts));
  } else {  // an even channel and the next share a word of the fragment: one store
#pragma unroll
    for (int i = 0; i < kPairs; i += 2) {
      const int p = lane * kPairs + i;
      const uint32_t low = store_bits<dtype>(row.low[i], scale, counts) |
                           store_bits<dtype>(row.low[i + 1], scale, counts) << (8 * kBytes);
      const uint32_t high = store_bits<dtype>(row.high[i], scale, counts) |
                            store_bits<dtype>(row.high[i + 1], scale, counts) << (8 * kBytes);
      put<2 * kBytes>(block + tiled_k_offset(kBytes, slot, p), low);
      put<2 * kBytes>(block + tiled_k_offset(kBytes, slot, half + p), high);
    }
  }
}

// The values of slots 2w and 2w + 1 lie side by side: one store holds both.
template <DType dtype, int kPairs>
__device__ __forceinline__ void stage_values(std::byte* block, int slot, const LaneRow<kPairs> (&rows)[2],
                                             const float (&scales)[2], int half, int lane, const bool (&there)[2],
                                             Counts& counts) {
  constexpr int kBytes = static_cast<int>(dtype_bytes(dtype));
  auto both = [&](float first, float second) {
    const uint32_t a = there[0] ? store_bits<dtype>(first, scales[0], counts) : 0U;
    const uint32_t b = there[1] ? store_bits<dtype>(second, scales[1], counts) : 0U;
    return a | b << (8 * kBytes);
  };
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int p = lane * kPairs + i;
    put<2 * kBytes>(block + tiled_v_offset(kBytes, slot, p), both(rows[0].low[i], rows[1].low[i]));
    put<2 * kBytes>(block + tiled_v_offset(kBytes, slot, half + p), both(rows[0].high[i], rows[1].high[i]));
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

// Shared memory to the page: whole pages in 16-byte pieces, others element by element, slots outside the run untouched.
template <DType key, DType value, int kHeadDim>
__device__ __forceinline__ void flush(const WriteRun& run, const std::byte* staged, std::byte* block) {
  constexpr int kKey = static_cast<int>(dtype_bytes(key)), kValue = static_cast<int>(dtype_bytes(value));
  constexpr int kKeyBlock = kPageSize * kHeadDim * kKey, kBlock = kKeyBlock + kPageSize * kHeadDim * kValue;
  if (run.count == kPageSize) {
    for (int i = threadIdx.x; i < kBlock / 16; i += blockDim.x)
      __stcs(reinterpret_cast<uint4*>(block) + i, reinterpret_cast<const uint4*>(staged)[i]);
    return;
  }
  for (int i = threadIdx.x; i < run.count * kHeadDim; i += blockDim.x) {
    const int slot = run.slot_begin + i / kHeadDim, channel = i % kHeadDim;
    const int64_t k = tiled_k_offset(kKey, slot, channel), v = kKeyBlock + tiled_v_offset(kValue, slot, channel);
    if constexpr (kKey == 2) {
      *reinterpret_cast<uint16_t*>(block + k) = *reinterpret_cast<const uint16_t*>(staged + k);
    } else {
      block[k] = staged[k];
    }
    if constexpr (kValue == 2) {
      *reinterpret_cast<uint16_t*>(block + v) = *reinterpret_cast<const uint16_t*>(staged + v);
    } else {
      block[v] = staged[v];
    }
  }
}

template <DType key, DType value, int kHeadDim>
__global__ void __launch_bounds__(kWarps * 32) write_kernel(const WriteParams p, bool k_dynamic, bool v_dynamic) {
  constexpr int kPairs = kHeadDim / 64, kHalf = kHeadDim / 2;
  constexpr int kKeyBlock = kPageSize * kHeadDim * static_cast<int>(dtype_bytes(key));
  constexpr int kBlock = kKeyBlock + kPageSize * kHeadDim * static_cast<int>(dtype_bytes(value));
  __shared__ __align__(16) std::byte staged[kBlock];
  const WriteRun run = p.runs[blockIdx.x];
  const int head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t place = int64_t{run.page} * p.num_kv_heads + head;
  constexpr bool kWideKey = dtype_bytes(key) == 2;
  const bool key_bf16 = kWideKey ? key == DType::kBF16 : p.native_is_bf16;
  LaneRow<kPairs> keys[2], values[2], angles[2];
  bool there[2];
  const int first_token = run.token_begin + 2 * warp - run.slot_begin;
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // all loads of both rows before the first use
    const int slot = 2 * warp + i;
    there[i] = slot >= run.slot_begin && slot < run.slot_begin + run.count;
    if (!there[i]) continue;
    const int token = first_token + i;
    const int64_t row = (int64_t{token} * p.num_kv_heads + head) * kHeadDim;
    const int64_t angle = int64_t{p.positions[token]} * kHalf;
    keys[i] = load_row<kPairs>(static_cast<const uint16_t*>(p.k) + row, kHalf, lane, p.native_is_bf16);
    values[i] = load_row<kPairs>(static_cast<const uint16_t*>(p.v) + row, kHalf, lane, p.native_is_bf16);
    const auto cosines = load_packed<kPairs>(p.cosines + angle, lane),
               sines = load_packed<kPairs>(p.sines + angle, lane);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) angles[i].low[j] = cosines.at[j], angles[i].high[j] = sines.at[j];
  }
  const float* bias_row = p.k_bias == nullptr ? nullptr : p.k_bias + head * kHeadDim;
  const float* removed_row = p.removed == nullptr ? nullptr : p.removed + head * kHeadDim;
  const LaneRow<kPairs> bias = load_vector<kPairs>(bias_row, kHalf, lane);
  const LaneRow<kPairs> removed = load_vector<kPairs>(removed_row, kHalf, lane);
  LaneRow<kPairs> constant;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    constant.low[i] = __fsub_rn(bias.low[i], removed.low[i]);
    constant.high[i] = __fsub_rn(bias.high[i], removed.high[i]);
  }
  Counts k_counts, v_counts;
  float v_scales[2] = {1.0F, 1.0F};
  float* scale_block = reinterpret_cast<float*>(p.scales + place * 4 * kPageSize * (int{k_dynamic} + int{v_dynamic}));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (!there[i]) continue;
    const int slot = 2 * warp + i;
    if (p.fresh_k != nullptr) {
      const LaneRow<kPairs> whole = turn<kPairs>(keys[i], bias, angles[i], key_bf16);
      auto* to = static_cast<uint16_t*>(p.fresh_k) + (int64_t{first_token + i} * p.num_kv_heads + head) * kHeadDim;
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        to[lane * kPairs + j] = narrow_16(whole.low[j], key_bf16);
        to[kHalf + lane * kPairs + j] = narrow_16(whole.high[j], key_bf16);
      }
    }
    const LaneRow<kPairs> turned = turn<kPairs>(keys[i], constant, angles[i], key_bf16);
    const float k_scale =
        row_scale<key>(p.fixed_scales, k_dynamic, k_dynamic ? dynamic_scale<kPairs>(turned, kLargest<key>) : 0.0F);
    v_scales[i] = row_scale<value>(p.fixed_scales + 1, v_dynamic,
                                   v_dynamic ? dynamic_scale<kPairs>(values[i], kLargest<value>) : 0.0F);
    if (k_dynamic && lane == 0) scale_block[slot] = k_scale;
    if (v_dynamic && lane == 0) scale_block[(k_dynamic ? kPageSize : 0) + slot] = v_scales[i];
    stage_key<key, kPairs>(staged, slot, turned, k_scale, kHalf, lane, k_counts);
  }
  stage_values<value, kPairs>(staged + kKeyBlock, 2 * warp, values, v_scales, kHalf, lane, there, v_counts);
  __syncthreads();
  flush<key, value, kHeadDim>(run, staged, p.blocks + place * kBlock);
  if (p.counters != nullptr) {
    add_counts(k_counts, &p.counters->k_saturated, &p.counters->k_non_finite);
    add_counts(v_counts, &p.counters->v_saturated, &p.counters->v_non_finite);
  }
}

template <DType key, DType value, int kHeadDim>
bool enqueue(const DecodeConfig& config, const WriteParams& params, StreamHandle stream) {
  if (config.key != key || config.value != value || config.head_dim != kHeadDim) return false;
  const dim3 grid(static_cast<unsigned>(params.num_runs), static_cast<unsigned>(params.num_kv_heads));
  write_kernel<key, value, kHeadDim>
      <<<grid, kWarps * 32, 0, static_cast<cudaStream_t>(stream)>>>(params, config.k_dynamic, config.v_dynamic);
  return true;
}

template <int kHeadDim>
bool enqueue_dim(const DecodeConfig& config, const WriteParams& params, StreamHandle stream) {
  return enqueue<DType::kBF16, DType::kBF16, kHeadDim>(config, params, stream) ||
         enqueue<DType::kF16, DType::kF16, kHeadDim>(config, params, stream) ||
         enqueue<DType::kBF16, DType::kE4M3, kHeadDim>(config, params, stream) ||
         enqueue<DType::kF16, DType::kE4M3, kHeadDim>(config, params, stream) ||
         enqueue<DType::kE4M3, DType::kBF16, kHeadDim>(config, params, stream) ||
         enqueue<DType::kE4M3, DType::kF16, kHeadDim>(config, params, stream) ||
         enqueue<DType::kE4M3, DType::kE4M3, kHeadDim>(config, params, stream) ||
         enqueue<DType::kI8, DType::kE4M3, kHeadDim>(config, params, stream);
}

}  // namespace

bool internal::enqueue_write(const DecodeConfig& config, const WriteParams& params, StreamHandle stream) {
  return enqueue_dim<64>(config, params, stream) || enqueue_dim<128>(config, params, stream) ||
         enqueue_dim<256>(config, params, stream);
}

}  // namespace asymkv::cuda
