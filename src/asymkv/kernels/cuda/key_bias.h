#pragma once

#include <array>
#include <span>
#include <vector>

#include "asymkv/kernels/cuda/decode_types.h"
#include "asymkv/kv/key_transform.h"

namespace asymkv::cuda {

// A layer's removed vector in the form that the decode kernel reads (window_bias.cuh says how). Any transform of
// kv/key_transform.h has one: pairs are slow or fast per KV head, and a pair that is slow in one head and fast in
// another appears in both lists with zeros where it does not belong.
struct KeyBias {
  BiasShape shape;
  std::vector<BiasPair> slow_pairs;       // [kv head][32 * slow_chunks], the slowest pair last
  std::vector<BiasFrequency> slow_freqs;  // [32 * slow_chunks]
  std::vector<FastBiasPair> fast_pairs;   // [kv head][8 * fast_steps]
  std::vector<BiasFrequency> fast_freqs;  // [8 * fast_steps]
  // A fragments: [page of a window][lane] of the powers, [fast step][page of the table][high, low][lane] of the
  // cosines.
  std::vector<std::array<uint32_t, 4>> table;
};

// frequencies: radians per position, [head_dim / 2]. Throws Error{kUnsupported} where slow pairs are not among the
// lowest frequencies of the layer (frequencies must fall from pair to pair).
KeyBias make_key_bias(const KeyTransform& transform, std::span<const double> frequencies);

}  // namespace asymkv::cuda
