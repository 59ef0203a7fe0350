#pragma once

#include <algorithm>
#include <cstdint>

// Grid-stride loops over elements or rows, for the kernels that only move and add.
namespace asymkv::cuda {

constexpr int kThreads = 256;

inline unsigned blocks_for(int64_t elems) {
  return static_cast<unsigned>(std::min<int64_t>((elems + kThreads - 1) / kThreads, 132 * 32));
}

__device__ __forceinline__ int64_t first_index() {
  return int64_t{blockIdx.x} * kThreads + threadIdx.x;
}
__device__ __forceinline__ int64_t index_step() {
  return int64_t{gridDim.x} * kThreads;
}

}  // namespace asymkv::cuda
