#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace asymkv {

// What happens to the constant vector (the key bias, or any other) on one RoPE pair of one KV head.
enum class PairClass : uint8_t {
  kKept,  // stays inside the stored key
  kSlow,  // taken out; inside a window of keys its score is a low-degree polynomial in the position
  kFast,  // taken out; needs a cosine and a sine per key at read
};

// The constant vector of one layer, split into the part taken out of the stored keys before RoPE and the part left in.
// Score of a key at position t: q . stored + q . R(t) removed, exactly.
struct KeyTransform {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  std::vector<float> removed;         // [num_kv_heads, head_dim], zero on kept pairs
  std::vector<PairClass> pair_class;  // [num_kv_heads, head_dim / 2]
  double slow_error_bound = 0.0;      // largest logit error over heads of a degree-4 window polynomial (see below)

  const float* removed_of(int64_t kv_head) const { return removed.data() + kv_head * head_dim; }
};

struct KeySplitOptions {
  int64_t window_keys = 512;      // keys per polynomial window
  int64_t degree = 4;             // polynomial degree
  double max_slow_error = 0.01;   // summed bound allowed per head, in logits of a unit-rms query
  double large_magnitude = 16.0;  // a fast pair with m |b_p| below it stays inside the key
  int64_t max_fast_pairs = 8;     // largest fast pairs taken out per head (one k-step of 16 channels)
  double rope_magnitude = 1.0;    // of the RoPE the keys go through: the read adds R(t) removed, which carries it
};

// Splits `vector` [num_kv_heads, head_dim]. Pairs are taken slowest first into kSlow while the summed Taylor remainder
//   sum_p sqrt(2) m |b_p| (w_p window/2)^(degree+1) / (degree+1)! / sqrt(head_dim)     m: rope_magnitude
// stays within max_slow_error; of the others the largest become kFast, the rest kKept. frequencies: [head_dim / 2].
// The remainder is of a query whose every pair has magnitude sqrt(2); one that puts all its weight on a single pair can
// exceed it by sqrt(head_dim / 2). Throws Error{kBadInput} naming head and channel if the vector is not finite.
KeyTransform split_key_vector(std::span<const float> vector, std::span<const double> frequencies, int64_t num_kv_heads,
                              const KeySplitOptions& options = {});

// SHA-256 over the removed vectors and classes of all layers: part of a cache's identity.
std::string key_transforms_sha256(std::span<const KeyTransform> transforms);

}  // namespace asymkv
