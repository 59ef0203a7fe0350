#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "asymkv/kernels/cuda/decode_types.h"
#include "asymkv/kernels/cuda/ptx.cuh"

// One page against the queries of one KV head. Keys are the 16 rows of mma.m16n8k16, queries its 8 columns; the output
// is kept transposed (channels x queries). A lane is lane = 4 * row + quad as in the PTX fragment tables.
namespace asymkv::cuda {

struct LanePlace {
  int lane, row, quad;
  __device__ __forceinline__ explicit LanePlace(int lane_in) : lane(lane_in), row(lane_in >> 2), quad(lane_in & 3) {}
};

// Columns are query tokens times group: column c is head c % group of token c / group.
__device__ __forceinline__ int token_of(const DecodeParams& p, int column) {
  return static_cast<int>(static_cast<uint32_t>(column) * p.per_group >> 16);
}
// Row of q, out and lse (counted in query heads) of a column, from the row of column 0.
__device__ __forceinline__ int row_of(const DecodeParams& p, int column) {
  return column + token_of(p, column) * p.row_skip;
}
__device__ __forceinline__ int first_row(const DecodeParams& p, const Segment& s) {
  return (s.query_row * p.num_kv_heads + s.kv_head) * p.group;
}
__device__ __forceinline__ int columns_of(const DecodeParams& p, const Segment& s) {
  return s.num_queries * p.group;
}

// What one warp holds of the running softmax: channels x queries, per column its max (log2 units) and sum.
template <DecodeConfig C>
struct WarpState {
  float out[C.column_tiles][C.head_dim / 16][4];
  float max[C.column_tiles][2];
  float sum[C.column_tiles][2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int tile = 0; tile < C.column_tiles; ++tile) {
#pragma unroll
      for (int i = 0; i < C.head_dim / 16; ++i)
        out[tile][i][0] = out[tile][i][1] = out[tile][i][2] = out[tile][i][3] = 0.0F;
      max[tile][0] = max[tile][1] = -INFINITY;
      sum[tile][0] = sum[tile][1] = 0.0F;
    }
  }
};

// Queries as B fragments: [column tile][k-step][2 registers].
template <DecodeConfig C>
struct QueryFragments {
  uint32_t b[C.column_tiles][C.head_dim / 16][2];
  float offset[C.column_tiles][2];  // INT8 keys: what the offset-binary form adds to every score of a column
};

template <DecodeConfig C>
using Scores = float[C.column_tiles][4];  // {slot row, slot row + 8} x {column 2 * quad, + 1}

// --- widening to FP16

// Four E4M3 codes: low = codes 0 and 1, high = codes 2 and 3. Exact.
__device__ __forceinline__ void widen_e4m3(uint32_t codes, uint32_t& low, uint32_t& high) {
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}"
      : "=r"(low), "=r"(high)
      : "r"(codes));
}
// Four offset-binary INT8 codes under the exponent of 1024: even = codes 0 and 2, odd = codes 1 and 3, each as the
// exact FP16 number 1152 + value. QueryFragments::offset takes the 1152 out of the score.
inline constexpr float kI8Offset = 1152.0F;
__device__ __forceinline__ void widen_i8(uint32_t codes, uint32_t& even, uint32_t& odd) {
  even = __byte_perm(codes, 0x64646464U, 0x4240);
  odd = __byte_perm(codes, 0x64646464U, 0x4341);
}

// --- queries

// BF16 reaches further than FP16. Where BF16 queries meet FP16 arithmetic they are taken in units of 64: magnitudes to
// 4.19e6 stay finite, and those below 2^-8 keep at least the absolute precision 2^-19.
inline constexpr float kQueryUnit = 64.0F;

__device__ __forceinline__ float2 unpack_query(uint32_t pair, bool is_bf16) {
  const float2 as_bf16 = {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U)};
  const float2 as_f16 = __half22float2(*reinterpret_cast<const __half2*>(&pair));
  return is_bf16 ? as_bf16 : as_f16;
}

// One k-step of one query row as it lies in memory: the two channel pairs that a lane needs.
template <DecodeConfig C>
__device__ __forceinline__ uint2 load_query_words(const uint16_t* row, int step, int quad) {
  if constexpr (C.k_bytes() == 2) {
    return {*reinterpret_cast<const uint32_t*>(row + 16 * step + 2 * quad),
            *reinterpret_cast<const uint32_t*>(row + 16 * step + 2 * quad + 8)};
  } else {  // the permutation of tiled_k8_offset: a lane's four channels are consecutive
    return *reinterpret_cast<const uint2*>(row + 16 * step + 4 * quad);
  }
}

