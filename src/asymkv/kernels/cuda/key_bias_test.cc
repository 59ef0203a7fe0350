#include "asymkv/kernels/cuda/key_bias.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "asymkv/base/error.h"
#include "asymkv/kv/rope.h"

namespace asymkv::cuda {
namespace {

constexpr KeySplitOptions kEveryPair{.large_magnitude = 0.0, .max_fast_pairs = 1000};

std::vector<float> draw_vector(int64_t num_kv_heads, int64_t head_dim, double magnitude) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> angle(0.0, 2.0 * std::numbers::pi);
  std::vector<float> vector(static_cast<size_t>(num_kv_heads * head_dim));
  const auto pairs = static_cast<size_t>(head_dim / 2);
  for (size_t head = 0; head < vector.size(); head += 2 * pairs) {
    for (size_t p = head; p < head + pairs; ++p) {
      const double phi = angle(random);
      vector[p] = static_cast<float>(magnitude * std::cos(phi));
      vector[p + pairs] = static_cast<float>(magnitude * std::sin(phi));
    }
  }
  return vector;
}

struct Complex {
  float cosine, sine;
};

// The kernel's arithmetic (window_bias.cuh) on the host, in FP32 and FP16, for one query of one KV head.
class Emulation {
 public:
  Emulation(const KeyBias& bias, std::span<const float> q, int64_t head)
      : bias_(bias), q_(q), head_(static_cast<size_t>(head)), scale_(1.0F / std::sqrt(static_cast<float>(q.size()))) {}

  float score(int32_t position) const { return slow(position) + fast(position); }

 private:
  // Turns from two FP32 frequencies, the fraction taken before the cosine.
  static Complex unit_angle(const BiasFrequency& f, float position) {
    const float whole = f.turns * position;
    const float error = std::fma(f.turns, position, -whole) + f.turns_rest * position;
    const float angle = ((whole - std::rint(whole)) + error) * 6.28318530717958648F;
    return {std::cos(angle), std::sin(angle)};
  }
  Complex product(float low, float high, int64_t pair) const {
    const auto p = static_cast<size_t>(std::max<int64_t>(pair, 0));
    const float q1 = q_[p];
    const float q2 = q_[p + q_.size() / 2];
    return {(q1 * low + q2 * high) * scale_, (q2 * low - q1 * high) * scale_};
  }
  static float rounded(float x) { return f16_to_f32(f32_to_f16(x)); }
  static float half(uint32_t word, int i) { return f16_to_f32(static_cast<uint16_t>(word >> (16 * i))); }

  float slow(int32_t position) const {
    const auto pairs = static_cast<size_t>(32 * bias_.shape.slow_chunks);
    const int32_t keys = kWindowPages * kPageSize;
    const auto middle = static_cast<float>(position / keys * keys + keys / 2);
    float k[kBiasTerms] = {};
    for (size_t p = 0; p < pairs; ++p) {
      const BiasPair b = bias_.slow_pairs[head_ * pairs + p];
      const int64_t pair = static_cast<int64_t>(q_.size() / 2 - pairs + p);
      const Complex cd = product(b.low, b.high, pair);
      const Complex at = unit_angle(bias_.slow_freqs[p], middle);
      const float step = bias_.slow_freqs[p].radians_per_half_window;
      const float square = -0.5F * step * step;
      const float even = cd.cosine * at.cosine + cd.sine * at.sine;
      const float odd = (cd.sine * at.cosine - cd.cosine * at.sine) * step;
      k[0] += even;
      k[1] += odd;
      k[2] += square * even;
      k[3] += square * (1.0F / 3.0F) * odd;
      k[4] += square * square * (1.0F / 6.0F) * even;
    }
    float sum = 0.0F;
    const int32_t page = position / kPageSize % kWindowPages;
    for (int32_t column = 0; column < 3 * kBiasTerms; ++column) {
      const float c = k[column % kBiasTerms] / static_cast<float>(kBiasUnit);
      const bool low = column >= kBiasTerms && column < 2 * kBiasTerms;
      sum += element(static_cast<size_t>(page) * 32, position % kPageSize, column) *
             (low ? rounded(c - rounded(c)) : rounded(c));
    }
    return sum;
  }

