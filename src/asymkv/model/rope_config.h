#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace asymkv {

// How the rotary frequencies of a model differ from theta^(-2p/d).
enum class RopeScalingKind {
  kNone,
  kLinear,    // every frequency divided by `factor`
  kLlama3,    // Llama 3.1's smooth rule between low_freq_factor and high_freq_factor
  kYarn,      // YaRN: fast pairs kept, slow ones divided by `factor`, a ramp between beta_fast and beta_slow
  kLongRope,  // the frequency of pair p divided by pair_factors[p], or by long_pair_factors[p] in a long context
  kFactors,   // the frequency of pair p divided by pair_factors[p] (GGUF's rope_freqs.weight)
};

// "none", "linear", "llama3", "yarn", "longrope", "factors".
std::string_view rope_scaling_name(RopeScalingKind kind);

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position = 0;  // tokens
  double beta_fast = 32.0;            // kYarn: turns within original_max_position from which a pair is kept
  double beta_slow = 1.0;             // kYarn: turns up to which it is divided
  bool truncate = true;               // kYarn: the ramp's ends are whole pairs
  // Cosines and sines are multiplied by it (YaRN, eq. 22; the paper's sqrt(1/t)): of every query and key, so that a
  // logit grows by its square.
  double attention_factor = 1.0;
  std::vector<float> pair_factors;       // kFactors and kLongRope: head_dim / 2 of them
  std::vector<float> long_pair_factors;  // kLongRope: head_dim / 2 of them
};

struct RopeConfig {
  double theta = 10000.0;
  RopeScaling scaling;
};

// Inverse frequency of each RoPE pair p (channels p and p + head_dim / 2), scaling applied: head_dim / 2 values in
// radians per token. The angle at position t is t times the value. num_positions: the longest sequence they are for;
// only longrope depends on it (the long factors above original_max_position). Formulas as transformers'
// modeling_rope_utils.py.
std::vector<double> rope_inverse_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t num_positions);

// YaRN's attention factor where a model does not give one: 0.1 ln(factor) + 1, or the ratio of two such terms.
// A multiplier of 0 is an absent one.
double yarn_attention_factor(double factor, double mscale, double mscale_all_dim);
// LongRoPE's: sqrt(1 + ln(factor) / ln(original_max_position)).
double longrope_attention_factor(double factor, int64_t original_max_position);

}  // namespace asymkv
