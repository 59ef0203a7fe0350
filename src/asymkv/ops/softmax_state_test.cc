#include "asymkv/ops/softmax_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace asymkv {
namespace {

using State = SoftmaxState<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr size_t kDim = 3;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // Uniform in [-1, 1).
  double next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(state_ >> 11) * 0x1p-52 - 1.0;
  }

 private:
  uint64_t state_;
};

State empty_state() {
  State state;
  state.out.assign(kDim, 0.0);
  return state;
}

// Keys with logits up to 200, so that weights span many orders of magnitude.
State random_state(Random& random, int num_keys) {
  State state = empty_state();
  for (int i = 0; i < num_keys; ++i) {
    const double value[kDim] = {random.next(), random.next(), random.next()};
    state.add(200.0 * random.next(), value);
  }
  return state;
}

State merged(State a, const State& b) {
  a.merge(b);
  return a;
}

void expect_near(const State& a, const State& b) {
  EXPECT_EQ(a.max, b.max);
  EXPECT_NEAR(a.sum, b.sum, 1e-12 * std::fabs(b.sum));
  for (size_t i = 0; i < kDim; ++i) EXPECT_NEAR(a.out[i], b.out[i], 1e-12 * b.sum);
}

TEST(SoftmaxState, MatchesTheDefinition) {
  State state = empty_state();
  const double values[3][kDim] = {{1, 0, 2}, {0, 1, 2}, {-1, -1, 2}};
  const double logits[3] = {std::log(1.0), std::log(2.0), std::log(5.0)};
  for (int i = 0; i < 3; ++i) state.add(logits[i], values[i]);
  EXPECT_NEAR(state.out[0] / state.sum, (1.0 - 5.0) / 8.0, 1e-15);
  EXPECT_NEAR(state.out[1] / state.sum, (2.0 - 5.0) / 8.0, 1e-15);
  EXPECT_NEAR(state.out[2] / state.sum, 2.0, 1e-15);
  EXPECT_NEAR(state.max + std::log(state.sum), std::log(8.0), 1e-15);
}

TEST(SoftmaxState, MergeIsAssociativeAndCommutative) {
  Random random(1);
  for (int i = 0; i < 200; ++i) {
    const State a = random_state(random, i % 4);
    const State b = random_state(random, i % 5);
    const State c = random_state(random, i % 3);
    expect_near(merged(merged(a, b), c), merged(a, merged(b, c)));
    expect_near(merged(a, b), merged(b, a));
  }
}

TEST(SoftmaxState, EmptyIsTheIdentityExactly) {
  Random random(2);
  const State some = random_state(random, 3);
  for (const State& state : {merged(some, empty_state()), merged(empty_state(), some)}) {
    EXPECT_EQ(state.max, some.max);
    EXPECT_EQ(state.sum, some.sum);
    EXPECT_EQ(state.out, some.out);
  }
  const State nothing = merged(empty_state(), empty_state());
  EXPECT_TRUE(nothing.empty());
  EXPECT_EQ(nothing.max, -kInf);
  EXPECT_EQ(nothing.out, std::vector<double>(kDim, 0.0));
}

TEST(SoftmaxState, MergeOfPartsIsTheWhole) {
  for (int cut = 0; cut <= 20; ++cut) {
    Random random(7);
    State whole = empty_state();
    State left = empty_state();
    State right = empty_state();
    for (int i = 0; i < 20; ++i) {
      const double value[kDim] = {random.next(), random.next(), random.next()};
      const double logit = 50.0 * random.next();
      whole.add(logit, value);
      (i < cut ? left : right).add(logit, value);
    }
    expect_near(merged(left, right), whole);
  }
}

TEST(SoftmaxState, MinusInfinityHasNoWeightInAnyOrder) {
  const double value[kDim] = {1, 2, 3};
  const double spoiled[kDim] = {std::nan(""), kInf, 0};
  State first = empty_state();
  first.add(-kInf, spoiled);
  EXPECT_TRUE(first.empty());
  first.add(0.5, value);
  State last = empty_state();
  last.add(0.5, value);
  last.add(-kInf, spoiled);
  expect_near(first, last);
}

TEST(SoftmaxState, NanStaysNan) {
  const double value[kDim] = {1, 2, 3};
  for (const bool nan_first : {true, false}) {
    State state = empty_state();
    state.add(nan_first ? std::nan("") : 1.0, value);
    state.add(nan_first ? 1.0 : std::nan(""), value);
    EXPECT_TRUE(std::isnan(state.sum));
    Random random(4);
    EXPECT_TRUE(std::isnan(merged(random_state(random, 2), state).sum));
  }
}

}  // namespace
}  // namespace asymkv
