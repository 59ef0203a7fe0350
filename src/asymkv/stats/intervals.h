#pragma once

#include <cstdint>

namespace asymkv::stats {

// Largest count that the interval functions accept; beyond it the incomplete beta function is not tested.
inline constexpr int64_t kMaxCases = 1'000'000'000;

struct Interval {
  double lower;
  double upper;
};

// Outcome of n cases that native and candidate both answered.
struct PairedCounts {
  int64_t n = 0;       // cases
  int64_t lost = 0;    // native correct, candidate wrong
  int64_t gained = 0;  // native wrong, candidate correct

  double gross_loss() const { return static_cast<double>(lost) / static_cast<double>(n); }
  double net_change() const { return static_cast<double>(gained - lost) / static_cast<double>(n); }
};

// Throws Error{kUsage} unless 1 <= n <= kMaxCases, lost >= 0, gained >= 0 and lost + gained <= n.
void check_counts(const PairedCounts& counts);

// Every `alpha` below is the error probability of ONE bound, 0 < alpha < 0.5; every `level` is the confidence of a
// two-sided interval, 0 < level < 1, that is alpha = (1 - level) / 2 at each end. All results are fractions, not
// percent. All functions throw Error{kUsage} on values outside these ranges, NaN included.

// One-sided exact (Clopper-Pearson 1934) bounds of k successes in n: quantiles of Beta(k + 1, n - k) at 1 - alpha and
// of Beta(k, n - k + 1) at alpha; 1 for k = n and 0 for k = 0. Needs 1 <= n <= kMaxCases and 0 <= k <= n.
double clopper_pearson_upper(int64_t k, int64_t n, double alpha);
double clopper_pearson_lower(int64_t k, int64_t n, double alpha);
Interval clopper_pearson(int64_t k, int64_t n, double level);

// Score interval for the difference of two paired proportions, (gained - lost) / n: Tango, Statistics in Medicine 17
// (1998) 891-908, without continuity or skewness correction. In the matched-pair table a, b, c, d with estimate
// (b - c) / n: gained = b, lost = c.
double tango_lower(const PairedCounts& counts, double alpha);
double tango_upper(const PairedCounts& counts, double alpha);
Interval tango(const PairedCounts& counts, double level);

// The statistic that the interval inverts, for -1 < delta < 1: sqrt(n) (net change - delta) / sqrt(variance under
// delta). At the interval's ends it equals +z and -z. Plus or minus infinity where the variance is 0 and the
// numerator is not, 0 where both are.
double tango_score(const PairedCounts& counts, double delta);

}  // namespace asymkv::stats
