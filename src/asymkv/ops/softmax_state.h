#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace asymkv {

// Partial result of a softmax-weighted sum over a set of keys: max logit, sum of exp(logit - max) and the sum of
// values weighted by it. merge is associative and commutative up to rounding, and the empty state (max = -inf, sum = 0)
// is its identity (Milakov and Gimelshein, "Online normalizer calculation for softmax").
template <typename Real>
struct SoftmaxState {
  Real max = -std::numeric_limits<Real>::infinity();
  Real sum = 0;
  std::vector<Real> out;  // [v_head_dim]; all zero in the empty state

  bool empty() const { return sum == 0; }

  // A logit of -inf has no weight: it leaves the state as it is, whatever its value is.
  void add(Real logit, const Real* value) {
    if (logit == -std::numeric_limits<Real>::infinity()) return;
    const Real new_max = std::max(max, logit);
    const Real old_weight = empty() ? Real(0) : std::exp(max - new_max);
    const Real weight = std::exp(logit - new_max);
    sum = sum * old_weight + weight;
    for (size_t i = 0; i < out.size(); ++i) out[i] = out[i] * old_weight + weight * value[i];
    max = new_max;
  }

  void merge(const SoftmaxState& other) {
    if (other.empty()) return;
    const Real new_max = std::max(max, other.max);
    const Real mine = empty() ? Real(0) : std::exp(max - new_max);
    const Real theirs = std::exp(other.max - new_max);
    sum = sum * mine + other.sum * theirs;
    for (size_t i = 0; i < out.size(); ++i) out[i] = out[i] * mine + other.out[i] * theirs;
    max = new_max;
  }
};

}  // namespace asymkv
