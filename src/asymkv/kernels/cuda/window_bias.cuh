#pragma once

#include "asymkv/kernels/cuda/fragments.cuh"

// The score of the constant vector that was taken out of pre-bias keys. Per RoPE pair (rotate-half, channels p and
// p + head_dim / 2) the score at position t is c cos(w t) + d sin(w t) with c = q1 b1 + q2 b2 and d = q2 b1 - q1 b2, q
// already rotated. Over a window of 512 keys the slow pairs sum to a polynomial of degree 4 in x = (t - middle) / 256;
// its coefficients are computed once per segment, window and query.
namespace asymkv::cuda {

// Shared-memory arrays of this stage; pairs = 32 * bias_chunks.
struct BiasTables {
  float* coeffs;     // [term][window][column]
  float2* products;  // [column][pair] {c, d}, in log2 units
  float2* turns;     // [window][pair] {cos, sin} of the window's middle
  float* half_step;  // [pair] radians per half window
};

inline constexpr float kTwoPi = 6.28318530717958648F;

// First half: products with the queries, and the angles of the windows' middles. A barrier must follow.
template <DecodeConfig C>
__device__ __forceinline__ void prepare_bias(const DecodeParams& p, const Segment& segment, const uint16_t* q,
                                             const BiasTables& tables) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int pairs = 32 * p.bias_chunks, first_channel = C.head_dim / 2 - pairs;
  const int first_window = segment.page_begin / kWindowPages;
  const int num_windows = (segment.page_end - 1) / kWindowPages - first_window + 1;
  for (int chunk = 0; chunk < p.bias_chunks; ++chunk) {
    const int pair = chunk * 32 + lane;
    const BiasPair b = p.bias[segment.kv_head * pairs + pair];
    const BiasFrequency f = p.bias_freq[pair];
    if (warp == 0) tables.half_step[pair] = f.radians_per_half_window;
    for (int column = warp; column < p.group; column += warps) {
      const uint16_t* row = q + column * C.head_dim + first_channel + pair;
      const float q1 = unpack_query(row[0], p.q_is_bf16).x;
      const float q2 = unpack_query(row[C.head_dim / 2], p.q_is_bf16).x;
      tables.products[column * pairs + pair] = make_float2((q1 * b.low + q2 * b.high) * p.softmax_scale_log2,
                                                           (q2 * b.low - q1 * b.high) * p.softmax_scale_log2);
    }
    for (int w = warp; w < num_windows; w += warps) {
      const float middle = static_cast<float>((first_window + w) * kWindowPages * kPageSize + 8 * kWindowPages);
      const float turns = f.turns * middle;
      const float error = fmaf(f.turns, middle, -turns) + f.turns_rest * middle;
      float sine, cosine;
      __sincosf(((turns - rintf(turns)) + error) * kTwoPi, &sine, &cosine);
      tables.turns[w * pairs + pair] = make_float2(cosine, sine);
    }
  }
}

// Second half: coefficients, four threads for one window and query. A barrier must follow.
template <DecodeConfig C>
__device__ __forceinline__ void finish_bias(const DecodeParams& p, const Segment& segment, const BiasTables& tables) {
  const int pairs = 32 * p.bias_chunks;
  const int num_windows = (segment.page_end - 1) / kWindowPages - segment.page_begin / kWindowPages + 1;
  const int num_tasks = num_windows * p.group;
  for (int i = threadIdx.x; i < ((num_tasks * 4 + 31) & ~31); i += blockDim.x) {
    const int task = min(i >> 2, num_tasks - 1), quarter = i & 3, w = task / p.group, column = task - w * p.group;
    const int turn = (quarter >> 1) * 4 + (w & 1) * 2;  // starts the quarters on different shared-memory banks
    float k[kBiasTerms] = {};
    for (int chunk = 0; chunk < p.bias_chunks; ++chunk) {
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        const int pair = chunk * 32 + quarter * 8 + ((step + turn) & 7);
        const float2 cd = tables.products[column * pairs + pair], angle = tables.turns[w * pairs + pair];
        const float half = tables.half_step[pair], square = -0.5F * half * half;
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
    if (quarter == 0 && (i >> 2) < num_tasks) {
#pragma unroll
      for (int term = 0; term < kBiasTerms; ++term)
        tables.coeffs[(term * kMaxWindows + w) * C.columns() + column] = k[term];
    }
  }
}

// The coefficients of one window for the columns of one lane.
template <DecodeConfig C>
struct WindowBias {
  float k[C.column_tiles][2][kBiasTerms];

  __device__ __forceinline__ void load(const float* coeffs, int window_in_segment, int group, LanePlace at) {
#pragma unroll
    for (int tile = 0; tile < C.column_tiles; ++tile) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = tile * kColumnsPerTile + 2 * at.quad + j;
#pragma unroll
        for (int term = 0; term < kBiasTerms; ++term)
          k[tile][j][term] =
              column < group ? coeffs[(term * kMaxWindows + window_in_segment) * C.columns() + column] : 0.0F;
      }
    }
  }
  // x: place of the key in the window, -1 to 1.
  __device__ __forceinline__ float at(int tile, int j, float x) const {
    const float(&c)[kBiasTerms] = k[tile][j];
    return fmaf(x, fmaf(x, fmaf(x, fmaf(x, c[4], c[3]), c[2]), c[1]), c[0]);
  }
};

}  // namespace asymkv::cuda