// Those words as FP16 registers; adds the channels, as rounded, to `total`.
template <DecodeConfig C>
__device__ __forceinline__ void convert_query_words(uint2 words, bool is_bf16, uint32_t (&b)[2], float& total) {
  const float unit = is_bf16 ? 1.0F / kQueryUnit : 1.0F;
  const float2 first = unpack_query(words.x, is_bf16), second = unpack_query(words.y, is_bf16);
  if constexpr (C.key == DType::kI8) {  // widen_i8 gives even and odd codes
    b[0] = ptx::pack_16bit<false>(first.x * unit, second.x * unit);
    b[1] = ptx::pack_16bit<false>(first.y * unit, second.y * unit);
    const float2 even = unpack_query(b[0], false), odd = unpack_query(b[1], false);
    total += (even.x + even.y) + (odd.x + odd.y);
  } else {
    b[0] = ptx::pack_16bit<false>(first.x * unit, first.y * unit);
    b[1] = ptx::pack_16bit<false>(second.x * unit, second.y * unit);
  }
}

// All channel words of a segment's queries that a lane needs, as they lie in memory.
template <DecodeConfig C>
struct QueryWords {
  uint2 at[C.column_tiles][C.head_dim / 16];
};

template <DecodeConfig C>
__device__ __forceinline__ void load_query_words(const DecodeParams& p, const Segment& segment, LanePlace at,
                                                 QueryWords<C>& words) {
  const int columns = columns_of(p, segment);
  const uint16_t* q = static_cast<const uint16_t*>(p.q) + static_cast<size_t>(first_row(p, segment)) * C.head_dim;
#pragma unroll
  for (int tile = 0; tile < C.column_tiles; ++tile) {
    const int column = tile * kColumnsPerTile + at.row;
    // No branch: all loads are in flight at once.
    const uint16_t* row = q + static_cast<ptrdiff_t>(row_of(p, min(column, columns - 1))) * C.head_dim;
#pragma unroll
    for (int step = 0; step < C.head_dim / 16; ++step) words.at[tile][step] = load_query_words<C>(row, step, at.quad);
  }
}

template <DecodeConfig C>
__device__ __forceinline__ void convert_queries(const DecodeParams& p, const Segment& segment, LanePlace at,
                                                const QueryWords<C>& words, QueryFragments<C>& queries) {
#pragma unroll
  for (int tile = 0; tile < C.column_tiles; ++tile) {
    const bool used = tile * kColumnsPerTile + at.row < columns_of(p, segment);
    float total = 0.0F;
#pragma unroll
    for (int step = 0; step < C.head_dim / 16; ++step) {
      const uint2 word = used ? words.at[tile][step] : make_uint2(0, 0);
      if constexpr (C.key == DType::kBF16) {
        queries.b[tile][step][0] = word.x, queries.b[tile][step][1] = word.y;
      } else {
        convert_query_words<C>(word, p.q_is_bf16, queries.b[tile][step], total);
      }
    }
    queries.offset[tile][0] = queries.offset[tile][1] = 0.0F;
    if constexpr (C.key == DType::kI8) {
      total += __shfl_xor_sync(~0U, total, 1);
      total += __shfl_xor_sync(~0U, total, 2);
      queries.offset[tile][0] = -kI8Offset * __shfl_sync(~0U, total, 8 * at.quad);
      queries.offset[tile][1] = -kI8Offset * __shfl_sync(~0U, total, 8 * at.quad + 4);
    }
  }
}

// --- scores of one page: raw products, before any scale

template <DecodeConfig C>
__device__ __forceinline__ void score_page(const std::byte* keys, LanePlace at, const QueryFragments<C>& queries,
                                           Scores<C>& scores) {
  constexpr int kChains = 4 / C.column_tiles;  // independent accumulators hide the latency of the tensor cores
  float sums[C.column_tiles][kChains][4] = {};
#pragma unroll
  for (int tile = 0; tile < C.column_tiles; ++tile) {
    sums[tile][0][0] = sums[tile][0][2] = queries.offset[tile][0];
    sums[tile][0][1] = sums[tile][0][3] = queries.offset[tile][1];
  }
  const uint4* fragments = reinterpret_cast<const uint4*>(keys) + at.lane;
#pragma unroll
  for (int load = 0; load < C.k_block_bytes() / 512; ++load) {
    const uint4 raw = fragments[load * 32];
    if constexpr (C.k_bytes() == 2) {
#pragma unroll
      for (int tile = 0; tile < C.column_tiles; ++tile)
        ptx::mma_16x8x16<C.key == DType::kBF16>(sums[tile][load % kChains], raw.x, raw.y, raw.z, raw.w,
                                                queries.b[tile][load]);
    } else {
      uint32_t low[4], high[4];
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        if constexpr (C.key == DType::kE4M3) {
          widen_e4m3(words[w], low[w], high[w]);
        } else {
          widen_i8(words[w], low[w], high[w]);
        }
      }
#pragma unroll
      for (int tile = 0; tile < C.column_tiles; ++tile) {
        ptx::mma_16x8x16<false>(sums[tile][2 * load % kChains], low[0], low[1], high[0], high[1],
                                queries.b[tile][2 * load]);
        if constexpr (C.head_dim % 32 != 0) {  // the last load's second half is padding
          if (2 * load + 1 == C.head_dim / 16) continue;
        }
        ptx::mma_16x8x16<false>(sums[tile][(2 * load + 1) % kChains], low[2], low[3], high[2], high[3],
                                queries.b[tile][2 * load + 1]);
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < C.column_tiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[tile][i] = sums[tile][0][i] + sums[tile][1][i];
      if constexpr (kChains == 4) scores[tile][i] += sums[tile][2][i] + sums[tile][3][i];
    }
  }
}

