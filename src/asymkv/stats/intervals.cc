#include "asymkv/stats/intervals.h"

#include <boost/math/special_functions/beta.hpp>
#include <boost/math/special_functions/erf.hpp>
#include <cmath>
#include <limits>

#include "asymkv/base/error.h"
#include "asymkv/stats/internal.h"

namespace asymkv::stats {

namespace internal {

// The negated comparisons of these checks refuse NaN too.
void check_alpha(double alpha) {
  if (!(alpha > 0.0 && alpha < 0.5))
    throw_usage("alpha must lie between 0 and 0.5 (both excluded), but it is {}", alpha);
}

void check_open_unit(double value, std::string_view name) {
  if (!(value > 0.0 && value < 1.0))
    throw_usage("{} must lie between 0 and 1 (both excluded), but it is {}", name, value);
}

void check_level(double level) {
  check_open_unit(level, "level");
}

double normal_critical_value(double alpha) {
  return std::sqrt(2.0) * boost::math::erfc_inv(2.0 * alpha);
}

double clopper_pearson_upper_real(double k, double n, double alpha) {
  if (k >= n) return 1.0;
  if (k == 0.0) return -std::expm1(std::log(alpha) / n);
  // P(X <= k) falls from above alpha at k / n to 0 at 1. Boost's own inverse fails for very small alpha; its incomplete
  // beta function does not, so the root is bracketed here down to neighbouring doubles.
  double low = k / n, high = 1.0;
  for (;;) {
    const double middle = low + (high - low) / 2.0;
    if (middle == low || middle == high) return high;
    (boost::math::ibetac(k + 1.0, n - k, middle) > alpha ? low : high) = middle;
  }
}

namespace {

// Variance of sqrt(n) times the estimated difference when the true difference is delta and the two discordant
// probabilities take their constrained maximum-likelihood values: p_gained + p_lost - delta^2.
// Tango's q = (sqrt(B^2 - 4AC) - B) / (2A) with A = 2n, B = -b - c + (2n - b + c) delta, C = -c delta (1 - delta).
// For delta <= 0, to which the other side is mirrored, B <= 0; and the discriminant is a sum of squares,
// ((2n - b - c) delta - (b - c))^2 + 4bc (1 - delta^2), so that nothing cancels.
double score_variance(const RealCounts& counts, double delta) {
  if (delta > 0.0) return score_variance({counts.n, counts.gained, counts.lost}, -delta);
  const double b = counts.gained, c = counts.lost, n = counts.n;
  const double root = std::hypot((2.0 * n - b - c) * delta - (b - c), 2.0 * std::sqrt(b * c * (1.0 - delta * delta)));
  const double minus_b = b + c - (2.0 * n - b + c) * delta;
  const double p_lost = (root + minus_b) / (4.0 * n);
  return std::fmax(0.0, 2.0 * p_lost + delta * (1.0 - delta));
}

double estimate(const RealCounts& counts) {
  return (counts.gained - counts.lost) / counts.n;
}

// True while the score statistic at delta stays within +-z. In the product form no variance of 0 divides anything.
bool within(const RealCounts& counts, double delta, double z) {
  const double deviation = delta - estimate(counts);
  return deviation * deviation * counts.n <= z * z * score_variance(counts, delta);
}

}  // namespace

// The interval's end lies between the estimate, which is always within, and -1. Bisection to neighbouring doubles
// cannot fail where the statistic is steep or its variance vanishes (no discordant pair, every case lost).
double tango_lower_real(const RealCounts& counts, double z) {
  if (counts.lost >= counts.n) return -1.0;
  double inside = estimate(counts), outside = -1.0;
  for (;;) {
    const double middle = outside + (inside - outside) / 2.0;
    if (middle == inside || middle == outside) return outside;
    (within(counts, middle, z) ? inside : outside) = middle;
  }
}

double tango_upper_real(const RealCounts& counts, double z) {
  return -tango_lower_real({counts.n, counts.gained, counts.lost}, z);
}

}  // namespace internal

namespace {

void check_successes(int64_t k, int64_t n) {
  if (n < 1 || n > kMaxCases) throw_usage("n must be between 1 and {}, but it is {}", kMaxCases, n);
  if (k < 0 || k > n) throw_usage("k must be between 0 and n = {}, but it is {}", n, k);
}

internal::RealCounts real(const PairedCounts& counts) {
  return {static_cast<double>(counts.n), static_cast<double>(counts.lost), static_cast<double>(counts.gained)};
}

}  // namespace

void check_counts(const PairedCounts& counts) {
  const auto [n, lost, gained] = counts;
  if (n < 1 || n > kMaxCases) throw_usage("n must be between 1 and {}, but it is {}", kMaxCases, n);
  if (lost < 0 || lost > n) throw_usage("lost must be between 0 and n = {}, but it is {}", n, lost);
  if (gained < 0 || gained > n) throw_usage("gained must be between 0 and n = {}, but it is {}", n, gained);
  if (lost + gained > n) {
    throw_usage("lost + gained must not exceed n = {}, but {} + {} = {}", n, lost, gained, lost + gained);
  }
}

double clopper_pearson_upper(int64_t k, int64_t n, double alpha) {
  check_successes(k, n);
  internal::check_alpha(alpha);
  return internal::clopper_pearson_upper_real(static_cast<double>(k), static_cast<double>(n), alpha);
}

double clopper_pearson_lower(int64_t k, int64_t n, double alpha) {
  check_successes(k, n);
  internal::check_alpha(alpha);
  const double successes = static_cast<double>(k), cases = static_cast<double>(n);
  if (k == 0) return 0.0;
  if (k == n) return std::exp(std::log(alpha) / cases);
  double low = 0.0, high = successes / cases;
  for (;;) {  // P(X >= k) rises with the rate; see clopper_pearson_upper_real
    const double middle = low + (high - low) / 2.0;
    if (middle == low || middle == high) return low;
    (boost::math::ibeta(successes, cases - successes + 1.0, middle) < alpha ? low : high) = middle;
  }
}

Interval clopper_pearson(int64_t k, int64_t n, double level) {
  internal::check_level(level);
  const double alpha = (1.0 - level) / 2.0;
  return {clopper_pearson_lower(k, n, alpha), clopper_pearson_upper(k, n, alpha)};
}

double tango_lower(const PairedCounts& counts, double alpha) {
  check_counts(counts);
  internal::check_alpha(alpha);
  return internal::tango_lower_real(real(counts), internal::normal_critical_value(alpha));
}

double tango_upper(const PairedCounts& counts, double alpha) {
  check_counts(counts);
  internal::check_alpha(alpha);
  return internal::tango_upper_real(real(counts), internal::normal_critical_value(alpha));
}

Interval tango(const PairedCounts& counts, double level) {
  internal::check_level(level);
  const double alpha = (1.0 - level) / 2.0;
  return {tango_lower(counts, alpha), tango_upper(counts, alpha)};
}

double tango_score(const PairedCounts& counts, double delta) {
  check_counts(counts);
  if (!(delta > -1.0 && delta < 1.0))
    throw_usage("delta must lie between -1 and 1 (both excluded), but it is {}", delta);
  const double numerator = std::sqrt(static_cast<double>(counts.n)) * (counts.net_change() - delta);
  const double variance = internal::score_variance(real(counts), delta);
  if (variance > 0.0) return numerator / std::sqrt(variance);
  if (numerator == 0.0) return 0.0;
  return std::copysign(std::numeric_limits<double>::infinity(), numerator);
}

}  // namespace asymkv::stats
