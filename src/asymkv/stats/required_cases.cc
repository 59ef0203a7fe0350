#include "asymkv/stats/required_cases.h"

#include <algorithm>
#include <boost/math/special_functions/beta.hpp>
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

std::optional<PowerPlan> cases_for_power(double loss_rate, double limit, double alpha, double power) {
  internal::check_open_unit(limit, "limit");
  internal::check_open_unit(power, "power");
  internal::check_alpha(alpha);
  if (!(loss_rate >= 0.0 && loss_rate < 1.0)) {
    throw_usage("a loss rate must lie between 0 and 1 (1 excluded), but it is {}", loss_rate);
  }
  if (loss_rate >= limit) return std::nullopt;
  // With k losses allowed the chance is largest at the fewest cases that allow them, and a little larger with each k.
  const auto plan_of = [&](int64_t losses) -> std::optional<PowerPlan> {
    const auto k = static_cast<double>(losses);
    const auto cases =
        smallest([&](double n) { return n > k && internal::clopper_pearson_upper_real(k, n, alpha) <= limit; });
    if (!cases) return std::nullopt;
    const auto n = static_cast<double>(*cases);
    const double chance = loss_rate == 0.0 ? 1.0 : boost::math::ibetac(k + 1.0, n - k, loss_rate);
    return PowerPlan{*cases, losses, chance};
  };
  // In growing steps, and by halves over the last of them; beyond kMaxCases there is nothing.
  int64_t too_few = -1, losses = 0;
  auto plan = plan_of(losses);
  while (plan && plan->power < power) {
    too_few = losses;
    losses += 1 + losses / 64;
    plan = plan_of(losses);
  }
  while (losses - too_few > 1) {
    const int64_t middle = too_few + (losses - too_few) / 2;
    const auto tried = plan_of(middle);
    const bool enough = !tried || tried->power >= power;
    (enough ? losses : too_few) = middle;
    if (enough) plan = tried;
  }
  return plan;
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
