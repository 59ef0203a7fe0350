#include "asymkv/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "asymkv/base/error.h"

namespace asymkv {

void check_sampling_options(const SamplingOptions& options) {
  if (!(options.temperature >= 0.0) || !std::isfinite(options.temperature)) {
    throw_usage("temperature is {}; it must be a finite number of at least 0", options.temperature);
  }
  if (!(options.top_p > 0.0) || options.top_p > 1.0) throw_usage("top_p is {}; it must be in (0, 1]", options.top_p);
  if (options.top_k < 0) throw_usage("top_k is {}; it must be 0 (all tokens) or more", options.top_k);
}

int32_t argmax(std::span<const float> logits) {
  ASYMKV_CHECK(!logits.empty(), "argmax of no logits");
  return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), state_(options.seed) {
  check_sampling_options(options);
}

double Sampler::next_uniform() {
  // splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
  state_ += 0x9e3779b97f4a7c15ULL;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1.0p-53;
}

int32_t Sampler::sample(std::span<const float> logits) {
  const auto bad = std::ranges::find_if(logits, [](float x) { return !std::isfinite(x); });
  if (bad != logits.end()) {
    throw_bad_input(
        "the logit of token id {} is {}: the model's weights are damaged, or it cannot run with this KV format",
        bad - logits.begin(), *bad);
  }
  if (options_.temperature == 0.0) return argmax(logits);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  const auto better = [&](int32_t a, int32_t b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; };
  if (options_.top_k > 0 && options_.top_k < static_cast<int64_t>(order.size())) {
    std::ranges::nth_element(order, order.begin() + options_.top_k, better);
    order.resize(static_cast<size_t>(options_.top_k));
  }
  std::ranges::sort(order, better);
  std::vector<double> weight(order.size());
  double total = 0.0;
  for (size_t i = 0; i < order.size(); ++i) {
    weight[i] = std::exp((static_cast<double>(logit(order[i])) - logit(order[0])) / options_.temperature);
    total += weight[i];
  }
  size_t kept = 0;
  double mass = 0.0;
  while (kept < order.size() && (kept == 0 || mass < options_.top_p * total)) mass += weight[kept++];
  double target = next_uniform() * mass;
  for (size_t i = 0; i < kept; ++i) {
    target -= weight[i];
    if (target < 0.0) return order[i];
  }
  return order[kept - 1];
}

}  // namespace asymkv
