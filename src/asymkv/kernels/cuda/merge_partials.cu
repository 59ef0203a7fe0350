#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "asymkv/kernels/cuda/prefill_kernels.h"
#include "asymkv/kernels/cuda/ptx.cuh"

// One warp joins the two partial results of one (query row, head).
namespace asymkv::cuda {
namespace {

constexpr int kWarps = 8;

template <bool kBf16>
__device__ __forceinline__ float2 load_2(const void* from, int64_t word) {
  const uint32_t bits = static_cast<const uint32_t*>(from)[word];
  if constexpr (kBf16) return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000U));
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}

// Shares of two states in their union; the empty state (LSE -inf) has none, whatever its output holds.
struct Shares {
  float first, second, lse;
};
__device__ __forceinline__ Shares shares_of(float first, float second) {
  const float top = fmaxf(first, second);
  if (top == -INFINITY) return {0.0F, 0.0F, -INFINITY};
  const float a = expf(first - top), b = expf(second - top), sum = a + b;
  return {a / sum, b / sum, top + logf(sum)};
}

__device__ __forceinline__ float weighted(float share, float x) {
  return share == 0.0F ? 0.0F : share * x;
}

template <bool kBf16, bool kPartBf16>
__global__ void __launch_bounds__(kWarps * 32) merge_kernel(const __grid_constant__ MergeParams p) {
  const int head = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32), query = static_cast<int>(blockIdx.x);
  const int piece_idx = static_cast<int>(blockIdx.z);
  const MergePiece piece = p.pieces[piece_idx];
  if (head >= p.num_q_heads || query >= piece.num_queries) return;
  const int64_t row = int64_t{piece.query_row + query} * p.num_q_heads + head;
  const float before = p.lse[row];
  const float now = p.part_stats[(int64_t{piece_idx} * p.num_q_heads + head) * p.stats_stride + query];
  const Shares shares = shares_of(before, now);
  for (int word = lane; word < p.head_dim / 2; word += 32) {
    const int64_t at = row * (p.head_dim / 2) + word;
    const float2 old = piece.first != 0 ? load_2<kBf16>(p.out, at) : *reinterpret_cast<const float2*>(p.total + 2 * at);
    const float2 part = load_2<kPartBf16>(p.part, at);
    const float2 sum = make_float2(weighted(shares.first, old.x) + weighted(shares.second, part.x),
                                   weighted(shares.first, old.y) + weighted(shares.second, part.y));
    if (piece.last != 0) {
      static_cast<uint32_t*>(p.out)[at] = ptx::pack_16bit<kBf16>(sum.x, sum.y);
    } else {
      *reinterpret_cast<float2*>(p.total + 2 * at) = sum;
    }
  }
  __syncwarp();  // every lane has read the old LSE
  if (lane == 0) p.lse[row] = shares.lse;
}

__global__ void to_f16_kernel(const uint32_t* from, uint32_t* to, int64_t words) {
  constexpr float kLargest = 65504.0F;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= words) return;
  const float2 x = load_2<true>(from, i);
  auto clipped = [](float a) { return a > kLargest ? kLargest : a < -kLargest ? -kLargest : a; };  // NaN stays
  to[i] = ptx::pack_16bit<false>(clipped(x.x), clipped(x.y));
}

__global__ void take_stats_kernel(const __grid_constant__ MergeParams p) {
  const int query = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), head = static_cast<int>(blockIdx.y);
  const MergePiece piece = p.pieces[blockIdx.z];
  if (query >= piece.num_queries) return;
  p.lse[int64_t{piece.query_row + query} * p.num_q_heads + head] =
      p.part_stats[(int64_t{blockIdx.z} * p.num_q_heads + head) * p.stats_stride + query];
}

}  // namespace

void launch_merge(const MergeParams& params, StreamHandle stream) {
  if (params.num_pieces == 0 || params.max_queries == 0) return;
  const dim3 grid(static_cast<unsigned>(params.max_queries),
                  static_cast<unsigned>((params.num_q_heads + kWarps - 1) / kWarps),
                  static_cast<unsigned>(params.num_pieces));
  const auto on = static_cast<cudaStream_t>(stream);
  if (params.bf16 && params.part_bf16) {
    merge_kernel<true, true><<<grid, kWarps * 32, 0, on>>>(params);
  } else if (params.bf16) {
    merge_kernel<true, false><<<grid, kWarps * 32, 0, on>>>(params);
  } else {
    merge_kernel<false, false><<<grid, kWarps * 32, 0, on>>>(params);
  }
}

void launch_to_f16(const void* bf16, void* f16, int64_t elems, StreamHandle stream) {
  constexpr int kThreads = 256;
  const int64_t words = elems / 2;
  if (words == 0) return;
  to_f16_kernel<<<static_cast<unsigned>((words + kThreads - 1) / kThreads), kThreads, 0,
                  static_cast<cudaStream_t>(stream)>>>(static_cast<const uint32_t*>(bf16), static_cast<uint32_t*>(f16),
                                                       words);
}

void launch_take_stats(const MergeParams& params, StreamHandle stream) {
  if (params.num_pieces == 0 || params.max_queries == 0) return;
  const dim3 grid(static_cast<unsigned>((params.max_queries + 255) / 256), static_cast<unsigned>(params.num_q_heads),
                  static_cast<unsigned>(params.num_pieces));
  take_stats_kernel<<<grid, 256, 0, static_cast<cudaStream_t>(stream)>>>(params);
}

}  // namespace asymkv::cuda
