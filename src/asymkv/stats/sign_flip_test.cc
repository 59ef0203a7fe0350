#include "asymkv/stats/sign_flip.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "asymkv/stats/test_support.h"

namespace asymkv::stats {
namespace {

std::vector<double> random_differences(size_t count, double shift, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(shift, 1.0);
  std::vector<double> differences(count);
  for (double& difference : differences) difference = normal(random);
  return differences;
}

// Darwin's plants, crossed less self-fertilised (eighths of an inch): Fisher, The Design of Experiments (1935), section
// 21, counts 1,726 of 2^15 patterns at or beyond the observed 314, two-sided.
TEST(SignFlip, FisherOnDarwinsPlants) {
  const std::vector<double> darwin = {49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48};
  const SignFlip got = sign_flip_test(darwin);
  EXPECT_TRUE(got.exact);
  EXPECT_EQ(got.value.p, 1726.0 / 32768.0);
  EXPECT_NEAR(got.value.log10_p, std::log10(1726.0 / 32768.0), 1e-15);
  EXPECT_DOUBLE_EQ(got.mean, 314.0 / 15.0);
}

TEST(SignFlip, ByHand) {
  EXPECT_EQ(sign_flip_test(std::vector<double>{1.0}).value.p, 1.0);
  EXPECT_EQ(sign_flip_test(std::vector<double>{1.0, 2.0, 3.0}).value.p, 0.25);
  EXPECT_EQ(sign_flip_test(std::vector<double>{0.1, 0.2, -0.3}).value.p, 1.0);  // sums to 0 but for rounding
  EXPECT_EQ(sign_flip_test(std::vector<double>{0.0, 0.0}).value.p, 1.0);
  const SignFlip with_zero = sign_flip_test(std::vector<double>{1.0, 0.0, 2.0, 3.0});
  EXPECT_EQ(with_zero.value.p, 0.25);
  EXPECT_EQ(with_zero.n, 4);
  EXPECT_EQ(with_zero.mean, 1.5);
  EXPECT_EQ(sign_flip_test(std::vector<double>(16, 0.5)).value.p, std::ldexp(1.0, -15));
}

TEST(SignFlip, MonteCarloNeverReachesZeroAndNamesItself) {
  const SignFlip got = sign_flip_test(std::vector<double>(200, 0.25), {.flips = 999});
  EXPECT_FALSE(got.exact);
  EXPECT_EQ(got.value.p, 1e-3);
  EXPECT_DOUBLE_EQ(got.value.log10_p, -3.0);
}

// 17 differences are drawn, but can still be counted here.
TEST(SignFlip, MonteCarloAgreesWithCounting) {
  std::vector<double> differences = random_differences(17, 0.5, 3);
  double observed = 0.0;
  for (const double difference : differences) observed += difference;
  int64_t hits = 0;
  for (uint32_t pattern = 0; pattern < (1U << 17); ++pattern) {
    double sum = 0.0;
    for (size_t i = 0; i < differences.size(); ++i) sum += (pattern >> i & 1) != 0 ? differences[i] : -differences[i];
    hits += std::abs(sum) >= std::abs(observed) - 1e-9 ? 1 : 0;
  }
  const double want = static_cast<double>(hits) / (1U << 17);
  const SignFlip got = sign_flip_test(differences);
  EXPECT_NEAR(got.value.p, want, 5.0 * std::sqrt(want / 1e6));
  EXPECT_NE(got.value.p, sign_flip_test(differences, {.seed = 2}).value.p);
}

TEST(SignFlip, OrderSignAndThreadsChangeNothing) {
  for (const size_t count : {size_t{12}, size_t{75}}) {
    std::vector<double> differences = random_differences(count, 0.2, 9);
    differences.push_back(-differences.front());  // a tie in size
    ASSERT_EQ(::setenv("ASYMKV_NUM_THREADS", "1", 1), 0);
    const double want = sign_flip_test(differences, {.flips = 20'000}).value.p;
    ASSERT_EQ(::setenv("ASYMKV_NUM_THREADS", "5", 1), 0);
    EXPECT_EQ(sign_flip_test(differences, {.flips = 20'000}).value.p, want);
    ASSERT_EQ(::unsetenv("ASYMKV_NUM_THREADS"), 0);
    std::mt19937 random(1);
    std::shuffle(differences.begin(), differences.end(), random);
    for (double& difference : differences) difference = -difference;
    EXPECT_EQ(sign_flip_test(differences, {.flips = 20'000}).value.p, want);
  }
}

// Under its null hypothesis p <= alpha comes up with probability at most alpha.
TEST(SignFlip, KeepsItsLevel) {
  int at_05 = 0, at_20 = 0;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    const double p = sign_flip_test(random_differences(seed % 2 == 0 ? 10 : 24, 0.0, seed), {.flips = 499}).value.p;
    at_05 += p <= 0.05 ? 1 : 0;
    at_20 += p <= 0.20 ? 1 : 0;
  }
  EXPECT_NEAR(at_05, 100, 4 * 10);
  EXPECT_NEAR(at_20, 400, 4 * 18);
}

TEST(SignFlip, OddInputs) {
  expect_usage([] { sign_flip_test({}); }, "list of differences is empty");
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -1e200}) {
    expect_usage([&] { sign_flip_test(std::vector<double>{1.0, bad}); }, "every difference must be finite");
  }
  expect_usage([] { sign_flip_test(std::vector<double>{1.0}, {.flips = 0}); }, "flips must be between 1");
}

}  // namespace
}  // namespace asymkv::stats
