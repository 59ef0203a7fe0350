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

// Shared-memory arrays of this stage; pairs = 32 * slow_chunks, fast = 8 * fast_steps.
struct BiasTables {
  float2* products;       // [column][pair] {c, d}, in log2 units over kBiasUnit
  float4* freqs;          // [pair] turns per position and their rest, radians per half window
  float2* fast_products;  // [column][fast] {c, d}, in the same units
  float2* fast_freqs;     // [fast] turns per position and their rest

  __device__ __forceinline__ BiasTables(std::byte* smem, const DecodeShared& at)
      : products(reinterpret_cast<float2*>(smem + at.bias_products)),
        freqs(reinterpret_cast<float4*>(smem + at.bias_freqs)),
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

// {c, d} of one pair and one query row, in log2 units over kBiasUnit.
template <DecodeConfig C>
__device__ __forceinline__ float2 pair_product(const DecodeParams& p, const uint16_t* row, int pair, float low,
                                               float high) {
  const float q1 = unpack_query(row[max(pair, 0)], p.q_is_bf16).x;  // a negative pair is padding
  const float q2 = unpack_query(row[max(pair, 0) + C.head_dim / 2], p.q_is_bf16).x;
  const float unit = p.softmax_scale_log2 * static_cast<float>(1.0 / kBiasUnit);
  return make_float2((q1 * low + q2 * high) * unit, (q2 * low - q1 * high) * unit);
}

// Products with the queries of a segment, while no warp reads those of another one. A barrier must follow.
template <DecodeConfig C>
__device__ __forceinline__ void prepare_bias(const DecodeParams& p, const Segment& segment, const BiasTables& tables) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int chunks = p.bias_shape.slow_chunks, pairs = 32 * chunks, first_pair = C.head_dim / 2 - pairs;
  const auto* q = static_cast<const uint16_t*>(p.q) + static_cast<size_t>(first_row(p, segment)) * C.head_dim;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int pair = chunk * 32 + lane;
    const BiasPair b = p.bias[segment.kv_head * pairs + pair];
    const BiasFrequency f = p.bias_freq[pair];
    if (warp == 0) tables.freqs[pair] = make_float4(f.turns, f.turns_rest, f.radians_per_half_window, 0.0F);
    for (int column = warp; column < columns_of(p, segment); column += warps) {
      const uint16_t* row = q + static_cast<ptrdiff_t>(row_of(p, column)) * C.head_dim;
      tables.products[column * pairs + pair] = pair_product<C>(p, row, first_pair + pair, b.low, b.high);
    }
  }
  if constexpr (!C.fast_bias) return;
  const int fast = kBiasStepPairs * p.bias_shape.fast_steps;
  for (int i = threadIdx.x; i < columns_of(p, segment) * fast; i += blockDim.x) {
    const int column = i / fast, pair = i - column * fast;
    const FastBiasPair b = p.fast_bias[segment.kv_head * fast + pair];
    const uint16_t* row = q + static_cast<ptrdiff_t>(row_of(p, column)) * C.head_dim;
    tables.fast_products[i] = pair_product<C>(p, row, b.pair, b.low, b.high);
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

// The polynomials of one window as the query side of one k-step; key_bias.cc has the key side, powers of x.
template <DecodeConfig C>
struct WindowBias {
  uint32_t b[C.column_tiles][2];

  // A quad of lanes takes one column: each lane eight of every 32 pairs, from another one on in every row, so that the
  // lanes read different banks.
  __device__ __forceinline__ void make(const DecodeParams& p, const BiasTables& tables, int window, int columns,
                                       LanePlace at) {
    constexpr int kWindowKeys = kWindowPages * kPageSize;
    const float middle = static_cast<float>(window * kWindowKeys + kWindowKeys / 2);
    const int chunks = p.bias_shape.slow_chunks;
#pragma unroll
    for (int tile = 0; tile < C.column_tiles; ++tile) {
      const int column = tile * kColumnsPerTile + at.row;
      float k[kBiasTerms] = {};
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const float4 f = tables.freqs[chunk * 32 + at.lane];
        const float2 turned = unit_angle(f.x, f.y, middle);
        const float2* products = tables.products + (min(column, columns - 1) * chunks + chunk) * 32;
#pragma unroll
        for (int step = 0; step < 8; ++step) {
          const int pair = at.quad * 8 + ((step + at.row) & 7);
          const float cosine = __shfl_sync(~0U, turned.x, pair), sine = __shfl_sync(~0U, turned.y, pair);
          const float half = __shfl_sync(~0U, f.z, pair), square = -0.5F * half * half;
          const float2 cd = products[pair];
          const float even = cd.x * cosine + cd.y * sine, odd = (cd.y * cosine - cd.x * sine) * half;
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
      set(k, column < columns, at, b[tile]);
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
  static __device__ __forceinline__ void set(const float (&k)[kBiasTerms], bool used, LanePlace at, uint32_t (&b)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float parts[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int place = 2 * at.quad + 8 * half + i, term = place % kBiasTerms;
        const float c = term == 0 ? k[0] : term == 1 ? k[1] : term == 2 ? k[2] : term == 3 ? k[3] : k[4];
        const uint2 split = split_f16(used && place < 3 * kBiasTerms ? c : 0.0F, 0.0F);
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
