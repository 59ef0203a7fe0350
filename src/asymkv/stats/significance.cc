#include "asymkv/stats/significance.h"

#include <algorithm>
#include <boost/math/special_functions/gamma.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "asymkv/base/error.h"
#include "asymkv/stats/intervals.h"

namespace asymkv::stats {
namespace {

// Up to here sums of binomial coefficients fit 64 bits, and the p value is exact before its one rounding.
constexpr int64_t kMaxExactTrials = 60;

// sum over i <= k of C(n, i), n <= kMaxExactTrials.
uint64_t binomial_sum(int64_t k, int64_t n) {
  std::vector<uint64_t> row(static_cast<size_t>(n) + 1, 0);  // Pascal's triangle, in place
  row[0] = 1;
  for (int64_t i = 1; i <= n; ++i) {
    for (auto j = static_cast<size_t>(i); j > 0; --j) row[j] += row[j - 1];
  }
  return std::accumulate(row.begin(), row.begin() + k + 1, uint64_t{0});
}

// Natural logarithm of sum over i <= k of C(n, i) / 2^n, k < n / 2. The terms fall from i = k downwards: the largest
// one in logarithms, the others relative to it. long double, since the log-gammas grow like n log n.
long double log_lower_tail(int64_t k, int64_t n) {
  const auto trials = static_cast<long double>(n), top = static_cast<long double>(k);
  long double term = 1.0L, sum = 1.0L;
  for (long double i = top; i > 0.0L; i -= 1.0L) {
    term *= i / (trials - i + 1.0L);
    sum += term;
    if (term < sum * std::numeric_limits<long double>::epsilon()) break;
  }
  using boost::math::lgamma;  // std::lgamma writes a global
  const long double log_choose = lgamma(trials + 1.0L) - lgamma(top + 1.0L) - lgamma(trials - top + 1.0L);
  return log_choose + std::log(sum) - trials * std::log(2.0L);
}

// min(1, 2 P(X <= k)), X ~ Binomial(n, 1/2), k <= n - k.
PValue two_sided_half(int64_t k, int64_t n) {
  if (2 * k >= n) return {1.0, 0.0};
  if (n <= kMaxExactTrials) {
    const double p = std::min(1.0, std::ldexp(static_cast<double>(binomial_sum(k, n)), static_cast<int>(1 - n)));
    return {p, std::log10(p)};
  }
  const long double log_p = std::min(0.0L, log_lower_tail(k, n) + std::log(2.0L));
  return {static_cast<double>(std::exp(log_p)), static_cast<double>(log_p / std::log(10.0L))};
}

// Indices of `values` from the smallest to the largest.
std::vector<size_t> ascending_order(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  return order;
}

}  // namespace

std::string p_words(const PValue& value) {
  if (value.p >= 1e-3) return fmt::format("{:.4f}", value.p);
  if (value.p >= 1e-300) return fmt::format("{:.2e}", value.p);
  if (std::isinf(value.log10_p)) return "0";
  // Two decimals first, so that 9.999 becomes 1.00 of the next power of ten.
  double exponent = std::floor(value.log10_p);
  double hundredths = std::round(100.0 * std::pow(10.0, value.log10_p - exponent));
  if (hundredths >= 1000.0) {
    hundredths = 100.0;
    exponent += 1.0;
  }
  return fmt::format("{:.2f}e{:.0f}", hundredths / 100.0, exponent);
}

PValue mcnemar_exact(int64_t lost, int64_t gained) {
  if (lost < 0 || lost > kMaxCases) throw_usage("lost must be between 0 and {}, but it is {}", kMaxCases, lost);
  if (gained < 0 || gained > kMaxCases) throw_usage("gained must be between 0 and {}, but it is {}", kMaxCases, gained);
  if (lost + gained > kMaxCases)
    throw_usage("lost + gained must not exceed {}, but it is {}", kMaxCases, lost + gained);
  return two_sided_half(std::min(lost, gained), lost + gained);
}

PValue sign_test(int64_t positive, int64_t n) {
  if (n < 1 || n > kMaxCases) throw_usage("n must be between 1 and {}, but it is {}", kMaxCases, n);
  if (positive < 0 || positive > n) throw_usage("positive must be between 0 and n = {}, but it is {}", n, positive);
  return two_sided_half(std::min(positive, n - positive), n);
}

std::vector<double> holm(std::span<const double> p) {
  if (p.empty()) throw_usage("the list of p values is empty: give at least one");
  for (const double value : p) {
    if (!(value >= 0.0 && value <= 1.0)) throw_usage("every p value must lie between 0 and 1, but one is {}", value);
  }
  std::vector<double> adjusted(p.size());
  double running = 0.0;
  auto multiplier = static_cast<double>(p.size());
  for (const size_t i : ascending_order(p)) {
    running = std::max(running, std::min(1.0, p[i] * multiplier));
    adjusted[i] = running;
    multiplier -= 1.0;
  }
  return adjusted;
}

std::vector<double> holm_log10(std::span<const double> log10_p) {
  if (log10_p.empty()) throw_usage("the list of p values is empty: give at least one");
  for (const double value : log10_p) {
    if (!(value <= 0.0)) throw_usage("every log10 of a p value must be at most 0, but one is {}", value);
  }
  std::vector<double> adjusted(log10_p.size());
  double running = -std::numeric_limits<double>::infinity();
  auto multiplier = static_cast<double>(log10_p.size());
  for (const size_t i : ascending_order(log10_p)) {
    running = std::max(running, std::min(0.0, log10_p[i] + std::log10(multiplier)));
    adjusted[i] = running;
    multiplier -= 1.0;
  }
  return adjusted;
}

}  // namespace asymkv::stats