// --- dynamic value scales
// Weight times scale must fit FP16 for any scale. A scale is split into 2^power (power >= -40) and a rest in [1, 2)
// (smaller only for scales below 2^-40); the max of the softmax is taken over score + power, so the products stay in
// range, and the sum divides by 2^power exactly.
struct ValueScale {
  float power, rest, inverse_power;
  __device__ __forceinline__ explicit ValueScale(float scale) {
    const int exponent = ::max(static_cast<int>(__float_as_uint(scale) >> 23) - 127, -40);
    power = static_cast<float>(exponent);
    inverse_power = __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23);
    rest = scale * inverse_power;
  }
};

// --- softmax of one page

// Above the running max by more than this (log2 units) the state is rescaled; until then weights stay below 2^5.
inline constexpr float kLazyMaxStep = 5.0F;

template <DecodeConfig C>
__device__ __forceinline__ void raise_max(const Scores<C>& scores, WarpState<C>& state) {
  float top[C.column_tiles][2];
  bool above = false;
#pragma unroll
  for (int tile = 0; tile < C.column_tiles; ++tile) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      top[tile][j] = fmaxf(scores[tile][j], scores[tile][j + 2]);
      above = above || top[tile][j] > state.max[tile][j] + kLazyMaxStep;
    }
  }
  if (!__any_sync(~0U, above)) return;
#pragma unroll
  for (int tile = 0; tile < C.column_tiles; ++tile) {
    float keep[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2)
        top[tile][j] = fmaxf(top[tile][j], __shfl_xor_sync(~0U, top[tile][j], step));
      top[tile][j] = fmaxf(top[tile][j], state.max[tile][j]);
      keep[j] = ptx::exp2_approx(state.max[tile][j] - top[tile][j]);
      state.max[tile][j] = top[tile][j];
      state.sum[tile][j] *= keep[j];
    }
#pragma unroll
    for (int i = 0; i < C.head_dim / 16; ++i) {
      state.out[tile][i][0] *= keep[0];
      state.out[tile][i][1] *= keep[1];
      state.out[tile][i][2] *= keep[0];
      state.out[tile][i][3] *= keep[1];
    }
  }
}

// Turns scores into weights and adds them to the sums. With dynamic value scales the weights come back times scale.
template <DecodeConfig C>
__device__ __forceinline__ void weigh_page(const float* value_scales, LanePlace at, Scores<C>& scores,
                                           WarpState<C>& state) {
  if constexpr (C.v_dynamic) {
    const ValueScale upper(value_scales[at.row]), lower(value_scales[at.row + 8]);
#pragma unroll
    for (int tile = 0; tile < C.column_tiles; ++tile) {
      scores[tile][0] += upper.power, scores[tile][1] += upper.power;
      scores[tile][2] += lower.power, scores[tile][3] += lower.power;
    }
    raise_max<C>(scores, state);
#pragma unroll
    for (int tile = 0; tile < C.column_tiles; ++tile) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float a = ptx::exp2_approx(scores[tile][j] - state.max[tile][j]);
        const float b = ptx::exp2_approx(scores[tile][j + 2] - state.max[tile][j]);
        state.sum[tile][j] = fmaf(a, upper.inverse_power, fmaf(b, lower.inverse_power, state.sum[tile][j]));
        scores[tile][j] = a * upper.rest;
        scores[tile][j + 2] = b * lower.rest;
      }
    }
  } else {
    raise_max<C>(scores, state);
#pragma unroll
    for (int tile = 0; tile < C.column_tiles; ++tile) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        scores[tile][j] = ptx::exp2_approx(scores[tile][j] - state.max[tile][j]);
        scores[tile][j + 2] = ptx::exp2_approx(scores[tile][j + 2] - state.max[tile][j]);
        state.sum[tile][j] += scores[tile][j] + scores[tile][j + 2];
      }
    }
  }
}

// --- values of one page

