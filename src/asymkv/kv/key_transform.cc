#include "asymkv/kv/key_transform.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "asymkv/base/error.h"
#include "asymkv/base/hash.h"

namespace asymkv {
namespace {

void check_finite(std::span<const float> vector, int64_t head_dim) {
  for (size_t i = 0; i < vector.size(); ++i) {
    if (std::isfinite(vector[i])) continue;
    const auto at = static_cast<int64_t>(i);
    throw_bad_input("the key vector of KV head {} is {} in channel {}: it must be finite to be removed", at / head_dim,
                    vector[i], at % head_dim);
  }
}

struct HeadSplitter {
  std::span<const float> vector;  // [head_dim] of one head
  std::span<const double> frequencies;
  const KeySplitOptions& options;

  int64_t num_pairs() const { return static_cast<int64_t>(frequencies.size()); }
  double magnitude(int64_t pair) const {
    const auto p = static_cast<size_t>(pair);
    return options.rope_magnitude * std::hypot(vector[p], vector[p + frequencies.size()]);
  }
  // Taylor remainder of the pair's score over half a window, for a query of unit rms (|q_pair| <= sqrt(2)).
  double slow_error(int64_t pair) const {
    const double reach = frequencies[static_cast<size_t>(pair)] * static_cast<double>(options.window_keys) / 2.0;
    double remainder = 1.0;
    for (int64_t k = 1; k <= options.degree + 1; ++k) remainder *= reach / static_cast<double>(k);
    return std::sqrt(2.0) * magnitude(pair) * remainder / std::sqrt(2.0 * static_cast<double>(num_pairs()));
  }

  double split(PairClass* classes) const {
    std::vector<int64_t> order(frequencies.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](int64_t p) { return frequencies[static_cast<size_t>(p)]; });
    double error = 0.0;
    size_t next = 0;
    while (next < order.size() && error + slow_error(order[next]) <= options.max_slow_error) {
      error += slow_error(order[next]);
      classes[order[next++]] = PairClass::kSlow;
    }
    std::vector<int64_t> rest(order.begin() + static_cast<ptrdiff_t>(next), order.end());
    std::ranges::stable_sort(rest, std::greater<>(), [&](int64_t p) { return magnitude(p); });
    int64_t num_fast = 0;
    for (const int64_t pair : rest) {
      const bool take = num_fast < options.max_fast_pairs && magnitude(pair) >= options.large_magnitude;
      classes[pair] = take ? PairClass::kFast : PairClass::kKept;
      num_fast += take ? 1 : 0;
    }
    return error;
  }
};

}  // namespace

KeyTransform split_key_vector(std::span<const float> vector, std::span<const double> frequencies, int64_t num_kv_heads,
                              const KeySplitOptions& options) {
  const auto num_pairs = static_cast<int64_t>(frequencies.size());
  KeyTransform transform;
  transform.num_kv_heads = num_kv_heads;
  transform.head_dim = 2 * num_pairs;
  ASYMKV_CHECK(static_cast<int64_t>(vector.size()) == num_kv_heads * transform.head_dim,
               "vector has {} elements for {} x {}", vector.size(), num_kv_heads, transform.head_dim);
  check_finite(vector, transform.head_dim);
  transform.removed.assign(vector.begin(), vector.end());
  transform.pair_class.resize(static_cast<size_t>(num_kv_heads * num_pairs));
  for (int64_t head = 0; head < num_kv_heads; ++head) {
    const auto of_head = vector.subspan(static_cast<size_t>(head * transform.head_dim), 2 * frequencies.size());
    PairClass* classes = transform.pair_class.data() + head * num_pairs;
    const double error = HeadSplitter{of_head, frequencies, options}.split(classes);
    transform.slow_error_bound = std::max(transform.slow_error_bound, error);
    float* removed = transform.removed.data() + head * transform.head_dim;
    for (int64_t p = 0; p < num_pairs; ++p) {
      if (classes[p] == PairClass::kKept) removed[p] = removed[p + num_pairs] = 0.0F;
    }
  }
  return transform;
}

std::string key_transforms_sha256(std::span<const KeyTransform> transforms) {
  Sha256 hash;
  hash.update(fmt::format("key-transform-1 {}\n", transforms.size()));
  for (const KeyTransform& t : transforms) {
    hash.update(fmt::format("{} {}\n", t.num_kv_heads, t.head_dim));
    hash.update(std::as_bytes(std::span(t.removed)));
    hash.update(std::as_bytes(std::span(t.pair_class)));
  }
  return hash.hex_digest();
}

}  // namespace asymkv
