#pragma once

#include <cmath>

#ifdef __CUDACC__
#define ASYMKV_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ASYMKV_HOST_DEVICE inline
#endif

namespace asymkv::cuda {

// x / scale, rounded to nearest even, without a division an element: a product with the rounded reciprocal and one
// correction by the exact remainder (Markstein, "Computation of elementary functions on the IBM RISC System/6000").
// Equal to the FP32 division for every 16-bit x and every scale in [kMinQuotientScale, kMaxQuotientScale] whose
// quotient is at least 2^-12 and finite (write_gpu_test tries all pairs of significands; a power of two changes no
// rounding there). Smaller quotients may differ in their last bits and keep their sign, zeros too: they encode to the
// same 8-bit code. The signs of the two fused steps are chosen for that.
inline constexpr float kMinQuotientScale = 0x1p-90F;
inline constexpr float kMaxQuotientScale = 0x1p90F;

ASYMKV_HOST_DEVICE float quotient(float x, float scale, float reciprocal) {
#ifdef __CUDA_ARCH__
  const float estimate = __fmul_rn(x, reciprocal);
  return __fmaf_rn(__fmaf_rn(estimate, scale, -x), -reciprocal, estimate);
#else
  const float estimate = x * reciprocal;
  return std::fma(std::fma(estimate, scale, -x), -reciprocal, estimate);
#endif
}

}  // namespace asymkv::cuda
