#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "asymkv/kernels/cuda/elementwise.cuh"
#include "asymkv/kernels/cuda/row_kernels.h"
#include "asymkv/kv/tiled_layout.h"

namespace asymkv::cuda {
namespace {

constexpr int kWarps = kThreads / 32;

template <bool kBf16>
__device__ __forceinline__ uint16_t to_16bit(float x) {
  if constexpr (kBf16) return __bfloat16_as_ushort(__float2bfloat16_rn(x));
  return __half_as_ushort(__float2half_rn(x));
}
template <bool kBf16>
__device__ __forceinline__ float from_16bit(uint16_t bits) {
  if constexpr (kBf16) return __uint_as_float(static_cast<uint32_t>(bits) << 16);
  return __half2float(__ushort_as_half(bits));
}

template <bool kBf16>
__global__ void __launch_bounds__(kThreads) narrow_kernel(NarrowParams p) {
  auto* to = static_cast<uint16_t*>(p.to);
  const int64_t elems = p.num_rows * p.row_elems;
  for (int64_t i = first_index(); i < elems; i += index_step()) {
    const int64_t row = i / p.row_elems;
    const int64_t from_row = p.rows == nullptr ? row : p.rows[row];
    to[i] = to_16bit<kBf16>(p.from[from_row * p.row_elems + i % p.row_elems]);
  }
}

// All rows in their order, two elements a thread.
template <bool kBf16>
__global__ void __launch_bounds__(kThreads) narrow_pairs_kernel(const float2* from, uint32_t* to, int64_t pairs) {
  for (int64_t i = first_index(); i < pairs; i += index_step()) {
    const float2 x = from[i];
    to[i] = to_16bit<kBf16>(x.x) | static_cast<uint32_t>(to_16bit<kBf16>(x.y)) << 16;
  }
}

template <bool kScatters>
__global__ void __launch_bounds__(kThreads) move_rows_kernel(MoveRowsParams p) {
  const int64_t parts = p.row_elems / 8;
  const auto* from = static_cast<const uint4*>(p.from);
  auto* to = static_cast<uint4*>(p.to);
  for (int64_t i = first_index(); i < p.num_rows * parts; i += index_step()) {
    const int64_t other = p.rows[i / parts] * parts + i % parts;
    to[kScatters ? other : i] = from[kScatters ? i : other];
  }
}

template <bool kBf16>
__global__ void __launch_bounds__(kThreads) widen_16bit_kernel(const uint16_t* from, float* to, int64_t elems) {
  for (int64_t i = first_index(); i < elems; i += index_step()) to[i] = from_16bit<kBf16>(from[i]);
}

template <bool kFirst, bool kSecond>
__global__ void __launch_bounds__(kThreads) round_twice_kernel(const float* from, float* to, int64_t elems) {
  for (int64_t i = first_index(); i < elems; i += index_step()) {
    to[i] = from_16bit<kSecond>(to_16bit<kSecond>(from_16bit<kFirst>(to_16bit<kFirst>(from[i]))));
  }
}

template <bool kBf16, bool kRowsAre16Bit>
__device__ __forceinline__ uint16_t fresh_elem(const float* rows, int64_t i) {
  if constexpr (kRowsAre16Bit) return reinterpret_cast<const uint16_t*>(rows)[i];
  return to_16bit<kBf16>(rows[i]);
}

// One block a (token, piece): its heads' channels go to their places in the fragments.
template <bool kBf16, bool kRowsAre16Bit>
__global__ void __launch_bounds__(kThreads) pack_kernel(PackParams p) {
  const FreshPiece piece = p.pieces[blockIdx.y];
  const int token = static_cast<int>(blockIdx.x);
  if (token >= piece.num_tokens) return;
  const int64_t side_bytes = int64_t{kPageSize} * p.head_dim * 2;
  const int64_t page = piece.first_page + token / kPageSize;
  const int slot = token % kPageSize;
  for (int i = static_cast<int>(threadIdx.x); i < p.num_kv_heads * p.head_dim; i += kThreads) {
    const int head = i / p.head_dim, channel = i % p.head_dim;
    std::byte* block = p.blocks + (page * p.num_kv_heads + head) * (side_bytes + side_bytes);
    const int64_t from = int64_t{token} * p.num_kv_heads * p.head_dim + i;
    *reinterpret_cast<uint16_t*>(block + tiled_k16_offset(slot, channel)) =
        fresh_elem<kBf16, kRowsAre16Bit>(piece.k, from);
    *reinterpret_cast<uint16_t*>(block + side_bytes + tiled_v16_offset(slot, channel)) =
        fresh_elem<kBf16, kRowsAre16Bit>(piece.v, from);
  }
}

// One warp a (row, head).
template <bool kBf16>
__global__ void __launch_bounds__(kThreads) join_kernel(JoinParams p) {
  const int64_t state = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (state >= p.num_rows * p.num_q_heads) return;
  const int64_t head = state % p.num_q_heads;
  const int64_t at = int64_t{p.rows[state / p.num_q_heads]} * p.num_q_heads + head;
  const float before = p.first ? -INFINITY : p.lse[at];
  const float now = p.part == nullptr ? p.part_lse[head] : p.part_lse[state];
  if (now == -INFINITY && !p.first) return;
  const bool empty = now == -INFINITY;
  const float top = empty ? 0.0F : fmaxf(before, now);
  const float a = expf(before - top), b = expf(now - top);
  const auto* part = static_cast<const uint16_t*>(p.part) + state * p.head_dim;
  for (int c = static_cast<int>(threadIdx.x % 32); c < p.head_dim; c += 32) {
    float& out = p.out[at * p.head_dim + c];
    const float x = p.part == nullptr || empty ? 0.0F : from_16bit<kBf16>(part[c]);
    out = before == -INFINITY ? x : (a * out + b * x) / (a + b);
  }
  __syncwarp();  // every lane has read the old LSE
  if (threadIdx.x % 32 == 0) p.lse[at] = top + logf(a + b);
}

__global__ void __launch_bounds__(kThreads) clear_kernel(JoinParams p) {
  const int64_t state = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (state >= p.num_rows * p.num_q_heads) return;
  const int64_t at = int64_t{p.rows[state / p.num_q_heads]} * p.num_q_heads + state % p.num_q_heads;
  for (int c = static_cast<int>(threadIdx.x % 32); c < p.head_dim; c += 32) p.out[at * p.head_dim + c] = 0.0F;
  if (threadIdx.x % 32 == 0) p.lse[at] = -INFINITY;
}

unsigned state_blocks(const JoinParams& p) {
  return static_cast<unsigned>((p.num_rows * p.num_q_heads + kWarps - 1) / kWarps);
}

}  // namespace

void launch_narrow(const NarrowParams& p, StreamHandle stream) {
  const unsigned blocks = blocks_for(p.num_rows * p.row_elems);
  if (blocks == 0) return;
  const int64_t elems = p.num_rows * p.row_elems;
  if (p.rows == nullptr && elems % 2 == 0 && reinterpret_cast<uintptr_t>(p.from) % sizeof(float2) == 0) {
    const auto kernel = p.bf16 ? narrow_pairs_kernel<true> : narrow_pairs_kernel<false>;
    kernel<<<blocks_for(elems / 2), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        reinterpret_cast<const float2*>(p.from), static_cast<uint32_t*>(p.to), elems / 2);
    return;
  }
  const auto kernel = p.bf16 ? narrow_kernel<true> : narrow_kernel<false>;
  kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
}

