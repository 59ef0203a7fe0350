#pragma once

#include "asymkv/kernels/cuda/fragments.cuh"

// The score of the constant vector that was taken out of pre-bias keys. Per RoPE pair (rotate-half, channels p and
// p + head_dim / 2) the score at position t is c cos(w t) + d sin(w t) with c = q1 b1 + q2 b2 and d = q2 b1 - q1 b2, q
// already rotated.
//
// Slow pairs: over a window of 512 keys they sum to a polynomial of degree 4 in x = (t - middle) / 256. A warp makes
// its coefficients when it comes to a window; its value on a page is one k-step, powers of x times coefficients.
//
// Fast pairs: (c, d) is turned to the first key of a run of pages; then eight pairs are one more k-step of the score,
// keys = cosines and sines of the offset (one constant table for all heads and runs), queries = the turned (c, d).
//
// Both factors of these products are split into two FP16 numbers, so that about 22 bits remain.
namespace asymkv::cuda {

// Shared-memory arrays of this stage; fast = 8 * fast_steps.
struct BiasTables {
  const BiasPair* pairs;       // [kv head][slow pair]
  const BiasFrequency* freqs;  // [slow pair]
  float2* fast_products;       // [column][fast] {c, d}, in log2 units over kBiasUnit
  float2* fast_freqs;          // [fast] turns per position and their rest

  __device__ __forceinline__ BiasTables(std::byte* smem, const DecodeShared& at)
      : pairs(reinterpret_cast<const BiasPair*>(smem + at.bias_pairs)),
        freqs(reinterpret_cast<const BiasFrequency*>(smem + at.bias_freqs)),
        fast_products(reinterpret_cast<float2*>(smem + at.fast_products)),
        fast_freqs(reinterpret_cast<float2*>(smem + at.fast_freqs)) {}
};

inline constexpr float kTwoPi = 6.28318530717958648F;

// {cos, sin} of `position` turns-per-position `turns` + `rest`, exact to about 5e-7.
__device__ __forceinline__ float2 unit_angle(float turns, float rest, float position) {
  const float whole = turns * position;
  const float error = fmaf(turns, position, -whole) + rest * position;
  float sine, cosine;
  __sincosf(((whole - rintf(whole)) + error) * kTwoPi, &sine, &cosine);
  return make_float2(cosine, sine);
}

// {c, d} of one pair of channels of a query, in log2 units over kBiasUnit.
__device__ __forceinline__ float2 pair_product(const DecodeParams& p, float q1, float q2, float low, float high) {
  const float unit = p.softmax_scale_log2 * static_cast<float>(1.0 / kBiasUnit);
  return make_float2((q1 * low + q2 * high) * unit, (q2 * low - q1 * high) * unit);
}

// Row 0 of a segment's queries; row_of() has the others.
template <DecodeConfig C>
__device__ __forceinline__ const uint16_t* first_query(const DecodeParams& p, const Segment& segment) {
  return static_cast<const uint16_t*>(p.q) + static_cast<size_t>(first_row(p, segment)) * C.head_dim;
}

// Products of the fast pairs with the queries of a segment, while no warp reads those of another one. A barrier must
// follow.
template <DecodeConfig C>
__device__ __forceinline__ void prepare_fast_bias(const DecodeParams& p, const Segment& segment,
                                                  const BiasTables& tables) {
  const int fast = kBiasStepPairs * p.bias_shape.fast_steps;
  for (int i = threadIdx.x; i < columns_of(p, segment) * fast; i += blockDim.x) {
    const int column = i / fast, pair = i - column * fast;
    const FastBiasPair b = p.fast_bias[segment.kv_head * fast + pair];
    const uint16_t* row = first_query<C>(p, segment) + static_cast<ptrdiff_t>(row_of(p, column)) * C.head_dim;
    const float q1 = unpack_query(row[b.pair], p.q_is_bf16).x,
                q2 = unpack_query(row[b.pair + C.head_dim / 2], p.q_is_bf16).x;
    tables.fast_products[i] = pair_product(p, q1, q2, b.low, b.high);
    if (column == 0) tables.fast_freqs[pair] = make_float2(p.fast_freq[pair].turns, p.fast_freq[pair].turns_rest);
  }
}

// Two FP16 numbers whose sum is x to about 22 bits, for a pair of values: {high, low}.
__device__ __forceinline__ uint2 split_f16(float first, float second) {
  constexpr float kLargest = 65504.0F;
  first = fminf(fmaxf(first, -kLargest), kLargest);
  second = fminf(fmaxf(second, -kLargest), kLargest);
  const uint32_t high = ptx::pack_16bit<false>(first, second);
  const float2 rounded = unpack_query(high, false);
  return {high, ptx::pack_16bit<false>(first - rounded.x, second - rounded.y)};
}

// The queries of four pairs of a lane, channels 16 step + 4 quad on and half a head further; zero in unused columns.
template <DecodeConfig C>
__device__ __forceinline__ void pair_queries(const DecodeParams& p, const Segment& segment,
                                             const QueryFragments<C>& queries, int tile, int step, LanePlace at,
                                             float (&q1)[4], float (&q2)[4]) {
  constexpr int kHalf = C.head_dim / 2;
  if constexpr (kHalf % 16 == 0) {  // both are in the lane's fragments, converted without loss
    const float unit = p.q_is_bf16 ? kQueryUnit : 1.0F;
    auto unpack = [&](const uint32_t(&b)[2], float(&q)[4]) {
      const float2 first = unpack_query(b[0], false), second = unpack_query(b[1], false);
      constexpr bool kEvenOdd = C.key == DType::kI8;
      q[0] = first.x * unit, q[3] = second.y * unit;
      q[1] = (kEvenOdd ? second.x : first.y) * unit, q[2] = (kEvenOdd ? first.y : second.x) * unit;
    };
    unpack(queries.b[tile][step], q1);
    unpack(queries.b[tile][step + kHalf / 16], q2);
  } else {
    const int column = tile * kColumnsPerTile + at.row, columns = columns_of(p, segment);
    const uint16_t* row =
        first_query<C>(p, segment) + static_cast<ptrdiff_t>(row_of(p, min(column, columns - 1))) * C.head_dim;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int pair = min(16 * step + 4 * at.quad + i, kHalf - 1);
      q1[i] = column < columns ? unpack_query(row[pair], p.q_is_bf16).x : 0.0F;
      q2[i] = column < columns ? unpack_query(row[pair + kHalf], p.q_is_bf16).x : 0.0F;
    }
  }
}

