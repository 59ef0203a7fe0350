#pragma once

#include <cstdint>

namespace asymkv::stats {

// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). One generator per resample, started at a hash of seed and resample
// index, makes the draws independent of how resamples are spread over threads.
class SplitMix64 {
 public:
  SplitMix64(uint64_t seed, uint64_t stream) : state_(mix(mix(seed + kGamma) ^ (stream + 1) * kGamma)) {}

  uint64_t next() {
    state_ += kGamma;
    return mix(state_);
  }
  // Uniform on [0, count): high half of a 128-bit product. The bias is below count / 2^64.
  uint64_t below(uint64_t count) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * count) >> 64);
  }

 private:
  static constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;
  static constexpr uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

}  // namespace asymkv::stats