template <DecodeConfig C>
__device__ __forceinline__ void add_values(const std::byte* values, LanePlace at, const Scores<C>& weights,
                                           WarpState<C>& state) {
  constexpr bool kBf16 = C.value == DType::kBF16;
  uint32_t b[C.column_tiles][2];
#pragma unroll
  for (int tile = 0; tile < C.column_tiles; ++tile) {
    b[tile][0] = ptx::transpose_8x8(ptx::pack_16bit<kBf16>(weights[tile][0], weights[tile][1]));
    b[tile][1] = ptx::transpose_8x8(ptx::pack_16bit<kBf16>(weights[tile][2], weights[tile][3]));
  }
  const uint4* fragments = reinterpret_cast<const uint4*>(values) + at.lane;
#pragma unroll
  for (int load = 0; load < C.v_block_bytes() / 512; ++load) {
    const uint4 raw = fragments[load * 32];
    if constexpr (C.v_bytes() == 2) {
#pragma unroll
      for (int tile = 0; tile < C.column_tiles; ++tile)
        ptx::mma_16x8x16<kBf16>(state.out[tile][load], raw.x, raw.y, raw.z, raw.w, b[tile]);
    } else {
      uint32_t low[4], high[4];
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) widen_e4m3(words[w], low[w], high[w]);
#pragma unroll
      for (int tile = 0; tile < C.column_tiles; ++tile) {
        ptx::mma_16x8x16<false>(state.out[tile][2 * load], low[0], low[1], high[0], high[1], b[tile]);
        if constexpr (C.head_dim % 32 != 0) {
          if (2 * load + 1 == C.head_dim / 16) continue;
        }
        ptx::mma_16x8x16<false>(state.out[tile][2 * load + 1], low[2], low[3], high[2], high[3], b[tile]);
      }
    }
  }
}

// --- the last page of a sequence
// Slots from `valid` on hold whatever was there before, NaN included. Keys and values become zero (0 * NaN is NaN),
// their scales one; mask_scores takes them out. Each lane clears the bytes that it reads itself.

__device__ __forceinline__ uint4 masked(uint4 raw, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  return {raw.x & x, raw.y & y, raw.z & z, raw.w & w};
}

template <DecodeConfig C>
__device__ __forceinline__ void clear_unused_slots(std::byte* stage, int valid, LanePlace at) {
  const uint32_t upper = at.row < valid ? ~0U : 0U, lower = at.row + 8 < valid ? ~0U : 0U;
  uint4* keys = reinterpret_cast<uint4*>(stage) + at.lane;
#pragma unroll
  for (int load = 0; load < C.k_block_bytes() / 512; ++load)
    keys[load * 32] = masked(keys[load * 32], upper, lower, upper, lower);
  auto pair_mask = [&](int slot) { return (slot < valid ? 0x0000ffffU : 0U) | (slot + 1 < valid ? 0xffff0000U : 0U); };
  uint32_t first = pair_mask(2 * at.quad), second = pair_mask(2 * at.quad + 8);
  if constexpr (C.v_bytes() == 1) first = second = __byte_perm(first, second, 0x6420);  // slots 2q, + 1, + 8, + 9
  uint4* values = reinterpret_cast<uint4*>(stage + C.k_block_bytes()) + at.lane;
#pragma unroll
  for (int load = 0; load < C.v_block_bytes() / 512; ++load)
    values[load * 32] = masked(values[load * 32], first, first, second, second);
  if constexpr (C.scale_bytes() > 0) {
    float* scales = reinterpret_cast<float*>(stage + C.block_bytes());
    if (at.lane % kPageSize >= valid && at.lane < C.scale_bytes() / 4) scales[at.lane] = 1.0F;
    __syncwarp();
  }
  ptx::fence_async_proxy();  // the stage is overwritten by a bulk copy next
}

// On a page at the edge of what a query tile sees: scores of keys that a column does not see become -inf, and its max
// finite, so that a column without any key so far has weights of zero.
template <DecodeConfig C>
__device__ __forceinline__ void mask_scores(const DecodeParams& p, const Segment& segment, int first_key, LanePlace at,
                                            Scores<C>& scores, WarpState<C>& state) {
  constexpr float kLowestMax = -1e30F;
#pragma unroll
  for (int tile = 0; tile < C.column_tiles; ++tile) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int position = segment.query_pos + token_of(p, tile * kColumnsPerTile + 2 * at.quad + j);
      const int end = min(position + 1, segment.seq_len), begin = p.window > 0 ? position + 1 - p.window : 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = first_key + at.row + 8 * half;
        if (key < begin || key >= end) scores[tile][j + 2 * half] = -INFINITY;
      }
      state.max[tile][j] = fmaxf(state.max[tile][j], kLowestMax);
    }
  }
}

}  // namespace asymkv::cuda