// The polynomials of one window as the query side of one k-step; key_bias.cc has the key side, powers of x.
template <DecodeConfig C>
struct WindowBias {
  uint32_t b[C.column_tiles][2];

  // A quad of lanes takes one column, each lane the pairs whose channels it holds of the queries anyway. Vector and
  // frequencies come from shared memory: no load stands between the queries and the first score.
  __device__ __forceinline__ void make(const DecodeParams& p, const BiasTables& tables, const Segment& segment,
                                       const QueryFragments<C>& queries, int window, LanePlace at) {
    constexpr int kWindowKeys = kWindowPages * kPageSize, kPairs = C.head_dim / 2;
    const float middle = static_cast<float>(window * kWindowKeys + kWindowKeys / 2);
    const int slow = p.bias_shape.slow_pairs(), first_pair = kPairs - slow;
#pragma unroll
    for (int tile = 0; tile < C.column_tiles; ++tile) {
      float k[kBiasTerms] = {};
#pragma unroll
      for (int step = 0; step < (kPairs + 15) / 16; ++step) {
        if (16 * step + 15 < first_pair) continue;
        const int pair = 16 * step + 4 * at.quad, slow_pair = pair - first_pair;  // of the lane's four
        const bool is_slow = slow_pair >= 0 && pair < kPairs;
        float q1[4], q2[4];
        pair_queries<C>(p, segment, queries, tile, step, at, q1, q2);
        const BiasPair* pairs = tables.pairs + segment.kv_head * slow + (is_slow ? slow_pair : 0);
        const BiasFrequency* freqs = tables.freqs + (is_slow ? slow_pair : 0);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const BiasFrequency f = freqs[i];
          const float2 angle = unit_angle(f.turns, f.turns_rest, middle);
          const float2 cd =
              pair_product(p, is_slow ? q1[i] : 0.0F, is_slow ? q2[i] : 0.0F, pairs[i].low, pairs[i].high);
          const float half = f.radians_per_half_window, square = -0.5F * half * half;
          const float even = cd.x * angle.x + cd.y * angle.y, odd = (cd.y * angle.x - cd.x * angle.y) * half;
          k[0] += even;
          k[1] += odd;
          k[2] = fmaf(square, even, k[2]);
          k[3] = fmaf(square * (1.0F / 3.0F), odd, k[3]);
          k[4] = fmaf(square * square * (1.0F / 6.0F), even, k[4]);
        }
      }
#pragma unroll
      for (int term = 0; term < kBiasTerms; ++term) {
        k[term] += __shfl_xor_sync(~0U, k[term], 1);
        k[term] += __shfl_xor_sync(~0U, k[term], 2);
      }
      set(k, at, b[tile]);
    }
  }
  // Adds the score of the slow pairs on one page.
  __device__ __forceinline__ void add(const std::byte* table, int page, LanePlace at, Scores<C>& scores) const {
    const uint4 powers = reinterpret_cast<const uint4*>(table)[page % kWindowPages * 32 + at.lane];
#pragma unroll
    for (int tile = 0; tile < C.column_tiles; ++tile)
      ptx::mma_16x8x16<false>(scores[tile], powers.x, powers.y, powers.z, powers.w, b[tile]);
  }

 private:
  // Columns 2 * quad, + 1, + 8, + 9 of the k-step: the high parts of the terms, the low ones, the high ones, nothing.
  static __device__ __forceinline__ void set(const float (&k)[kBiasTerms], LanePlace at, uint32_t (&b)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float parts[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int place = 2 * at.quad + 8 * half + i, term = place % kBiasTerms;
        const float c = term == 0 ? k[0] : term == 1 ? k[1] : term == 2 ? k[2] : term == 3 ? k[3] : k[4];
        const uint2 split = split_f16(place < 3 * kBiasTerms ? c : 0.0F, 0.0F);
        const bool low = place >= kBiasTerms && place < 2 * kBiasTerms;
        parts[i] = unpack_query(low ? split.y : split.x, false).x;
      }
      b[half] = ptx::pack_16bit<false>(parts[0], parts[1]);
    }
  }
};

