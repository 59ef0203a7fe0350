#include "asymkv/kernels/cuda/model/int4_product.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "asymkv/kernels/cuda/elementwise.cuh"
#include "asymkv/kernels/cuda/ptx.cuh"
#include "asymkv/kernels/cuda/work_stream.h"

namespace asymkv::cuda {
namespace {

constexpr int kWarps = 8;  // of a block, which share the inputs of its 32 rows
constexpr int kColumns = 8;

cudaStream_t stream() {
  return static_cast<cudaStream_t>(current_stream());
}

__device__ __forceinline__ float scale_of(const Int4Scale& shared) {
  return __half2float(__ushort_as_half(shared.scale));
}

// Pair `pair` of a word as two BF16, code + offset each: 128 + code has the code in its last bits, and less 128 -
// offset is exact.
__device__ __forceinline__ uint32_t code_pair(uint32_t word, int pair, __nv_bfloat162 less) {
  const uint32_t biased = (word >> (4 * pair) & 0x000F000FU) | 0x43004300U;
  const __nv_bfloat162 exact = __hsub2(reinterpret_cast<const __nv_bfloat162&>(biased), less);
  return reinterpret_cast<const uint32_t&>(exact);
}

__device__ __forceinline__ __nv_bfloat162 offset_of(const Int4Scale& shared) {
  return __float2bfloat162_rn(static_cast<float>(128 - shared.offset));
}

// A lane's sums: of two tiles of 16 rows with kTiles tiles of 8 columns (rows of x).
template <int kTiles>
using Sums = float[2][kTiles][4];

// Half a tile of inputs: two steps. x: of each column tile and step, the lane's four activations.
template <int kTiles>
__device__ __forceinline__ void add_half(const uint4 (&codes)[2], const uint32_t (&x)[kTiles][4][2], int half,
                                         const Int4Scale (&shared)[2][2], Sums<kTiles>& sums) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const __nv_bfloat162 first = offset_of(shared[m][0]), second = offset_of(shared[m][1]);
    Sums<kTiles> part = {};
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const uint32_t word = half == 0 ? (s == 0 ? codes[m].x : codes[m].y) : (s == 0 ? codes[m].z : codes[m].w);
      const uint32_t a0 = code_pair(word, 0, first), a1 = code_pair(word, 1, second);
      const uint32_t a2 = code_pair(word, 2, first), a3 = code_pair(word, 3, second);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        ptx::mma_16x8x16<true>(part[m][n], a0, a1, a2, a3, x[n][2 * half + s]);
      }
    }
    const float scale_0 = scale_of(shared[m][0]), scale_1 = scale_of(shared[m][1]);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      sums[m][n][0] += scale_0 * part[m][n][0];
      sums[m][n][1] += scale_0 * part[m][n][1];
      sums[m][n][2] += scale_1 * part[m][n][2];
      sums[m][n][3] += scale_1 * part[m][n][3];
    }
  }
}

// One block for 32 rows of the matrix. Its warps take every eighth tile of 64 inputs each; their sums are added in
// order.
template <int kTiles, typename T>
__global__ void __launch_bounds__(32 * kWarps) int4_product_kernel(Int4ProductParams p) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int in_tiles = static_cast<int>(p.matrix.in / Int4Weights::kInTile);
  const int64_t first_row = int64_t{blockIdx.x} * Int4Weights::kRowTile;
  const auto* codes = reinterpret_cast<const uint4*>(p.matrix.codes) + first_row / 16 * in_tiles * 32 + lane;
  const auto* x = static_cast<const __nv_bfloat16*>(p.x) + lane % 4 * 8;
  const int group_bits = __ffs(static_cast<int>(p.matrix.group)) - 1;
  Sums<kTiles> sums = {};
  for (int tile = warp; tile < in_tiles; tile += kWarps) {
    uint4 own[2];
    Int4Scale shared[2][2][2];  // [half][m][row]
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      own[m] = __ldcs(codes + (int64_t{m} * in_tiles + tile) * 32);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t group = (tile * 64 + 32 * half) >> group_bits;
        const Int4Scale* of_rows = p.matrix.scales + group * p.matrix.padded_rows + first_row + 16 * m + lane / 4;
        shared[half][m][0] = of_rows[0];
        shared[half][m][1] = of_rows[8];
      }
    }
    uint32_t steps[kTiles][4][2];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int64_t column = n * kColumns + lane / 4;
      const auto* from = reinterpret_cast<const uint4*>(x + column * p.matrix.in + int64_t{tile} * 64);
      const uint4 low = column < p.num_rows ? from[0] : uint4{}, high = column < p.num_rows ? from[4] : uint4{};
      const uint32_t held[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) steps[n][i / 2][i % 2] = held[i];
    }
    add_half<kTiles>(own, steps, 0, shared[0], sums);
    add_half<kTiles>(own, steps, 1, shared[1], sums);
  }
  constexpr int kSums = 2 * kTiles * 4 * 32;
  __shared__ float of_warps[kWarps][kSums];
