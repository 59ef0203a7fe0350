#pragma once

#include <array>
#include <cstdint>

namespace asymkv {

// Magnitudes of the key biases of Qwen2.5-1.5B on its slowest RoPE pairs, largest over layers, slowest pair last; on
// the faster ones they stay below kFastBias. Qwen2.5 models of other sizes look alike.
inline constexpr std::array<double, 13> kMeasuredBias = {71, 73, 92, 121, 135, 152, 205, 250, 303, 331, 386, 422, 456};
inline constexpr double kFastBias = 25.0;

// That of pair `pair` of `num_pairs`, which get slower from the first to the last.
constexpr double measured_bias(int64_t pair, int64_t num_pairs) {
  const int64_t known = pair - num_pairs + static_cast<int64_t>(kMeasuredBias.size());
  return known < 0 ? kFastBias : kMeasuredBias[static_cast<size_t>(known)];
}

}  // namespace asymkv