  float fast(int32_t position) const {
    const BiasShape& shape = bias_.shape;
    const auto fast = static_cast<size_t>(kBiasStepPairs * shape.fast_steps);
    const int32_t page = position / kPageSize;
    const int32_t first_page = page & ~(shape.table_pages() - 1);
    float sum = 0.0F;
    for (size_t i = 0; i < fast; ++i) {
      const FastBiasPair b = bias_.fast_pairs[head_ * fast + i];
      const Complex at = unit_angle(bias_.fast_freqs[i], static_cast<float>(first_page * kPageSize));
      const Complex cd = product(b.low, b.high, b.pair);
      const float unit = 1.0F / static_cast<float>(kBiasUnit);
      const float c = (cd.cosine * at.cosine + cd.sine * at.sine) * unit;
      const float d = (cd.sine * at.cosine - cd.cosine * at.sine) * unit;
      const Complex high = table(i, page - first_page, position % kPageSize, 0);
      const Complex low = table(i, page - first_page, position % kPageSize, 1);
      for (const auto& [x, a, rest] : {std::tuple{c, high.cosine, low.cosine}, std::tuple{d, high.sine, low.sine}})
        sum += a * rounded(x) + (a * rounded(x - rounded(x)) + rest * rounded(x));
    }
    return sum;
  }

  // Row `slot`, column `k` of the 16 x 16 matrix whose fragments start at `first`.
  float element(size_t first, int32_t slot, int32_t k) const {
    const auto lane = static_cast<size_t>(slot % 8 * 4 + k % 8 / 2);
    const auto word = static_cast<size_t>(slot / 8 + 2 * (k / 8));
    return half(bias_.table[first + lane][word], k % 2);
  }

  // Cosine and sine of fast pair i: columns 2 (i % 4) + 8 (i / 4 % 2) and the next of its k-step.
  Complex table(size_t i, int32_t page, int32_t slot, int32_t part) const {
    const auto pages = static_cast<size_t>(bias_.shape.table_pages());
    const size_t step = i / kBiasStepPairs;
    const size_t fragment = ((step * pages + static_cast<size_t>(page)) * 2 + static_cast<size_t>(part)) * 32;
    const auto k = static_cast<int32_t>(i % 4 * 2 + i % kBiasStepPairs / 4 * 8);
    const size_t first = kWindowTableBytes / 16 + fragment;
    return {element(first, slot, k), element(first, slot, k + 1)};
  }