#pragma unroll
  for (int i = 0; i < 2 * kTiles * 4; ++i) of_warps[warp][i * 32 + lane] = sums[i / 4 / kTiles][i / 4 % kTiles][i % 4];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kSums; i += 32 * kWarps) {
    float sum = 0.0F;
    for (int w = 0; w < kWarps; ++w) sum += of_warps[w][i];
    const int of_lane = i % 32, c = i / 32 % 4, n = i / 128 % kTiles, m = i / 128 / kTiles;
    const int64_t row = first_row + 16 * m + of_lane / 4 + c / 2 * 8, column = n * kColumns + of_lane % 4 * 2 + c % 2;
    if (row >= p.matrix.rows || column >= p.num_rows) continue;
    T* y = static_cast<T*>(p.y) + column * p.matrix.rows + row;
    if (p.accumulate) sum += static_cast<float>(*y);
    *y = static_cast<T>(sum);
  }
}

// A lane's words a thread: eight inputs of each half tile, of two rows.
__global__ void __launch_bounds__(kThreads) int4_widen_kernel(Int4Matrix matrix, __nv_bfloat16* to, int64_t num_lanes) {
  const int64_t in_tiles = matrix.in / Int4Weights::kInTile;
  for (int64_t i = first_index(); i < num_lanes; i += index_step()) {
    const auto lane = static_cast<int>(i % 32);
    const int64_t tile = i / 32 % in_tiles, first_row = i / 32 / in_tiles * 16 + lane / 4;
    const uint4 held = reinterpret_cast<const uint4*>(matrix.codes)[i];
    const uint32_t words[4] = {held.x, held.y, held.z, held.w};
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int half = part / 2, r = part % 2;
      const int64_t row = first_row + 8 * r, first_in = tile * 64 + half * 32 + lane % 4 * 8;
      if (row >= matrix.rows) continue;
      const Int4Scale shared = matrix.scales[first_in / matrix.group * matrix.padded_rows + row];
      const float scale = scale_of(shared);
      __align__(16) __nv_bfloat16 values[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int nibble = e % 4 / 2 * 2 + r + e % 2 * 4;
        const auto code = static_cast<int>(words[2 * half + e / 4] >> (4 * nibble) & 0xFU);
        values[e] = __float2bfloat16_rn(scale * static_cast<float>(code + shared.offset));
      }
      *reinterpret_cast<uint4*>(to + row * matrix.in + first_in) = *reinterpret_cast<const uint4*>(values);
    }
  }
}

template <int kTiles>
void launch_product_of(const Int4ProductParams& p) {
  const auto kernel = p.y_is_bf16 ? int4_product_kernel<kTiles, __nv_bfloat16> : int4_product_kernel<kTiles, float>;
  const auto blocks = static_cast<unsigned>(p.matrix.padded_rows / Int4Weights::kRowTile);
  kernel<<<blocks, 32 * kWarps, 0, stream()>>>(p);
}

}  // namespace

void launch_int4_product(const Int4ProductParams& p) {
  if (p.num_rows == 0) return;
  if (p.num_rows <= kColumns) return launch_product_of<1>(p);
  if (p.num_rows <= 2 * kColumns) return launch_product_of<2>(p);
  launch_product_of<4>(p);
}

void launch_int4_widen(const Int4Matrix& matrix, void* to) {
  const int64_t num_lanes = matrix.padded_rows / 16 * (matrix.in / Int4Weights::kInTile) * 32;
  int4_widen_kernel<<<blocks_for(num_lanes), kThreads, 0, stream()>>>(matrix, static_cast<__nv_bfloat16*>(to),
                                                                      num_lanes);
}

}  // namespace asymkv::cuda
