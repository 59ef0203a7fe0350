#include "asymkv/stats/sequential.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "asymkv/stats/intervals.h"
#include "asymkv/stats/test_support.h"

namespace asymkv::stats {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<double> cumulative(double alpha, const std::vector<double>& fractions, Spending spending) {
  std::vector<double> levels = spend_alpha(alpha, fractions, spending);
  std::partial_sum(levels.begin(), levels.end(), levels.begin());
  return levels;
}

std::vector<Look> four_looks(int64_t n, double alpha, Spending spending) {
  const std::vector<double> levels = spend_alpha(alpha, std::vector<double>{0.25, 0.5, 0.75, 1.0}, spending);
  std::vector<Look> looks;
  for (size_t i = 0; i < levels.size(); ++i) looks.push_back({n * static_cast<int64_t>(i + 1) / 4, levels[i]});
  return looks;
}

// Cumulative two-sided alpha of five equal looks as the program of Reboussin, DeMets, Kim and Lan prints them.
TEST(Spending, PublishedValues) {
  const std::vector<double> fractions = {0.2, 0.4, 0.6, 0.8, 1.0};
  const std::vector<double> brien = {0.0, 0.00079, 0.00762, 0.02442, 0.05};
  const std::vector<double> pocock = {0.01477, 0.02616, 0.03543, 0.04324, 0.05};
  const std::vector<double> got_brien = cumulative(0.025, fractions, Spending::kObrienFleming);
  const std::vector<double> got_pocock = cumulative(0.05, fractions, Spending::kPocock);
  for (size_t i = 0; i < fractions.size(); ++i) {
    EXPECT_NEAR(2.0 * got_brien[i], brien[i], 5e-6) << i;
    EXPECT_NEAR(got_pocock[i], pocock[i], 5e-6) << i;
  }
  EXPECT_NEAR(got_brien[0], 5.4e-7, 1e-8);
}

TEST(Spending, LevelsArePositiveAndAddUpToAlpha) {
  for (const Spending spending : {Spending::kObrienFleming, Spending::kPocock}) {
    for (const double alpha : {0.05, 0.05 / 24, 1e-6}) {
      const std::vector<double> levels = spend_alpha(alpha, std::vector<double>{0.1, 0.3, 0.31, 0.9, 1.0}, spending);
      for (const double level : levels) EXPECT_GT(level, 0.0);
      EXPECT_NEAR(std::accumulate(levels.begin(), levels.end(), 0.0), alpha, 1e-15 * alpha * 4);
    }
    EXPECT_EQ(spend_alpha(0.05, std::vector<double>{1.0}, spending), std::vector<double>{0.05});
    EXPECT_EQ(parse_spending(spending_name(spending)), spending);
  }
}

TEST(Spending, OddInputs) {
  const auto spend = [](double alpha, std::vector<double> fractions) {
    return [alpha, fractions] { spend_alpha(alpha, fractions, Spending::kObrienFleming); };
  };
  expect_usage(spend(0.05, {}), "list of looks is empty");
  expect_usage(spend(0.05, {0.5}), "last look must be at 1");
  expect_usage(spend(0.05, {0.5, 0.5, 1.0}), "0.5 follows 0.5");
  expect_usage(spend(0.05, {0.0, 1.0}), "0 follows 0");
  expect_usage(spend(0.05, {kNan, 1.0}), "nan follows 0");
  expect_usage(spend(0.05, {0.5, 1.0, 1.5}), "1.5 follows 1");
  expect_usage(spend(0.05, {1e-5, 1.0}), "no alpha to spend");
  for (const double bad : {0.0, 0.5, kNan}) expect_usage(spend(bad, {1.0}), "alpha must lie");
  expect_usage([] { parse_spending("Pocock"); }, "choose obrien-fleming or pocock");
}

TEST(Looks, RulesFollowTheBounds) {
  EXPECT_EQ(most_losses(0.02, 0.05, 1319), 17);
  EXPECT_EQ(most_losses(0.02, 0.05, 148), -1);
  for (const Spending spending : {Spending::kObrienFleming, Spending::kPocock}) {
    const std::vector<LookRule> rules = look_rules(four_looks(1319, 0.05 / 8, spending), 0.02);
    int64_t later = -1;
    for (auto it = rules.rbegin(); it != rules.rend(); ++it) {
      const auto& [look, pass_most, degraded_from, hopeless_from] = *it;
      if (pass_most >= 0) {
        EXPECT_LE(clopper_pearson_upper(pass_most, look.cases, look.level), 0.02);
      }
      EXPECT_GT(clopper_pearson_upper(pass_most + 1, look.cases, look.level), 0.02);
      EXPECT_GT(clopper_pearson_lower(degraded_from, look.cases, look.level), 0.02);
      EXPECT_LE(clopper_pearson_lower(degraded_from - 1, look.cases, look.level), 0.02);
      EXPECT_EQ(hopeless_from, it == rules.rbegin() ? look.cases + 1 : later + 1);
      later = std::max(later, pass_most);
    }
  }
}

using Distribution = std::map<int64_t, double>;  // of the losses

Distribution one_more_case(const Distribution& at, double rate) {
  Distribution next;
  for (const auto& [lost, p] : at) {
    next[lost] += p * (1.0 - rate);
    next[lost + 1] += p * rate;
  }
  return next;
}

// The recursion again, one case at a time in place of binomial increments, and from bounds in place of counts.
LookExpectation case_by_case(const std::vector<Look>& looks, double limit, double rate) {
  Distribution at = {{0, 1.0}};
  LookExpectation want{};
  int64_t cases = 0;
  for (const LookRule& rule : look_rules(looks, limit)) {
    const double level = rule.look.level;
    for (; cases < rule.look.cases; ++cases) at = one_more_case(at, rate);
    LookShares shares{};
    Distribution rest;
    for (const auto& [lost, p] : at) {
      if (clopper_pearson_upper(lost, cases, level) <= limit) {
        shares.pass += p;
      } else if (clopper_pearson_lower(lost, cases, level) > limit) {
        shares.degraded += p;
      } else if (cases == looks.back().cases) {
        shares.not_established += p;
      } else if (lost >= rule.hopeless_from) {
        shares.hopeless += p;
      } else {
        rest[lost] = p;
      }
    }
    want.looks.push_back(shares);
    want.cases_share += (shares.pass + shares.degraded + shares.hopeless + shares.not_established) *
                        static_cast<double>(cases) / static_cast<double>(looks.back().cases);
    at = rest;
  }
  return want;
}

TEST(Looks, RecursionMatchesCaseByCase) {
  for (const double rate : {0.0, 0.01, 0.05, 0.2, 0.9, 1.0}) {
    const std::vector<Look> looks = {{30, 0.01}, {47, 0.002}, {90, 0.02}};
    const LookExpectation got = expect_looks(looks, 0.15, rate), want = case_by_case(looks, 0.15, rate);
    double all = 0.0;
    for (size_t i = 0; i < looks.size(); ++i) {
      EXPECT_NEAR(got.looks[i].pass, want.looks[i].pass, 1e-12);
      EXPECT_NEAR(got.looks[i].degraded, want.looks[i].degraded, 1e-12);
      EXPECT_NEAR(got.looks[i].hopeless, want.looks[i].hopeless, 1e-12);
      EXPECT_NEAR(got.looks[i].not_established, want.looks[i].not_established, 1e-12);
      all += got.looks[i].pass + got.looks[i].degraded + got.looks[i].hopeless + got.looks[i].not_established;
    }
    EXPECT_NEAR(got.cases_share, want.cases_share, 1e-12);
    EXPECT_NEAR(all, 1.0, 1e-12);
  }
}

// The law that makes looks admissible: at the limit itself, wrong passes (and wrong degradations) stay within alpha.
TEST(Looks, ErrorAtTheLimitStaysWithinAlpha) {
  for (const Spending spending : {Spending::kObrienFleming, Spending::kPocock}) {
    for (const double alpha : {0.05, 0.05 / 8, 0.05 / 24}) {
      for (const int64_t n : {200, 400, 1319}) {
        const LookExpectation at_limit = expect_looks(four_looks(n, alpha, spending), 0.02, 0.02);
        EXPECT_LE(at_limit.total.pass, alpha);
        EXPECT_LE(at_limit.total.degraded, alpha);
      }
    }
  }
  // Not by passing nothing.
  EXPECT_GT(expect_looks(four_looks(1319, 0.05, Spending::kObrienFleming), 0.02, 0.02).total.pass, 0.02);
}

TEST(Looks, ClearArmsStopEarly) {
  const std::vector<Look> looks = four_looks(1319, 0.05, Spending::kObrienFleming);
  const LookExpectation lossless = expect_looks(looks, 0.02, 0.0), hopeless = expect_looks(looks, 0.02, 0.5);
  EXPECT_DOUBLE_EQ(lossless.total.pass, 1.0);
  EXPECT_LT(lossless.cases_share, 0.76);
  EXPECT_NEAR(hopeless.total.degraded, 1.0, 1e-12);
  EXPECT_NEAR(hopeless.cases_share, 329.0 / 1319.0, 1e-12);
}

TEST(Looks, OddInputs) {
  const auto expect = [](std::vector<Look> looks, double limit, double rate) {
    return [looks, limit, rate] { expect_looks(looks, limit, rate); };
  };
  expect_usage(expect({}, 0.02, 0.0), "list of looks is empty");
  expect_usage(expect({{0, 0.05}}, 0.02, 0.0), "0 follows 0");
  expect_usage(expect({{9, 0.05}, {9, 0.05}}, 0.02, 0.0), "9 follows 9");
  expect_usage(expect({{kMaxLookCases + 1, 0.05}}, 0.02, 0.0), "follows 0");
  expect_usage(expect({{9, 0.0}}, 0.02, 0.0), "alpha must lie");
  expect_usage(expect({{9, 0.05}}, 0.0, 0.0), "limit must lie");
  for (const double bad : {-0.1, 1.1, kNan}) expect_usage(expect({{9, 0.05}}, 0.02, bad), "loss rate must lie");
}

}  // namespace
}  // namespace asymkv::stats