// The query side of one k-step of fast pairs, turned to `position`: B fragments of the high and the low parts.
struct FastStep {
  uint32_t high[2], low[2];

  __device__ __forceinline__ void turn(const BiasTables& tables, int fast, int step, int column, bool used,
                                       float position, LanePlace at) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pair = step * kBiasStepPairs + half * 4 + at.quad;
      const float2 cd = tables.fast_products[column * fast + pair], f = tables.fast_freqs[pair];
      const float2 angle = unit_angle(f.x, f.y, position);
      const float c = cd.x * angle.x + cd.y * angle.y, d = cd.y * angle.x - cd.x * angle.y;
      const uint2 parts = split_f16(used ? c : 0.0F, used ? d : 0.0F);
      high[half] = parts.x, low[half] = parts.y;
    }
  }
};

// The fast pairs of one run of pages. The first k-steps stay in registers, others are turned again for every page.
template <DecodeConfig C>
struct FastBias {
  FastStep steps[C.column_tiles][kRegisterBiasSteps];

  __device__ __forceinline__ void turn(const DecodeParams& p, const BiasTables& tables, int first_page, int columns,
                                       LanePlace at) {
    const float position = static_cast<float>(first_page * kPageSize);
#pragma unroll
    for (int tile = 0; tile < C.column_tiles; ++tile) {
      const int column = tile * kColumnsPerTile + at.row;
#pragma unroll
      for (int step = 0; step < kRegisterBiasSteps; ++step) {
        if (step < p.bias_shape.fast_steps)
          steps[tile][step].turn(tables, kBiasStepPairs * p.bias_shape.fast_steps, step, min(column, columns - 1),
                                 column < columns, position, at);
      }
    }
  }

  // Adds the score of the fast pairs on one page.
  __device__ __forceinline__ void add(const DecodeParams& p, const BiasTables& tables, const std::byte* table, int page,
                                      int columns, LanePlace at, Scores<C>& scores) const {
    const int page_in_table = page & (p.bias_shape.table_pages() - 1);
    const uint4* fragments = reinterpret_cast<const uint4*>(table + kWindowTableBytes) + page_in_table * 64 + at.lane;
    Scores<C> rest = {};
#pragma unroll
    for (int step = 0; step < kRegisterBiasSteps; ++step) {
      if (step < p.bias_shape.fast_steps) {
        const uint4* from = fragments + (step << p.bias_shape.table_shift) * 64;
#pragma unroll
        for (int tile = 0; tile < C.column_tiles; ++tile)
          multiply(from[0], from[32], steps[tile][step], scores[tile], rest[tile]);
      }
    }
#pragma unroll 1
    for (int step = kRegisterBiasSteps; step < p.bias_shape.fast_steps; ++step) {
      const uint4* from = fragments + (step << p.bias_shape.table_shift) * 64;
#pragma unroll
      for (int tile = 0; tile < C.column_tiles; ++tile) {
        const int column = tile * kColumnsPerTile + at.row;
        FastStep turned;
        turned.turn(tables, kBiasStepPairs * p.bias_shape.fast_steps, step, min(column, columns - 1), column < columns,
                    static_cast<float>((page - page_in_table) * kPageSize), at);
        multiply(from[0], from[32], turned, scores[tile], rest[tile]);
      }
    }
#pragma unroll
    for (int tile = 0; tile < C.column_tiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[tile][i] += rest[tile][i];
    }
  }

 private:
  static __device__ __forceinline__ void multiply(uint4 high, uint4 low, const FastStep& step, float (&sum)[4],
                                                  float (&rest)[4]) {
    ptx::mma_16x8x16<false>(sum, high.x, high.y, high.z, high.w, step.high);
    ptx::mma_16x8x16<false>(rest, high.x, high.y, high.z, high.w, step.low);
    ptx::mma_16x8x16<false>(rest, low.x, low.y, low.z, low.w, step.high);
  }
};

}  // namespace asymkv::cuda
