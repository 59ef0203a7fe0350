#pragma once

#include <cstdint>
#include <span>

namespace asymkv {

struct SamplingOptions {
  double temperature = 0.0;  // 0: greedy
  double top_p = 1.0;        // smallest set of tokens whose probability reaches it
  int64_t top_k = 0;         // 0: all
  uint64_t seed = 0;
};

// Throws Error{kUsage} naming the option for a negative or NaN temperature, top_p outside (0, 1], negative top_k.
void check_sampling_options(const SamplingOptions& options);

// Index of the largest logit; the lowest index of equals.
int32_t argmax(std::span<const float> logits);

// Draws tokens; equal seeds and logits give equal tokens on every machine.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  int32_t sample(std::span<const float> logits);
  // Whether sample() is argmax(), so that logits can stay where they are.
  bool is_greedy() const { return options_.temperature == 0.0; }

 private:
  double next_uniform();  // [0, 1)
  SamplingOptions options_;
  uint64_t state_;
};

}  // namespace asymkv