void launch_move_rows(const MoveRowsParams& p, StreamHandle stream) {
  const int64_t parts = p.num_rows * p.row_elems / 8;
  if (parts == 0) return;
  const auto kernel = p.scatters ? move_rows_kernel<true> : move_rows_kernel<false>;
  kernel<<<blocks_for(parts), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
}

void launch_widen_16bit(const void* from, float* to, int64_t elems, bool bf16, StreamHandle stream) {
  if (elems == 0) return;
  const auto kernel = bf16 ? widen_16bit_kernel<true> : widen_16bit_kernel<false>;
  kernel<<<blocks_for(elems), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const uint16_t*>(from), to,
                                                                                elems);
}

void launch_round_twice(const float* from, float* to, int64_t elems, bool first_bf16, bool second_bf16,
                        StreamHandle stream) {
  if (elems == 0) return;
  const auto kernel = first_bf16 ? (second_bf16 ? round_twice_kernel<true, true> : round_twice_kernel<true, false>)
                                 : (second_bf16 ? round_twice_kernel<false, true> : round_twice_kernel<false, false>);
  kernel<<<blocks_for(elems), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(from, to, elems);
}

void launch_pack(const PackParams& p, StreamHandle stream) {
  if (p.num_pieces == 0 || p.max_tokens == 0) return;
  const dim3 grid(static_cast<unsigned>(p.max_tokens), static_cast<unsigned>(p.num_pieces));
  const auto kernel = p.rows_are_16bit ? pack_kernel<true, true>
                      : p.bf16         ? pack_kernel<true, false>
                                       : pack_kernel<false, false>;
  kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
}

void launch_join(const JoinParams& p, StreamHandle stream) {
  if (p.num_rows == 0) return;
  const auto kernel = p.part_bf16 ? join_kernel<true> : join_kernel<false>;
  kernel<<<state_blocks(p), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
}

void launch_clear(const JoinParams& p, StreamHandle stream) {
  if (p.num_rows == 0) return;
  clear_kernel<<<state_blocks(p), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
}

}  // namespace asymkv::cuda
