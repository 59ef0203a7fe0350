#include "asymkv/kernels/cuda/slow_bias.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "asymkv/base/error.h"

namespace asymkv::cuda {

SlowBias make_slow_bias(const KeyTransform& transform, std::span<const double> frequencies) {
  const auto num_pairs = static_cast<int64_t>(frequencies.size());
  ASYMKV_CHECK(transform.head_dim == 2 * num_pairs, "{} frequencies for head dim {}", num_pairs, transform.head_dim);
  if (num_pairs % 32 != 0)
    throw_unsupported("pre-bias needs a head dim that is a multiple of 64, found {}", 2 * num_pairs);
  if (!std::ranges::is_sorted(frequencies, std::greater<>())) {
    throw_unsupported("pre-bias keys need RoPE frequencies that fall from pair to pair");
  }
  int64_t first_slow = num_pairs;
  for (int64_t head = 0; head < transform.num_kv_heads; ++head) {
    for (int64_t p = 0; p < num_pairs; ++p) {
      const PairClass of_pair = transform.pair_class[static_cast<size_t>(head * num_pairs + p)];
      if (of_pair == PairClass::kFast) {
        throw_unsupported(
            "KV head {} has the fast pair {} among the removed ones: split the key vector with "
            "max_fast_pairs = 0 for this family",
            head, p);
      }
      if (of_pair == PairClass::kSlow) first_slow = std::min(first_slow, p);
    }
  }
  SlowBias bias;
  bias.chunks = static_cast<int32_t>(std::max<int64_t>((num_pairs - first_slow + 31) / 32, 1));
  const int64_t first = num_pairs - 32 * bias.chunks;
  for (int64_t head = 0; head < transform.num_kv_heads; ++head) {
    const float* removed = transform.removed_of(head);
    for (int64_t p = first; p < num_pairs; ++p) bias.pairs.push_back({removed[p], removed[p + num_pairs]});
  }
  for (int64_t p = first; p < num_pairs; ++p) {
    const double radians = frequencies[static_cast<size_t>(p)];
    const double turns = radians / (2.0 * std::numbers::pi);
    const auto high = static_cast<float>(turns);
    const double half_window = kWindowPages * kPageSize / 2;
    bias.freqs.push_back(
        {high, static_cast<float>(turns - static_cast<double>(high)), static_cast<float>(radians * half_window), 0.0F});
  }
  return bias;
}

}  // namespace asymkv::cuda
