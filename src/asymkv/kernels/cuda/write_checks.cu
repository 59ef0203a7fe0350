#include "asymkv/kernels/cuda/write_checks.h"

#include <cuda_runtime.h>

#include "asymkv/kernels/cuda/quotient.h"

namespace asymkv::cuda {
namespace {

__global__ void count_kernel(int significand_bits, unsigned long long* wrong) {
  const uint32_t scale_bits = blockIdx.x * blockDim.x + threadIdx.x;
  const float scale = __uint_as_float(0x3f800000U | scale_bits), reciprocal = __frcp_rn(scale);
  uint32_t count = 0;
  for (uint32_t i = 0; i < 1U << significand_bits; ++i) {
    const float x = __uint_as_float(0x3f800000U | i << (23 - significand_bits));
    count += quotient(x, scale, reciprocal) != __fdiv_rn(x, scale) ? 1 : 0;
  }
  if (count > 0) atomicAdd(wrong, count);
}

}  // namespace

uint64_t count_wrong_quotients(int significand_bits) {
  unsigned long long* wrong = nullptr;
  unsigned long long count = ~0ULL;
  if (cudaMalloc(&wrong, sizeof(count)) != cudaSuccess) return count;
  const bool started = cudaMemset(wrong, 0, sizeof(count)) == cudaSuccess;
  count_kernel<<<(1 << 23) / 256, 256>>>(significand_bits, wrong);
  const bool done = cudaMemcpy(&count, wrong, sizeof(count), cudaMemcpyDeviceToHost) == cudaSuccess;
  (void)cudaFree(wrong);
  return started && done ? count : ~0ULL;
}

}  // namespace asymkv::cuda
