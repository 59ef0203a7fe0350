#pragma once

#include <cstdint>
#include <span>

namespace asymkv::cuda {

// RMS norm of one key head before bias and RoPE, the definition that the writer follows bit for bit:
//   y[c] = (x[c] * (1 / sqrt(S / head_dim + eps))) * weight[c]        every operation rounded to FP32
// S: squares of the channels c = r, r + 16, r + 32, ... are added in that order with fused multiply-add, for each r in
// 0..15; the sixteen sums are added pairwise, r with r + 1, then r + 2, r + 4, r + 8. (The order is that of a
// tensor-core fragment and of a SIMD register alike.) head_dim: a multiple of 16.
inline constexpr int kNormSums = 16;
float norm_sum(std::span<const float> x);
void norm_key(std::span<const float> weight, float eps, std::span<float> x);

}  // namespace asymkv::cuda
