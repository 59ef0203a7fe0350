#include "asymkv/kernels/cuda/key_norm.h"

#include <cmath>

#include "asymkv/base/error.h"

namespace asymkv::cuda {

float norm_sum(std::span<const float> x) {
  ASYMKV_CHECK(x.size() % kNormSums == 0, "a key head of {} channels", x.size());
  float sums[kNormSums] = {};
  for (size_t c = 0; c < x.size(); ++c) sums[c % kNormSums] = std::fma(x[c], x[c], sums[c % kNormSums]);
  for (int step = 1; step < kNormSums; step *= 2) {
    for (int r = 0; r < kNormSums; r += 2 * step) sums[r] += sums[r + step];
  }
  return sums[0];
}

void norm_key(std::span<const float> weight, float eps, std::span<float> x) {
  ASYMKV_CHECK(weight.size() == x.size(), "{} norm weights for {} channels", weight.size(), x.size());
  const float factor = 1.0F / std::sqrt(norm_sum(x) / static_cast<float>(x.size()) + eps);
  for (size_t c = 0; c < x.size(); ++c) x[c] = x[c] * factor * weight[c];
}

}  // namespace asymkv::cuda
