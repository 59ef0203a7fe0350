#include "asymkv/stats/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "asymkv/stats/verdict.h"

// Reduced counts of what tools/simulate_statistics.cc measures at length. Rates that are simulated are held to four
// standard errors.
namespace asymkv::stats {
namespace {

constexpr double kAlphas[] = {0.05, 0.05 / 24};

double four_errors(double rate, const Repeats& repeats) {
  return 4.0 * std::sqrt(rate * (1.0 - rate) / static_cast<double>(repeats.count));
}

std::vector<Look> four_looks(int64_t n, double alpha, Spending spending) {
  const std::vector<double> levels = spend_alpha(alpha, std::vector<double>{0.25, 0.5, 0.75, 1.0}, spending);
  std::vector<Look> looks;
  for (size_t i = 0; i < levels.size(); ++i) looks.push_back({n * static_cast<int64_t>(i + 1) / 4, levels[i]});
  return looks;
}

TEST(Coverage, ClopperPearsonNeverExceedsItsLevel) {
  for (const double alpha : kAlphas) {
    double largest = 0.0;
    for (const int64_t n : {20, 200, 1319}) {
      for (const double rate : {0.0, 0.0005, 0.005, 0.02, 0.05, 0.3, 0.5, 1.0}) {
        const Misses misses = clopper_pearson_misses(n, rate, alpha);
        EXPECT_LE(misses.lower, alpha) << n << " " << rate;
        EXPECT_LE(misses.upper, alpha) << n << " " << rate;
        largest = std::max({largest, misses.lower, misses.upper});
      }
    }
    EXPECT_GT(largest, 0.8 * alpha);  // exact, and not idle
  }
}

// Tango's interval is approximate: close to its level where discordant pairs are many, liberal where they are few and
// on one side.
TEST(Coverage, TangoIsNearItsLevel) {
  for (const double alpha : kAlphas) {
    const Misses many = tango_misses(1319, {0.02, 0.015}, alpha);
    EXPECT_NEAR(many.lower, alpha, 0.25 * alpha);
    EXPECT_NEAR(many.upper, alpha, 0.25 * alpha);
    // At the margin, what the gate risks: a pass of an arm that is 1 pp down.
    EXPECT_LE(tango_misses(1319, {0.02, 0.01}, alpha).lower, 1.25 * alpha);
    EXPECT_LE(tango_misses(1319, {0.01, 0.0}, alpha).lower, 1.25 * alpha);
  }
}

TEST(Coverage, BootstrapIsNearItsLevelWithManyDocumentsAndLiberalWithFew) {
  const Repeats repeats = {.count = 1000, .resamples = 1000, .seed = 3};
  const Misses many = bootstrap_misses({.documents = 128}, 0.05, repeats);
  EXPECT_NEAR(many.upper, 0.05, four_errors(0.05, repeats) + 0.005);
  EXPECT_NEAR(many.lower, 0.05, four_errors(0.05, repeats) + 0.005);
  const Misses few = bootstrap_misses({.documents = 16}, 0.05, repeats);
  EXPECT_NEAR(few.upper, 0.065, four_errors(0.065, repeats));
  const Misses skewed = bootstrap_misses({.documents = 16, .noise = LossNoise::kSkewed}, 0.05, repeats);
  EXPECT_GT(skewed.upper, 0.06);
  EXPECT_LT(skewed.upper, 0.16);
}

TEST(WholeVerdict, KeepsItsErrorAtTheBoundary) {
  const Repeats repeats = {.count = 300, .resamples = 1000, .seed = 5};
  Admission boundary;
  boundary.loss = {.documents = 32, .ratio_minus_1 = kLossLimit, .spread = 0.02};
  boundary.math_loss = kPreservationLimit;
  boundary.retrieval_loss = kRetrievalLimit;
  const AdmissionRates rates = admission_rates(boundary, repeats);
  EXPECT_LE(rates.any_bound_passes, 0.05 + four_errors(0.05, repeats));
  EXPECT_EQ(rates.any_arm_passes, 0.0);
  EXPECT_LE(rates.any_arm_degraded, 0.05 + four_errors(0.05, repeats));
}

TEST(WholeVerdict, OneFaultIsEnough) {
  const Repeats repeats = {.count = 400, .resamples = 500, .seed = 6};
  Admission one;
  one.alpha = 0.05 / 8;
  one.arms = 2;
  one.loss = {.documents = 32, .spread = 0.002};
  one.math_loss = kPreservationLimit;  // at its limit; everything else is perfect
  const AdmissionRates rates = admission_rates(one, repeats);
  EXPECT_LE(rates.any_arm_passes, 0.0125 + four_errors(0.0125, repeats));
}

TEST(WholeVerdict, NoEffectPassesAndAStrongOneIsDegraded) {
  const Repeats repeats = {.count = 60, .resamples = 1000, .seed = 7};
  Admission admission;
  admission.loss = {.documents = 32, .spread = 0.005};
  const AdmissionRates none = admission_rates(admission, repeats);
  EXPECT_EQ(none.all_arms_pass, 1.0);
  EXPECT_EQ(none.any_arm_degraded, 0.0);
  admission.math_loss = 0.3;
  admission.retrieval_loss = 0.5;
  admission.loss.ratio_minus_1 = 0.1;
  const AdmissionRates strong = admission_rates(admission, repeats);
  EXPECT_EQ(strong.any_bound_passes, 0.0);
  EXPECT_EQ(strong.any_arm_degraded, 1.0);
}

TEST(SimulatedLooks, MatchTheExactRecursion) {
  const Repeats repeats = {.count = 20'000, .resamples = 1, .seed = 8};
  for (const Spending spending : {Spending::kObrienFleming, Spending::kPocock}) {
    for (const double rate : {0.005, 0.02, 0.04}) {
      const std::vector<Look> looks = four_looks(1319, 0.05, spending);
      const LookShares got = simulate_looks(looks, 0.02, rate, repeats);
      const LookShares want = expect_looks(looks, 0.02, rate).total;
      EXPECT_NEAR(got.pass, want.pass, four_errors(want.pass, repeats) + 1e-9);
      EXPECT_NEAR(got.degraded, want.degraded, four_errors(want.degraded, repeats) + 1e-9);
      EXPECT_NEAR(got.hopeless, want.hopeless, four_errors(want.hopeless, repeats) + 1e-9);
    }
  }
}

TEST(SimulatedLooks, TangoKeepsItsErrorToo) {
  const Repeats repeats = {.count = 3000, .resamples = 1, .seed = 9};
  for (const Spending spending : {Spending::kObrienFleming, Spending::kPocock}) {
    const double share = tango_pass_share(four_looks(1319, 0.05, spending), kAggregateMargin, {0.02, 0.01}, repeats);
    EXPECT_LE(share, 0.05 + four_errors(0.05, repeats));
    EXPECT_GT(share, 0.02);
  }
}

}  // namespace
}  // namespace asymkv::stats
