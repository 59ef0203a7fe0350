#include "asymkv/ops/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "asymkv/base/error.h"

namespace asymkv {

int32_t argmax(std::span<const float> logits) {
  ASYMKV_CHECK(!logits.empty(), "argmax of no logits");
  return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

int32_t draw_token(std::span<const float> logits, const SamplingLaw& law, double uniform) {
  if (law.temperature == 0.0) return argmax(logits);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  const auto better = [&](int32_t a, int32_t b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; };
  if (law.top_k > 0 && law.top_k < static_cast<int64_t>(order.size())) {
    std::ranges::nth_element(order, order.begin() + law.top_k, better);
    order.resize(static_cast<size_t>(law.top_k));
  }
  std::ranges::sort(order, better);
  std::vector<double> weight(order.size());
  double total = 0.0;
  for (size_t i = 0; i < order.size(); ++i) {
    weight[i] = std::exp((static_cast<double>(logit(order[i])) - logit(order[0])) / law.temperature);
    total += weight[i];
  }
  size_t kept = 0;
  double mass = 0.0;
  while (kept < order.size() && (kept == 0 || mass < law.top_p * total)) mass += weight[kept++];
  double target = uniform * mass;
  for (size_t i = 0; i < kept; ++i) {
    target -= weight[i];
    if (target < 0.0) return order[i];
  }
  return order[kept - 1];
}

}  // namespace asymkv
