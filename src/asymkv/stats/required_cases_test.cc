#include "asymkv/stats/required_cases.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "asymkv/base/error.h"

namespace asymkv::stats {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Of at most so many losses among n, by the plain sum.
double binomial_chance(int64_t losses, int64_t n, double rate) {
  double term = std::pow(1.0 - rate, static_cast<double>(n)), sum = term;
  for (int64_t k = 0; k < losses; ++k) {
    term *= static_cast<double>(n - k) / static_cast<double>(k + 1) * rate / (1.0 - rate);
    sum += term;
  }
  return sum;
}

TEST(RequiredCases, ZeroLossesForTwoPercent) {
  EXPECT_EQ(cases_for_limit(0.02, 0.05), 149);
  EXPECT_EQ(cases_for_limit(0.02, 0.05 / 8), 252);
  EXPECT_EQ(cases_for_limit(0.02, 0.05 / 24), 306);
}

TEST(RequiredCases, MostLossesAtTheMathPanel) {
  EXPECT_EQ(most_losses_for_limit(1319, 0.02, 0.05), 17);
  EXPECT_EQ(most_losses_for_limit(1319, 0.02, 0.05 / 4), 15);
  EXPECT_EQ(most_losses_for_limit(1319, 0.02, 0.05 / 8), 14);
  EXPECT_EQ(most_losses_for_limit(1319, 0.02, 0.05 / 24), 12);
  EXPECT_EQ(most_losses_for_limit(148, 0.02, 0.05), std::nullopt);
  EXPECT_EQ(most_losses_for_limit(149, 0.02, 0.05), 0);
}

// Against the plain sum of the binomial's terms; fewer losses allowed are not enough.
TEST(RequiredCases, PowerIsTheBinomials) {
  for (const double rate : {0.001, 0.004}) {
    for (const double alpha : {0.05, 0.05 / 24}) {
      for (const double power : {0.5, 0.8}) {
        const auto plan = cases_for_power(rate, 0.02, alpha, power);
        ASSERT_TRUE(plan.has_value());
        EXPECT_EQ(most_losses_for_limit(plan->cases, 0.02, alpha), plan->most_losses);
        EXPECT_NEAR(plan->power, binomial_chance(plan->most_losses, plan->cases, rate), 1e-9);
        EXPECT_GE(plan->power, power);
        for (int64_t n = 1; n < plan->cases; ++n) {
          const auto losses = most_losses_for_limit(n, 0.02, alpha);
          ASSERT_LT(losses ? binomial_chance(*losses, n, rate) : 0.0, power) << n << " cases would do";
        }
      }
    }
  }
}

// Where the search takes steps of several losses, fewer cases are not enough either.
TEST(RequiredCases, PowerIsFoundBetweenSteps) {
  const double rate = 0.015, limit = 0.02, alpha = 0.05 / 24, power = 0.8;
  const auto plan = cases_for_power(rate, limit, alpha, power);
  ASSERT_TRUE(plan.has_value());
  EXPECT_GT(plan->most_losses, 128);
  EXPECT_NEAR(plan->power, binomial_chance(plan->most_losses, plan->cases, rate), 1e-9);
  for (int64_t n = plan->cases - 300; n < plan->cases; ++n) {
    ASSERT_LT(binomial_chance(*most_losses_for_limit(n, limit, alpha), n, rate), power) << n << " cases would do";
  }
}

TEST(RequiredCases, PowerNeedsAnArmBetterThanTheLimit) {
  EXPECT_EQ(cases_for_power(0.0, 0.02, 0.05, 0.8)->cases, 149);
  EXPECT_FALSE(cases_for_power(0.02, 0.02, 0.05, 0.8));
  EXPECT_FALSE(cases_for_power(0.5, 0.02, 0.05, 0.8));
  EXPECT_FALSE(cases_for_power(0.0199999, 0.02, 0.05, 0.8));  // more than kMaxCases
  EXPECT_THROW(cases_for_power(0.01, 0.02, 0.05, 1.0), Error);
  EXPECT_THROW(cases_for_power(kNan, 0.02, 0.05, 0.8), Error);
  EXPECT_THROW(cases_for_power(-0.1, 0.02, 0.05, 0.8), Error);
}

TEST(RequiredCases, NoDiscordantPairForMinusOnePoint) {
  EXPECT_EQ(cases_for_margin(-0.01, 0.05), 268);
  EXPECT_EQ(cases_for_margin(-0.01, 0.05 / 4), 498);
  EXPECT_EQ(cases_for_margin(-0.01, 0.05 / 8), 618);
  EXPECT_EQ(cases_for_margin(-0.01, 0.05 / 24), 813);
}

// The answer is the smallest: one case less misses.
TEST(RequiredCases, AreTheSmallest) {
  for (const double alpha : {0.3, 0.05, 0.05 / 24, 1e-6}) {
    for (const double limit : {0.5, 0.05, 0.02, 0.001}) {
      const int64_t n = cases_for_limit(limit, alpha);
      EXPECT_LE(clopper_pearson_upper(0, n, alpha), limit);
      if (n > 1) {
        EXPECT_GT(clopper_pearson_upper(0, n - 1, alpha), limit);
      }
      const int64_t m = cases_for_margin(-limit, alpha);
      EXPECT_GE(tango_lower({m, 0, 0}, alpha), -limit);
      if (m > 1) {
        EXPECT_LT(tango_lower({m - 1, 0, 0}, alpha), -limit);
      }
      const int64_t most = most_losses_for_limit(5 * n, limit, alpha).value();
      EXPECT_LE(clopper_pearson_upper(most, 5 * n, alpha), limit);
      EXPECT_GT(clopper_pearson_upper(most + 1, 5 * n, alpha), limit);
    }
  }
}

TEST(RequiredCases, ProjectionKeepsTheObservedShare) {
  // 1 lost of 100 does not clear 2 %; at the projected n the same share does, ten cases less it does not.
  const int64_t n = projected_cases_for_limit({100, 1, 0}, 0.02, 0.05).value();
  EXPECT_GT(n, 500);
  const int64_t rounded = (n + 99) / 100;
  EXPECT_LE(clopper_pearson_upper(rounded, rounded * 100, 0.05), 0.02);
  EXPECT_GT(clopper_pearson_upper(rounded - 1, (rounded - 1) * 100, 0.05), 0.02);
  EXPECT_EQ(projected_cases_for_limit({100, 0, 0}, 0.02, 0.05), 149);
  EXPECT_EQ(projected_cases_for_limit({100, 2, 0}, 0.02, 0.05), std::nullopt);
  EXPECT_EQ(projected_cases_for_margin({100, 0, 0}, -0.01, 0.05), 268);
  EXPECT_EQ(projected_cases_for_margin({100, 2, 1}, -0.01, 0.05), std::nullopt);
  const int64_t m = projected_cases_for_margin({1000, 15, 10}, -0.01, 0.05).value();
  const int64_t blocks = (m + 199) / 200;
  EXPECT_GE(tango_lower({200 * blocks, 3 * blocks, 2 * blocks}, 0.05), -0.01);
  EXPECT_LT(tango_lower({200 * (blocks - 1), 3 * (blocks - 1), 2 * (blocks - 1)}, 0.05), -0.01);
}

TEST(RequiredCases, OddInputs) {
  for (const double bad : {0.0, 1.0, -0.02, kNan}) {
    EXPECT_THROW(cases_for_limit(bad, 0.05), Error);
    EXPECT_THROW(most_losses_for_limit(100, bad, 0.05), Error);
    EXPECT_THROW(projected_cases_for_limit({100, 0, 0}, bad, 0.05), Error);
  }
  for (const double bad : {0.0, -1.0, 0.01, kNan}) {
    EXPECT_THROW(cases_for_margin(bad, 0.05), Error);
    EXPECT_THROW(projected_cases_for_margin({100, 0, 0}, bad, 0.05), Error);
  }
  for (const double bad : {0.0, 0.5, -1.0, kNan}) {
    EXPECT_THROW(cases_for_limit(0.02, bad), Error);
    EXPECT_THROW(cases_for_margin(-0.01, bad), Error);
    EXPECT_THROW(most_losses_for_limit(100, 0.02, bad), Error);
  }
  EXPECT_THROW(most_losses_for_limit(0, 0.02, 0.05), Error);
  EXPECT_THROW(cases_for_limit(1e-12, 0.05), Error);
  EXPECT_THROW(cases_for_margin(-1e-12, 0.05), Error);
}

}  // namespace
}  // namespace asymkv::stats
