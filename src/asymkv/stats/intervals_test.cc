#include "asymkv/stats/intervals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "asymkv/stats/test_support.h"

namespace asymkv::stats {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Half a unit of the last printed decimal.
double half_unit(int decimals) {
  return 0.5000001 * std::pow(10.0, -decimals);
}

TEST(ClopperPearson, PublishedTwoSided) {
  const auto near = [](Interval got, double lower, double upper, int decimals) {
    EXPECT_NEAR(got.lower, lower, half_unit(decimals));
    EXPECT_NEAR(got.upper, upper, half_unit(decimals));
  };
  near(clopper_pearson(18, 20, 0.95), .6830172860, .9876514728, 10);
  near(clopper_pearson(4, 200, 0.95), .0054755659, .0504136091, 10);
  near(clopper_pearson(0, 20, 0.95), 0.0, .1684, 4);
  EXPECT_EQ(clopper_pearson(0, 20, 0.95).lower, 0.0);
  EXPECT_EQ(clopper_pearson(20, 20, 0.95).upper, 1.0);
}

TEST(ClopperPearson, PublishedOneSided) {
  EXPECT_NEAR(clopper_pearson_upper(0, 200, 0.05), .014867, half_unit(6));
  EXPECT_NEAR(clopper_pearson_upper(17, 1319, 0.05), .019270, half_unit(6));
  EXPECT_NEAR(clopper_pearson_upper(0, 200, 0.05 / 24), .03040, half_unit(5));
  EXPECT_NEAR(clopper_pearson_upper(0, 200, 0.05 / 8), .02506, half_unit(5));
  EXPECT_NEAR(clopper_pearson_upper(0, 100, 0.05 / 4), .0429, half_unit(4));
}

double binomial_pmf(int64_t k, int64_t n, double p) {
  const auto x = static_cast<double>(k), m = static_cast<double>(n);
  return std::exp(std::lgamma(m + 1) - std::lgamma(x + 1) - std::lgamma(m - x + 1) + x * std::log(p) +
                  (m - x) * std::log1p(-p));
}

// The definition: at the upper bound, at most k successes have probability alpha; at the lower, at least k.
TEST(ClopperPearson, BoundsInvertTheBinomialTails) {
  for (const int64_t n : {1, 2, 7, 30, 200}) {
    for (int64_t k = 0; k <= n; ++k) {
      for (const double alpha : {0.05, 0.05 / 24, 0.4}) {
        const double upper = clopper_pearson_upper(k, n, alpha), lower = clopper_pearson_lower(k, n, alpha);
        double below = 0.0, above = 0.0;
        for (int64_t i = 0; i <= k; ++i) below += binomial_pmf(i, n, upper);
        for (int64_t i = k; i <= n; ++i) above += binomial_pmf(i, n, lower);
        if (k < n) {
          EXPECT_NEAR(below, alpha, 1e-11) << k << "/" << n;
        }
        if (k > 0) {
          EXPECT_NEAR(above, alpha, 1e-11) << k << "/" << n;
        }
        EXPECT_LT(lower, upper);
        EXPECT_NEAR(lower, 1.0 - clopper_pearson_upper(n - k, n, alpha), 1e-14);
      }
    }
  }
}

// Exact coverage by enumeration: never below the nominal level, whatever the true rate.
TEST(ClopperPearson, CoverageIsAtLeastNominal) {
  for (const int64_t n : {1, 5, 20, 50}) {
    for (int step = 1; step < 100; ++step) {
      const double rate = step / 100.0;
      double covered = 0.0;
      for (int64_t k = 0; k <= n; ++k) {
        if (rate <= clopper_pearson_upper(k, n, 0.05)) covered += binomial_pmf(k, n, rate);
      }
      EXPECT_GE(covered, 0.95 - 1e-12) << n << " " << rate;
    }
  }
}

// Error probabilities far below any in use still give ordered, finite bounds.
TEST(ClopperPearson, TinyAlpha) {
  for (const double alpha : {1e-30, 1e-300}) {
    for (const int64_t n : {int64_t{10}, int64_t{1319}, kMaxCases}) {
      for (const int64_t k : {int64_t{1}, n / 2, n - 1}) {
        const double share = static_cast<double>(k) / static_cast<double>(n);
        EXPECT_GE(clopper_pearson_lower(k, n, alpha), 0.0);
        EXPECT_LT(clopper_pearson_lower(k, n, alpha), share);
        EXPECT_GT(clopper_pearson_upper(k, n, alpha), share);
        EXPECT_LE(clopper_pearson_upper(k, n, alpha), 1.0);
      }
    }
  }
}

TEST(ClopperPearson, LargeCounts) {
  EXPECT_NEAR(clopper_pearson_upper(0, kMaxCases, 0.05), -std::log(0.05) / 1e9, 1e-17);
  const Interval half = clopper_pearson(kMaxCases / 2, kMaxCases, 0.95);
  EXPECT_NEAR(half.lower, 0.5 - 1.959963985 * 0.5 / std::sqrt(1e9), 1e-8);
  EXPECT_NEAR(half.upper, 0.5 + 1.959963985 * 0.5 / std::sqrt(1e9), 1e-8);
}

struct GateRow {
  int64_t lost, gained;
  double divisor, gross_upper_pct, net_lower_pp;
};

TEST(GateTable, GrossUpperAndNetLower) {
  for (const auto& [lost, gained, divisor, gross, net] : {GateRow{6, 3, 24, 1.282366, -1.170859},
                                                          {6, 10, 24, 1.282366, -0.705929},
                                                          {14, 22, 24, 2.149439, -0.773913},
                                                          {15, 12, 24, 2.251982, -1.532010},
                                                          {1200, 0, 24, 93.091930, -92.992020},
                                                          {7, 3, 8, 1.266967, -1.113134},
                                                          {15, 20, 8, 2.091014, -0.803933},
                                                          {20, 17, 1, 2.195759, -1.018508}}) {
    const PairedCounts counts{1319, lost, gained};
    EXPECT_NEAR(100 * clopper_pearson_upper(lost, 1319, 0.05 / divisor), gross, half_unit(6)) << lost;
    EXPECT_NEAR(100 * tango_lower(counts, 0.05 / divisor), net, half_unit(6)) << lost;
  }
  const Interval two_sided = tango({1319, 20, 17}, 0.95);
  EXPECT_NEAR(100 * two_sided.lower, -1.1838, half_unit(4));
  EXPECT_NEAR(100 * two_sided.upper, 0.7095, half_unit(4));
}

struct PublishedTable {
  int64_t a, b, c, d;
  double level, lower, upper;
};

TEST(Tango, PublishedTables) {
  for (const auto& t : {PublishedTable{4, 9, 3, 16, 0.95, -0.027090, 0.389697},
                        {43, 0, 1, 0, 0.90, -0.095662, 0.036517},
                        {1, 1, 7, 12, 0.95, -0.517232, -0.026003},
                        {7, 25, 2, 68, 0.95, 0.139183, 0.321330}}) {
    const Interval got = tango({.n = t.a + t.b + t.c + t.d, .lost = t.c, .gained = t.b}, t.level);
    EXPECT_NEAR(got.lower, t.lower, half_unit(6)) << t.b << " " << t.c;
    EXPECT_NEAR(got.upper, t.upper, half_unit(6)) << t.b << " " << t.c;
  }
}

TEST(Tango, NoDiscordantPairIsSymmetric) {
  const Interval got = tango({1319, 0, 0}, 0.95);
  EXPECT_NEAR(100 * got.upper, 0.2904, half_unit(4));
  EXPECT_EQ(got.lower, -got.upper);
  const double z2 = 1.959963984540054 * 1.959963984540054;
  EXPECT_NEAR(got.upper, z2 / (1319 + z2), 1e-15);  // closed form: the constrained variance is delta (1 - delta)
}

TEST(Tango, EveryCaseDiscordant) {
  EXPECT_EQ(tango({10, 10, 0}, 0.95).lower, -1.0);
  EXPECT_EQ(tango({10, 0, 10}, 0.95).upper, 1.0);
  const double upper = tango({10, 10, 0}, 0.95).upper;
  EXPECT_GT(upper, -1.0);
  EXPECT_LT(upper, 0.0);
  EXPECT_EQ(tango({10, 0, 10}, 0.95).lower, -upper);
  const Interval half = tango({10, 5, 5}, 0.95);
  EXPECT_EQ(half.lower, -half.upper);
  EXPECT_NEAR(half.upper, 0.5268, 5e-4);  // z / sqrt(n + z^2): with b + c = n this is Wilson's interval of 2p - 1
  EXPECT_LT(tango({1, 1, 0}, 0.95).upper, 1.0);
}

// With b + c = n the difference is 2p - 1 of one binomial proportion, whose score interval is Wilson's.
TEST(Tango, AllDiscordantIsWilson) {
  const double z = 1.959963984540054;
  for (const int64_t n : {1, 2, 9, 40}) {
    for (int64_t b = 0; b <= n; ++b) {
      const auto m = static_cast<double>(n);
      const double p = static_cast<double>(b) / m, shrink = 1.0 + z * z / m;
      const double centre = (p + z * z / (2 * m)) / shrink;
      const double half = z / shrink * std::sqrt(p * (1 - p) / m + z * z / (4 * m * m));
      const Interval got = tango({n, n - b, b}, 0.95);
      EXPECT_NEAR(got.lower, std::max(-1.0, 2 * (centre - half) - 1), 2e-8) << b << "/" << n;
      EXPECT_NEAR(got.upper, std::min(1.0, 2 * (centre + half) - 1), 2e-8) << b << "/" << n;
    }
  }
}

// Every table up to n = 12: the ends lie where the score is +-z, contain the estimate, mirror under exchange, and
// widen with the level.
TEST(Tango, InvertsItsScoreTest) {
  const double z = 1.959963984540054;
  for (int64_t n = 1; n <= 12; ++n) {
    for (int64_t b = 0; b <= n; ++b) {
      for (int64_t c = 0; b + c <= n; ++c) {
        const PairedCounts counts{n, c, b};
        const Interval got = tango(counts, 0.95);
        SCOPED_TRACE(std::to_string(b) + " " + std::to_string(c) + " of " + std::to_string(n));
        EXPECT_LE(got.lower, counts.net_change());
        EXPECT_GE(got.upper, counts.net_change());
        if (got.lower > -1.0) {
          EXPECT_NEAR(tango_score(counts, got.lower), z, 1e-6);
        }
        if (got.upper < 1.0) {
          EXPECT_NEAR(tango_score(counts, got.upper), -z, 1e-6);
        }
        const Interval mirrored = tango({n, b, c}, 0.95);
        EXPECT_EQ(mirrored.lower, -got.upper);
        EXPECT_EQ(mirrored.upper, -got.lower);
        const Interval wider = tango(counts, 0.99);
        EXPECT_LE(wider.lower, got.lower);
        EXPECT_GE(wider.upper, got.upper);
      }
    }
  }
}

// Bisection finds the end only because the score falls as delta grows: shown for every small table.
TEST(Tango, ScoreFallsWithDelta) {
  for (int64_t n = 1; n <= 8; ++n) {
    for (int64_t b = 0; b <= n; ++b) {
      for (int64_t c = 0; b + c <= n; ++c) {
        double last = std::numeric_limits<double>::infinity();
        for (int step = -999; step <= 999; ++step) {
          const double score = tango_score({n, c, b}, step / 1000.0);
          ASSERT_LE(score, last + 1e-9) << n << " " << b << " " << c << " " << step;
          last = score;
        }
      }
    }
  }
}

TEST(Tango, NearTheEndsOfTheRange) {
  for (const int64_t n : {int64_t{1'000}, int64_t{1'000'000}, kMaxCases}) {
    for (const int64_t kept : {0, 1, 2}) {
      const PairedCounts counts{n, n - kept, 0};
      const Interval got = tango(counts, 0.95);
      EXPECT_GE(got.lower, -1.0);
      EXPECT_LE(got.lower, counts.net_change());
      EXPECT_GT(got.upper, counts.net_change());
      EXPECT_LT(got.upper, counts.net_change() + 20.0 / static_cast<double>(n));
      if (kept > 0 && n < kMaxCases) {
        EXPECT_NEAR(tango_score(counts, got.lower), 1.959963984540054, 1e-4);
        EXPECT_NEAR(tango_score(counts, got.upper), -1.959963984540054, 1e-4);
      }
    }
  }
}

TEST(Intervals, OddInputsAreRefusedWithASentence) {
  expect_usage([] { clopper_pearson_upper(0, 0, 0.05); }, "n must be between 1 and");
  expect_usage([] { clopper_pearson_upper(0, -3, 0.05); }, "it is -3");
  expect_usage([] { clopper_pearson_upper(0, kMaxCases + 1, 0.05); }, "n must be between");
  expect_usage([] { clopper_pearson_lower(21, 20, 0.05); }, "k must be between 0 and n = 20, but it is 21");
  expect_usage([] { clopper_pearson_lower(-1, 20, 0.05); }, "but it is -1");
  for (const double alpha : {0.0, -0.1, 0.5, 1.5, kNan, HUGE_VAL}) {
    expect_usage([&] { clopper_pearson_upper(1, 20, alpha); }, "alpha must lie between 0 and 0.5");
    expect_usage([&] { clopper_pearson_lower(1, 20, alpha); }, "alpha must lie between 0 and 0.5");
    expect_usage([&] { tango_lower({20, 1, 1}, alpha); }, "alpha must lie between 0 and 0.5");
    expect_usage([&] { tango_upper({20, 1, 1}, alpha); }, "alpha must lie between 0 and 0.5");
  }
  for (const double level : {0.0, 1.0, 1.5, -0.5, kNan}) {
    expect_usage([&] { clopper_pearson(1, 20, level); }, "level must lie between 0 and 1");
    expect_usage([&] { tango({20, 1, 1}, level); }, "level must lie between 0 and 1");
  }
  expect_usage([] { tango({0, 0, 0}, 0.95); }, "n must be between 1");
  expect_usage([] { tango({5, 7, 0}, 0.95); }, "lost must be between 0 and n = 5, but it is 7");
  expect_usage([] { tango({5, 0, 6}, 0.95); }, "gained must be between 0 and n = 5, but it is 6");
  expect_usage([] { tango({5, -1, 0}, 0.95); }, "lost must be");
  expect_usage([] { tango({5, 3, 3}, 0.95); }, "3 + 3 = 6");
  expect_usage([] { tango_score({5, 3, 1}, 1.0); }, "delta must lie");
  expect_usage([] { tango_score({5, 3, 1}, kNan); }, "delta must lie");
}

}  // namespace
}  // namespace asymkv::stats
