#pragma once

#include <cstdint>

#include "asymkv/ops/sampling.h"

namespace asymkv {

struct SamplingOptions {
  SamplingLaw law;
  uint64_t seed = 0;
};

// Throws Error{kUsage} naming the option for a negative or NaN temperature, top_p outside (0, 1], negative top_k.
void check_sampling_options(const SamplingOptions& options);

// The numbers that choose a sequence's tokens: equal seeds give equal numbers on every machine.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  const SamplingLaw& law() const { return options_.law; }
  // Of [0, 1), for the next token. A law that takes the largest logit uses none up.
  double next_uniform();

 private:
  SamplingOptions options_;
  uint64_t state_;
};

}  // namespace asymkv