  const KeyBias& bias_;
  std::span<const float> q_;
  size_t head_;
  float scale_;
};

double exact_score(std::span<const float> q, const float* b, std::span<const double> frequencies, int32_t position) {
  double total = 0.0;
  const size_t half = frequencies.size();
  for (size_t p = 0; p < half; ++p) {
    const double c = std::cos(frequencies[p] * position);
    const double s = std::sin(frequencies[p] * position);
    total += static_cast<double>(q[p]) * (static_cast<double>(b[p]) * c - static_cast<double>(b[p + half]) * s) +
             static_cast<double>(q[p + half]) * (static_cast<double>(b[p + half]) * c + static_cast<double>(b[p]) * s);
  }
  return total / std::sqrt(2.0 * static_cast<double>(half));
}

std::vector<float> unit_query(int64_t head_dim, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> q(static_cast<size_t>(head_dim));
  float square = 0.0F;
  for (float& x : q) {
    x = normal(random);
    square += x * x;
  }
  for (float& x : q) x *= std::sqrt(static_cast<float>(head_dim) / square);
  return q;
}

// Queries of unit rms, |b| = 450 on every pair, positions to 32,768, two RoPE bases: at most 0.05 logits.
TEST(KeyBias, LogitErrorStaysBelowATwentieth) {
  std::mt19937 random(17);
  for (const double theta : {1e6, 1e4}) {
    for (const int64_t head_dim : {64, 80, 128}) {
      const std::vector<double> frequencies = rope_frequencies(theta, head_dim);
      const std::vector<float> vector = draw_vector(2, head_dim, 450.0);
      const KeyTransform transform = split_key_vector(vector, frequencies, 2, kEveryPair);
      EXPECT_EQ(transform.removed, vector);
      const KeyBias bias = make_key_bias(transform, frequencies);
      double worst = 0.0;
      for (int round = 0; round < 4; ++round) {
        const std::vector<float> q = unit_query(head_dim, random);
        const int64_t head = round % 2;
        const Emulation emulation(bias, q, head);
        for (int32_t position = 0; position < 32768; position += 1 + static_cast<int32_t>(random() % 29)) {
          const double exact = exact_score(q, transform.removed_of(head), frequencies, position);
          worst = std::max(worst, std::fabs(static_cast<double>(emulation.score(position)) - exact));
        }
      }
      EXPECT_LE(worst, 0.05) << "theta " << theta << " head dim " << head_dim;
      EXPECT_GT(worst, 1e-5);
    }
  }
}

// Heads that split differently: each pair of each head is in exactly one list with its removed components.
TEST(KeyBias, HoldsEveryRemovedPairOnce) {
  const int64_t head_dim = 128;
  const std::vector<double> frequencies = rope_frequencies(1e6, head_dim);
  std::vector<float> vector = draw_vector(2, head_dim, 300.0);
  for (size_t i = 0; i < 128; ++i) vector[i] *= 0.01F;  // head 0 keeps its fast pairs and has more slow ones
  const KeyTransform transform = split_key_vector(vector, frequencies, 2);
  const KeyBias bias = make_key_bias(transform, frequencies);
  EXPECT_EQ(bias.shape.fast_steps, 1);
  const auto slow = static_cast<size_t>(32 * bias.shape.slow_chunks);
  for (size_t head = 0; head < 2; ++head) {
    std::vector<float> found(128, 0.0F);
    for (size_t i = 0; i < slow; ++i) {
      const size_t p = 64 - slow + i;
      found[p] += bias.slow_pairs[head * slow + i].low;
      found[p + 64] += bias.slow_pairs[head * slow + i].high;
    }
    for (size_t i = 0; i < 8; ++i) {
      const FastBiasPair& b = bias.fast_pairs[head * 8 + i];
      found[static_cast<size_t>(b.pair)] += b.low;
      found[static_cast<size_t>(b.pair) + 64] += b.high;
    }
    const float* removed = transform.removed_of(static_cast<int64_t>(head));
    EXPECT_TRUE(std::equal(found.begin(), found.end(), removed)) << "head " << head;
  }
}

TEST(KeyBias, SlowPairsAloneNeedNoTable) {
  const std::vector<double> frequencies = rope_frequencies(1e6, 128);
  const std::vector<float> vector(2 * 128, 100.0F);
  const KeyTransform transform =
      split_key_vector(vector, frequencies, 2, {.max_slow_error = 1e-4, .max_fast_pairs = 0});
  const KeyBias bias = make_key_bias(transform, frequencies);
  EXPECT_EQ(bias.shape.slow_chunks, 1);
  EXPECT_EQ(bias.shape.fast_steps, 0);
  EXPECT_EQ(bias.shape.fast_table_bytes(), 0);
  ASSERT_EQ(bias.slow_pairs.size(), 64U);
  EXPECT_EQ(bias.slow_pairs.back().low, 100.0F);
  const BiasFrequency slowest = bias.slow_freqs.back();
  const double turns = static_cast<double>(slowest.turns) + static_cast<double>(slowest.turns_rest);
  EXPECT_NEAR(turns * 6.283185307179586 / frequencies.back(), 1.0, 1e-12);
}

TEST(KeyBias, TheTableShrinksAsStepsGrow) {
  for (const auto& [head_dim, steps] : {std::pair<int64_t, int32_t>{128, 8}, {256, 16}}) {
    const std::vector<double> frequencies = rope_frequencies(1e6, head_dim);
    const std::vector<float> vector = draw_vector(1, head_dim, 450.0);
    const KeySplitOptions all_fast{.max_slow_error = 0.0, .large_magnitude = 0.0, .max_fast_pairs = 1000};
    const KeyBias bias = make_key_bias(split_key_vector(vector, frequencies, 1, all_fast), frequencies);
    EXPECT_EQ(bias.shape.fast_steps, steps);
    EXPECT_LE(bias.shape.fast_table_bytes(), kMaxFastTableBytes);
    EXPECT_EQ(static_cast<int32_t>(bias.table.size() * 16), bias.shape.table_bytes());
  }
}

TEST(KeyBias, RefusesFrequenciesThatRise) {
  std::vector<double> frequencies = rope_frequencies(1e6, 64);
  std::ranges::reverse(frequencies);
  const KeyTransform transform = split_key_vector(std::vector<float>(64, 1.0F), frequencies, 1);
  EXPECT_THROW(make_key_bias(transform, frequencies), Error);
}

}  // namespace
}  // namespace asymkv::cuda
