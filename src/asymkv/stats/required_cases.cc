#include "asymkv/stats/required_cases.h"

#include <cmath>
#include <functional>

#include "asymkv/base/error.h"
#include "asymkv/stats/internal.h"

namespace asymkv::stats {
namespace {

void check_margin(double margin) {
  if (!(margin > -1.0 && margin < 0.0)) {
    throw_usage("margin must lie between -1 and 0 (both excluded), but it is {}", margin);
  }
}

// Smallest n in [1, kMaxCases] for which `holds`, which stays true once it is; nullopt if it never is.
std::optional<int64_t> smallest(const std::function<bool(double n)>& holds) {
  int64_t low = 0, high = kMaxCases;
  if (!holds(static_cast<double>(high))) return std::nullopt;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (holds(static_cast<double>(middle)) ? high : low) = middle;
  }
  return high;
}

int64_t reachable(const std::optional<int64_t>& cases, std::string_view name, double value) {
  if (!cases) throw_usage("{} = {} would need more than {} cases: choose a wider one", name, value, kMaxCases);
  return *cases;
}

}  // namespace

int64_t cases_for_limit(double limit, double alpha) {
  internal::check_open_unit(limit, "limit");
  internal::check_alpha(alpha);
  const auto cases = smallest([&](double n) { return internal::clopper_pearson_upper_real(0.0, n, alpha) <= limit; });
  return reachable(cases, "limit", limit);
}

std::optional<int64_t> most_losses_for_limit(int64_t n, double limit, double alpha) {
  internal::check_open_unit(limit, "limit");
  if (clopper_pearson_upper(0, n, alpha) > limit) return std::nullopt;
  int64_t clears = 0, misses = n;  // n losses have the upper bound 1
  while (misses - clears > 1) {
    const int64_t middle = clears + (misses - clears) / 2;
    (clopper_pearson_upper(middle, n, alpha) <= limit ? clears : misses) = middle;
  }
  return clears;
}

int64_t cases_for_margin(double margin, double alpha) {
  check_margin(margin);
  internal::check_alpha(alpha);
  const double z = internal::normal_critical_value(alpha);
  return reachable(smallest([&](double n) {
                     return internal::tango_lower_real({n, 0.0, 0.0}, z) >= margin;
                   }),
                   "margin", margin);
}

std::optional<int64_t> projected_cases_for_limit(const PairedCounts& observed, double limit, double alpha) {
  check_counts(observed);
  internal::check_open_unit(limit, "limit");
  internal::check_alpha(alpha);
  const double rate = observed.gross_loss();
  if (rate >= limit) return std::nullopt;
  return smallest([&](double n) { return internal::clopper_pearson_upper_real(rate * n, n, alpha) <= limit; });
}

std::optional<int64_t> projected_cases_for_margin(const PairedCounts& observed, double margin, double alpha) {
  check_counts(observed);
  check_margin(margin);
  internal::check_alpha(alpha);
  if (observed.net_change() <= margin) return std::nullopt;
  const double z = internal::normal_critical_value(alpha);
  const double lost = observed.gross_loss();
  const double gained = static_cast<double>(observed.gained) / static_cast<double>(observed.n);
  return smallest([&](double n) { return internal::tango_lower_real({n, lost * n, gained * n}, z) >= margin; });
}

}  // namespace asymkv::stats
