#pragma once

#include <span>
#include <vector>

#include "asymkv/kernels/cuda/decode_types.h"
#include "asymkv/kv/key_transform.h"

namespace asymkv::cuda {

// A layer's removed vector in the form that the decode kernel reads: slow pairs in groups of 32, the slowest last.
struct SlowBias {
  int32_t chunks = 0;
  std::vector<BiasPair> pairs;       // [kv head][32 * chunks]
  std::vector<BiasFrequency> freqs;  // [32 * chunks]
};

// frequencies: radians per position, [head_dim / 2], falling. Throws Error{kUnsupported} for a transform with fast
// pairs (this family has no cosine per key) and for frequencies that do not fall with the pair.
SlowBias make_slow_bias(const KeyTransform& transform, std::span<const double> frequencies);

}  // namespace asymkv::cuda
