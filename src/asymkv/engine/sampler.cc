#include "asymkv/engine/sampler.h"

#include <cmath>

#include "asymkv/base/error.h"

namespace asymkv {

void check_sampling_options(const SamplingOptions& options) {
  const SamplingLaw& law = options.law;
  if (!(law.temperature >= 0.0) || !std::isfinite(law.temperature)) {
    throw_usage("temperature is {}; it must be a finite number of at least 0", law.temperature);
  }
  if (!(law.top_p > 0.0) || law.top_p > 1.0) throw_usage("top_p is {}; it must be in (0, 1]", law.top_p);
  if (law.top_k < 0) throw_usage("top_k is {}; it must be 0 (all tokens) or more", law.top_k);
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), state_(options.seed) {
  check_sampling_options(options);
}

double Sampler::next_uniform() {
  if (options_.law.temperature == 0.0) return 0.0;
  // splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
  state_ += 0x9e3779b97f4a7c15ULL;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1.0p-53;
}

}  // namespace asymkv
