#include "asymkv/stats/significance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "asymkv/stats/intervals.h"
#include "asymkv/stats/test_support.h"

namespace asymkv::stats {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(McNemar, PublishedValues) {
  EXPECT_NEAR(mcnemar_exact(6, 16).p, 0.052479, 5e-7);
  EXPECT_EQ(mcnemar_exact(1, 7).p, 0.0703125);
  EXPECT_NEAR(mcnemar_exact(121, 59).p, 4.434449e-6, 5e-13);
  EXPECT_NEAR(mcnemar_exact(70, 59).p, 0.378688, 5e-7);
  EXPECT_EQ(mcnemar_exact(10, 10).p, 1.0);
  EXPECT_EQ(mcnemar_exact(0, 0).p, 1.0);
}

TEST(McNemar, LogarithmDoesNotUnderflow) {
  const PValue got = mcnemar_exact(1199, 0);
  EXPECT_EQ(got.p, 0.0);
  EXPECT_NEAR(got.log10_p, std::log10(2.32) - 361, 1e-3);          // 2.32e-361
  EXPECT_NEAR(got.log10_p, -1198 * std::log10(2.0), 1e-12 * 361);  // 2 / 2^1199
  EXPECT_NEAR(mcnemar_exact(kMaxCases, 0).log10_p, (1.0 - 1e9) * std::log10(2.0), 1.0);
}

TEST(McNemar, WordsNeverSayZero) {
  EXPECT_EQ(p_words(mcnemar_exact(1199, 0)), "2.32e-361");
  EXPECT_EQ(p_words(mcnemar_exact(121, 59)), "4.43e-06");
  EXPECT_EQ(p_words(mcnemar_exact(6, 16)), "0.0525");
  EXPECT_EQ(p_words({0.0, -360.0001}), "1.00e-360");
  EXPECT_EQ(p_words({0.0, -360.0}), "1.00e-360");
  EXPECT_EQ(p_words({0.0, -kInfinity}), "0");  // a zero that was given, as by `stats holm 0`
}

TEST(McNemar, SidesAreSymmetricAndLogAgrees) {
  for (int64_t n = 0; n <= 140; ++n) {
    for (int64_t lost = 0; lost <= n; ++lost) {
      const PValue got = mcnemar_exact(lost, n - lost);
      EXPECT_EQ(got.p, mcnemar_exact(n - lost, lost).p);
      EXPECT_NEAR(got.log10_p, std::log10(got.p), 1e-12 * (1 + std::abs(got.log10_p)));
      EXPECT_LE(got.p, 1.0);
    }
  }
}

// The exact sum and the logarithmic one meet at 60 trials: compare both sides of the seam with plain sums.
TEST(McNemar, AgreesWithPlainSummation) {
  for (int64_t n = 50; n <= 300; n += 5) {
    for (int64_t k = 0; 2 * k < n; k += 3) {
      double term = std::pow(2.0, static_cast<double>(1 - n)), sum = 0.0;
      for (int64_t i = 0; i <= k; ++i) {
        sum += term;
        term *= static_cast<double>(n - i) / static_cast<double>(i + 1);
      }
      EXPECT_NEAR(mcnemar_exact(k, n - k).p / std::min(1.0, sum), 1.0, 1e-12) << k << " of " << n;
    }
  }
}

TEST(McNemar, LargeNearlyEqualCountsMatchTheNormalLimit) {
  const double p = mcnemar_exact(500'000'000 - 20'000, 500'000'000 - 20'000 + 40'000).p;
  EXPECT_NEAR(p, std::erfc(40'000.0 / std::sqrt(999'999'999.0 + 1.0) / std::sqrt(2.0)), 2e-5);
}

TEST(McNemar, OddInputs) {
  expect_usage([] { mcnemar_exact(-1, 3); }, "lost must be between 0");
  expect_usage([] { mcnemar_exact(1, -3); }, "gained must be between 0");
  expect_usage([] { mcnemar_exact(kMaxCases, 1); }, "lost + gained must not exceed");
  expect_usage([] { mcnemar_exact(std::numeric_limits<int64_t>::max(), 1); }, "lost must be between 0");
}

TEST(SignTest, PublishedValues) {
  EXPECT_EQ(sign_test(10, 10).p, .001953125);
  EXPECT_EQ(sign_test(9, 10).p, .021484375);
  EXPECT_EQ(sign_test(12, 12).p, .00048828125);
  EXPECT_EQ(sign_test(11, 12).p, .00634765625);
  EXPECT_EQ(sign_test(1, 10).p, .021484375);
  EXPECT_EQ(sign_test(5, 10).p, 1.0);
  EXPECT_EQ(sign_test(1, 1).p, 1.0);
  EXPECT_NEAR(sign_test(9, 10).log10_p, std::log10(.021484375), 1e-15);
}

TEST(SignTest, OddInputs) {
  expect_usage([] { sign_test(0, 0); }, "n must be between 1");
  expect_usage([] { sign_test(11, 10); }, "positive must be between 0 and n = 10, but it is 11");
  expect_usage([] { sign_test(-1, 10); }, "but it is -1");
}

TEST(Holm, PublishedValues) {
  const std::vector<double> p = {.00533824886503, .832757484976, .188057372672,
                                 .00202676425435, .130948751633, .107611873063};
  const std::vector<double> want = {.0266912443252, .832757484976, .430447492253,
                                    .0121605855261, .430447492253, .430447492253};
  const std::vector<double> got = holm(p);
  ASSERT_EQ(got.size(), want.size());
  // The printed p values are rounded to 12 decimals before they are multiplied by at most 5.
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 3e-12) << i;
}

TEST(Holm, CutsAtOneKeepsOrderAndHandlesTies) {
  EXPECT_EQ(holm(std::vector<double>{0.5}), (std::vector<double>{0.5}));
  EXPECT_EQ(holm(std::vector<double>{0.9, 0.8}), (std::vector<double>{1.0, 1.0}));
  EXPECT_EQ(holm(std::vector<double>{0.25, 0.0, 0.25}), (std::vector<double>{0.5, 0.0, 0.5}));
}

TEST(Holm, LogarithmsAgreeAndReachBelowDoubles) {
  const std::vector<double> p = {0.01, 0.5, 1e-300, 0.04, 1.0};
  std::vector<double> log10_p;
  for (const double value : p) log10_p.push_back(std::log10(value));
  const std::vector<double> plain = holm(p), logs = holm_log10(log10_p);
  for (size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(logs[i], std::log10(plain[i]), 1e-12) << i;
  const std::vector<double> tiny = holm_log10(std::vector<double>{-360.6, -1000.0, -kInfinity});
  EXPECT_NEAR(tiny[0], -360.6, 1e-12);
  EXPECT_NEAR(tiny[1], -1000.0 + std::log10(2.0), 1e-12);
  EXPECT_EQ(tiny[2], -kInfinity);
}

TEST(Holm, OddInputs) {
  expect_usage([] { holm({}); }, "empty");
  expect_usage([] { holm_log10({}); }, "empty");
  for (const double bad : {-0.1, 1.1, kNan, kInfinity}) {
    expect_usage([&] { holm(std::vector<double>{0.1, bad}); }, "every p value must lie between 0 and 1");
  }
  for (const double bad : {0.1, kNan, kInfinity}) {
    expect_usage([&] { holm_log10(std::vector<double>{-0.1, bad}); }, "must be at most 0");
  }
}

}  // namespace
}  // namespace asymkv::stats
