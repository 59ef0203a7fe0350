#include "asymkv/kv/key_transform.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/kv/rope.h"

namespace asymkv {
namespace {

// Pair magnitudes of the key biases of Qwen2.5 (largest over layers, docs/concepts.md), slowest pair last; the fast
// pairs that are not listed stay below 30.
constexpr std::array<double, 8> kQwen05B{46, 18, 39, 86, 86, 127, 149, 238};
constexpr std::array<double, 13> kQwen15B{71, 73, 92, 121, 135, 152, 205, 250, 303, 331, 386, 422, 456};

struct BiasedHeads {
  int64_t num_kv_heads;
  int64_t head_dim;
  std::vector<double> frequencies;
  std::vector<float> vector;

  double magnitude(int64_t head, int64_t pair) const {
    const auto first = static_cast<size_t>(head * head_dim + pair);
    return std::hypot(vector[first], vector[first + static_cast<size_t>(head_dim / 2)]);
  }
};

BiasedHeads qwen_like(std::span<const double> slow_magnitudes, int64_t num_kv_heads, int64_t head_dim) {
  BiasedHeads heads{num_kv_heads, head_dim, rope_frequencies(1e6, head_dim),
                    std::vector<float>(static_cast<size_t>(num_kv_heads * head_dim))};
  std::mt19937 random(7);
  std::uniform_real_distribution<double> phase(0.0, 2.0 * std::numbers::pi);
  std::uniform_real_distribution<double> small(0.0, 14.0);
  const int64_t num_pairs = head_dim / 2;
  const int64_t first_slow = num_pairs - static_cast<int64_t>(slow_magnitudes.size());
  for (int64_t head = 0; head < num_kv_heads; ++head) {
    for (int64_t pair = 0; pair < num_pairs; ++pair) {
      const double size = pair < first_slow ? small(random) : slow_magnitudes[static_cast<size_t>(pair - first_slow)];
      const double angle = phase(random);
      const auto at = static_cast<size_t>(head * head_dim + pair);
      heads.vector[at] = static_cast<float>(size * std::cos(angle));
      heads.vector[at + static_cast<size_t>(num_pairs)] = static_cast<float>(size * std::sin(angle));
    }
  }
  return heads;
}

KeyTransform split(const BiasedHeads& heads, const KeySplitOptions& options = {}) {
  return split_key_vector(heads.vector, heads.frequencies, heads.num_kv_heads, options);
}

// The bound of the header, written again in plain form.
double pair_bound(double magnitude, double frequency, const KeySplitOptions& options, int64_t head_dim) {
  const auto order = static_cast<double>(options.degree + 1);
  return std::numbers::sqrt2 * magnitude * std::pow(frequency * static_cast<double>(options.window_keys) / 2, order) /
         std::tgamma(order + 1) / std::sqrt(static_cast<double>(head_dim));
}

TEST(KeyTransform, RemovedPartIsTheVectorOnTakenPairsAndZeroElsewhere) {
  const BiasedHeads heads = qwen_like(kQwen15B, 2, 128);
  const KeyTransform transform = split(heads);
  EXPECT_EQ(transform.num_kv_heads, 2);
  EXPECT_EQ(transform.head_dim, 128);
  ASSERT_EQ(transform.removed.size(), heads.vector.size());
  ASSERT_EQ(transform.pair_class.size(), 128U);
  for (int64_t head = 0; head < 2; ++head) {
    EXPECT_EQ(transform.removed_of(head), transform.removed.data() + head * 128);
    for (int64_t channel = 0; channel < 128; ++channel) {
      const auto at = static_cast<size_t>(head * 128 + channel);
      const bool kept = transform.pair_class[static_cast<size_t>(head * 64 + channel % 64)] == PairClass::kKept;
      EXPECT_EQ(transform.removed[at], kept ? 0.0F : heads.vector[at]);
    }
  }
}

TEST(KeyTransform, LargeQwenBiasesAreAllTakenOut) {
  for (const BiasedHeads& heads : {qwen_like(kQwen05B, 2, 64), qwen_like(kQwen15B, 2, 128)}) {
    const KeyTransform transform = split(heads);
    const int64_t num_pairs = heads.head_dim / 2;
    for (int64_t head = 0; head < heads.num_kv_heads; ++head) {
      EXPECT_EQ(transform.pair_class[static_cast<size_t>((head + 1) * num_pairs - 1)], PairClass::kSlow);
      for (int64_t pair = 0; pair < num_pairs; ++pair) {
        if (heads.magnitude(head, pair) < KeySplitOptions{}.large_magnitude) continue;
        EXPECT_NE(transform.pair_class[static_cast<size_t>(head * num_pairs + pair)], PairClass::kKept)
            << "pair " << pair << " of magnitude " << heads.magnitude(head, pair);
      }
    }
    EXPECT_LE(transform.slow_error_bound, KeySplitOptions{}.max_slow_error);
    EXPECT_GT(transform.slow_error_bound, 0.0);
  }
}

TEST(KeyTransform, SlowPairsAreTheLongestSlowRunWithinTheBound) {
  const BiasedHeads heads = qwen_like(kQwen15B, 2, 128);
  const KeySplitOptions options;
  const KeyTransform transform = split(heads);
  double largest = 0.0;
  for (int64_t head = 0; head < 2; ++head) {
    const PairClass* classes = transform.pair_class.data() + head * 64;
    const auto bound = [&](int64_t p) {
      return pair_bound(heads.magnitude(head, p), heads.frequencies[static_cast<size_t>(p)], options, 128);
    };
    double sum = 0.0;
    int64_t pair = 63;
    for (; pair >= 0 && classes[pair] == PairClass::kSlow; --pair) sum += bound(pair);
    EXPECT_LE(sum, options.max_slow_error);
    ASSERT_GE(pair, 0);
    EXPECT_GT(sum + bound(pair), options.max_slow_error) << "pair " << pair << " would have fitted";
    for (; pair >= 0; --pair) EXPECT_NE(classes[pair], PairClass::kSlow);
    largest = std::max(largest, sum);
  }
  EXPECT_NEAR(transform.slow_error_bound, largest, 1e-12);
}

// What the bound promises: the real error of the degree-4 Taylor polynomial over half a window stays under it for
// queries whose every pair has magnitude sqrt(2).
TEST(KeyTransform, BoundHoldsForTheTaylorPolynomial) {
  const BiasedHeads heads = qwen_like(kQwen15B, 1, 128);
  const KeyTransform transform = split(heads);
  std::mt19937 random(8);
  std::uniform_real_distribution<double> phase(0.0, 2.0 * std::numbers::pi);
  const int64_t reach = KeySplitOptions{}.window_keys / 2;
  double worst = 0.0;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> phases(64);
    for (double& p : phases) p = phase(random);
    for (const int64_t offset : {-reach, -reach / 2, int64_t{1}, reach}) {
      double error = 0.0;
      for (int64_t pair = 0; pair < 64; ++pair) {
        if (transform.pair_class[static_cast<size_t>(pair)] != PairClass::kSlow) continue;
        const double x = heads.frequencies[static_cast<size_t>(pair)] * static_cast<double>(offset);
        const double c = std::cos(phases[static_cast<size_t>(pair)]);
        const double d = std::sin(phases[static_cast<size_t>(pair)]);
        const double polynomial = c * (1 - x * x / 2 + x * x * x * x / 24) + d * (x - x * x * x / 6);
        error += std::numbers::sqrt2 * heads.magnitude(0, pair) * (c * std::cos(x) + d * std::sin(x) - polynomial);
      }
      worst = std::max(worst, std::fabs(error) / std::sqrt(128.0));
    }
  }
  EXPECT_LE(worst, transform.slow_error_bound);
  EXPECT_GT(worst, transform.slow_error_bound * 0.2) << "the bound is far from what happens: is it the right one?";
}

TEST(KeyTransform, AtMostEightFastPairsAndOnlyLargeOnes) {
  BiasedHeads heads{1, 64, rope_frequencies(1e4, 64), std::vector<float>(64)};
  for (size_t pair = 0; pair < 32; ++pair) heads.vector[pair] = 20.0F + static_cast<float>(pair);
  const KeyTransform transform = split(heads);
  const auto num_fast = std::count(transform.pair_class.begin(), transform.pair_class.end(), PairClass::kFast);
  EXPECT_EQ(num_fast, 8);
  double smallest_fast = 1e9;
  double largest_kept = 0.0;
  for (int64_t pair = 0; pair < 32; ++pair) {
    if (transform.pair_class[static_cast<size_t>(pair)] == PairClass::kFast) {
      smallest_fast = std::min(smallest_fast, heads.magnitude(0, pair));
    } else if (transform.pair_class[static_cast<size_t>(pair)] == PairClass::kKept) {
      largest_kept = std::max(largest_kept, heads.magnitude(0, pair));
    }
  }
  EXPECT_GT(smallest_fast, largest_kept);
  KeySplitOptions none_fast;
  none_fast.large_magnitude = 1e9;
  const KeyTransform quiet = split(heads, none_fast);
  EXPECT_EQ(std::count(quiet.pair_class.begin(), quiet.pair_class.end(), PairClass::kFast), 0);
}

TEST(KeyTransform, AZeroVectorIsTakenOutWithoutError) {
  const BiasedHeads heads{2, 16, rope_frequencies(1e4, 16), std::vector<float>(32)};
  const KeyTransform transform = split(heads);
  EXPECT_EQ(transform.slow_error_bound, 0.0);
  EXPECT_EQ(*std::ranges::max_element(transform.removed), 0.0F);
}

// q . R(t)(Wx + b) = q . R(t)(Wx + kept) + q . R(t) removed, to the rounding of FP32.
TEST(KeyTransform, TheScoreIsRestoredExactly) {
  const BiasedHeads heads = qwen_like(kQwen05B, 2, 64);
  const KeyTransform transform = split(heads);
  const RopeTable rope(heads.frequencies, 3000);
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (const int64_t position : {0, 1, 700, 2999}) {
    std::vector<float> whole(64);
    std::vector<float> stored(64);
    std::vector<float> removed(transform.removed.begin(), transform.removed.begin() + 64);
    for (size_t i = 0; i < 64; ++i) {
      const float content = normal(random);
      whole[i] = content + heads.vector[i];
      stored[i] = content + (heads.vector[i] - removed[i]);
    }
    rope.rotate(position, whole.data());
    rope.rotate(position, stored.data());
    rope.rotate(position, removed.data());
    double score = 0.0;
    double restored = 0.0;
    for (size_t i = 0; i < 64; ++i) {
      const auto q = static_cast<double>(normal(random));
      score += q * static_cast<double>(whole[i]);
      restored += q * (static_cast<double>(stored[i]) + static_cast<double>(removed[i]));
    }
    EXPECT_NEAR(score, restored, 1e-3);
  }
}

TEST(KeyTransform, HashCoversEveryLayerVectorAndClass) {
  const BiasedHeads heads = qwen_like(kQwen05B, 2, 64);
  const std::vector<KeyTransform> two{split(heads), split(heads)};
  const std::string hash = key_transforms_sha256(two);
  EXPECT_EQ(hash.size(), 64U);
  EXPECT_EQ(hash, key_transforms_sha256(std::vector{split(heads), split(heads)}));
  EXPECT_NE(hash, key_transforms_sha256(std::vector{split(heads)}));
  for (size_t layer = 0; layer < 2; ++layer) {
    std::vector<KeyTransform> changed = two;
    changed[layer].removed[127] += 1.0F;
    EXPECT_NE(hash, key_transforms_sha256(changed));
    changed = two;
    changed[layer].pair_class[0] = PairClass::kFast;
    EXPECT_NE(hash, key_transforms_sha256(changed));
  }
}

// Golden: the hash of a transform that needs no floating-point arithmetic. A change here makes saved identities void.
TEST(KeyTransform, GoldenHash) {
  BiasedHeads heads{1, 8, {1.0, 0.1, 0.01, 0.001}, {1, 20, 3, -4, 5, -60, 7, 8}};
  KeySplitOptions options;
  options.max_slow_error = 0.5;
  options.max_fast_pairs = 1;
  const std::vector<KeyTransform> transforms{split(heads, options)};
  EXPECT_EQ(transforms[0].pair_class,
            (std::vector{PairClass::kKept, PairClass::kFast, PairClass::kKept, PairClass::kSlow}));
  EXPECT_EQ(transforms[0].removed, (std::vector<float>{0, 20, 0, -4, 0, -60, 0, 8}));
  EXPECT_EQ(key_transforms_sha256(transforms), "7d01ac6256e91038140c6525f32cef050e7ea9860771bb94b57c62d472fa11d5");
}

TEST(KeyTransform, RefusesAWrongShapeAndNonFiniteVectors) {
  const std::vector<double> frequencies = rope_frequencies(1e4, 8);
  std::vector<float> vector(15);
  EXPECT_THROW(split_key_vector(vector, frequencies, 2), Error);
  vector.assign(16, 1.0F);
  vector[11] = std::numeric_limits<float>::quiet_NaN();
  try {
    split_key_vector(vector, frequencies, 2);
    ADD_FAILURE() << "accepted NaN";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("KV head 1"), testing::HasSubstr("channel 3")));
  }
}

TEST(RopeTable, MatchesTheDefinitionAndRefusesUnknownPositions) {
  const RopeTable rope(rope_frequencies(1e4, 8), 100);
  EXPECT_EQ(rope.num_pairs(), 4);
  EXPECT_EQ(rope.num_positions(), 100);
  std::array<float, 8> x{1, 2, 3, 4, 5, 6, 7, 8};
  rope.rotate(37, x.data());
  for (size_t pair = 0; pair < 4; ++pair) {
    const double angle = 37.0 * std::pow(1e4, -static_cast<double>(pair) / 4.0);
    const double a = static_cast<double>(pair + 1);
    const double b = static_cast<double>(pair + 5);
    EXPECT_NEAR(static_cast<double>(x[pair]), a * std::cos(angle) - b * std::sin(angle), 2e-6);
    EXPECT_NEAR(static_cast<double>(x[pair + 4]), b * std::cos(angle) + a * std::sin(angle), 2e-6);
  }
  EXPECT_THROW((void)rope.cos_row(100), Error);
  EXPECT_THROW((void)rope.sin_row(-1), Error);
}

}  // namespace
}  // namespace asymkv
