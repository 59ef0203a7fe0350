#include "asymkv/stats/sequential.h"

#include <algorithm>
#include <boost/math/constants/constants.hpp>
#include <boost/math/special_functions/gamma.hpp>
#include <cmath>

#include "asymkv/base/error.h"
#include "asymkv/stats/internal.h"
#include "asymkv/stats/intervals.h"
#include "asymkv/stats/required_cases.h"

namespace asymkv::stats {
namespace {

double spent(double alpha, double fraction, Spending spending) {
  if (spending == Spending::kPocock) {
    return alpha * std::log1p((boost::math::constants::e<double>() - 1.0) * fraction);
  }
  return std::erfc(internal::normal_critical_value(alpha / 2.0) / std::sqrt(2.0 * fraction));
}

void check_fractions(std::span<const double> fractions) {
  if (fractions.empty()) throw_usage("the list of looks is empty: give at least the last one, 1");
  double before = 0.0;
  for (const double fraction : fractions) {
    if (!(fraction > before && fraction <= 1.0)) {
      throw_usage("looks must rise strictly from above 0 to 1, but {} follows {}", fraction, before);
    }
    before = fraction;
  }
  if (before != 1.0) throw_usage("the last look must be at 1, all cases, but it is at {}", before);
}

void check_looks(std::span<const Look> looks) {
  if (looks.empty()) throw_usage("the list of looks is empty: give at least the last one");
  int64_t before = 0;
  for (const Look& look : looks) {
    if (look.cases <= before || look.cases > kMaxLookCases) {
      throw_usage("the cases of looks must rise strictly from at least 1 to at most {}, but {} follows {}",
                  kMaxLookCases, look.cases, before);
    }
    internal::check_alpha(look.level);
    before = look.cases;
  }
}

// Fewest losses whose lower bound lies above the limit; n + 1 if not even n do.
int64_t fewest_degraded(int64_t n, double limit, double alpha) {
  int64_t within = 0, beyond = n + 1;
  while (beyond - within > 1) {
    const int64_t middle = within + (beyond - within) / 2;
    (clopper_pearson_lower(middle, n, alpha) > limit ? beyond : within) = middle;
  }
  return beyond;
}

// P(X = k) for k = 0 ... n, X ~ Binomial(n, rate).
std::vector<double> binomial_probabilities(int64_t n, double rate) {
  std::vector<double> probabilities(static_cast<size_t>(n) + 1, 0.0);
  if (rate == 0.0 || rate == 1.0) {
    (rate == 0.0 ? probabilities.front() : probabilities.back()) = 1.0;
    return probabilities;
  }
  using boost::math::lgamma;  // std::lgamma writes a global
  const auto trials = static_cast<double>(n);
  for (int64_t i = 0; i <= n; ++i) {
    const auto k = static_cast<double>(i);
    const double log_choose = lgamma(trials + 1.0) - lgamma(k + 1.0) - lgamma(trials - k + 1.0);
    probabilities[static_cast<size_t>(i)] =
        std::exp(log_choose + k * std::log(rate) + (trials - k) * std::log1p(-rate));
  }
  return probabilities;
}

// `going_on[k]`: probability to be here with k losses. Adds the losses of `cases` more.
std::vector<double> add_cases(const std::vector<double>& going_on, int64_t cases, double rate) {
  const std::vector<double> more = binomial_probabilities(cases, rate);
  std::vector<double> sum(going_on.size() + more.size() - 1, 0.0);
  for (size_t i = 0; i < going_on.size(); ++i) {
    if (going_on[i] == 0.0) continue;
    for (size_t j = 0; j < more.size(); ++j) sum[i + j] += going_on[i] * more[j];
  }
  return sum;
}

// Takes what stops at this look out of `at_look`.
LookShares stop(std::vector<double>& at_look, const LookRule& rule, bool last) {
  LookShares shares{};
  for (size_t i = 0; i < at_look.size(); ++i) {
    const auto lost = static_cast<int64_t>(i);
    double* share = last ? &shares.not_established : nullptr;
    if (lost <= rule.pass_most) {
      share = &shares.pass;
    } else if (lost >= rule.degraded_from) {
      share = &shares.degraded;
    } else if (lost >= rule.hopeless_from) {
      share = &shares.hopeless;
    }
    if (share == nullptr) continue;
    *share += at_look[i];
    at_look[i] = 0.0;
  }
  while (at_look.size() > 1 && at_look.back() == 0.0) at_look.pop_back();
  return shares;
}

}  // namespace

std::string_view spending_name(Spending spending) {
  return spending == Spending::kPocock ? "pocock" : "obrien-fleming";
}

Spending parse_spending(std::string_view name) {
  for (const Spending spending : {Spending::kObrienFleming, Spending::kPocock}) {
    if (name == spending_name(spending)) return spending;
  }
  throw_usage("unknown spending function '{}': choose obrien-fleming or pocock", name);
}

std::vector<double> spend_alpha(double alpha, std::span<const double> fractions, Spending spending) {
  internal::check_alpha(alpha);
  check_fractions(fractions);
  std::vector<double> levels;
  double before = 0.0;
  for (const double fraction : fractions) {
    const double now = fraction == 1.0 ? alpha : spent(alpha, fraction, spending);
    if (!std::isnormal(now - before) || now < before) {
      throw_usage("the look at {} of the cases has no alpha to spend ({}): leave it out", fraction,
                  spending_name(spending));
    }
    levels.push_back(now - before);
    before = now;
  }
  return levels;
}

int64_t cases_at(int64_t n, double fraction) {
  return static_cast<int64_t>(std::ceil(fraction * static_cast<double>(n) - 1e-9));
}

std::vector<Look> make_looks(int64_t n, double alpha, std::span<const double> fractions, Spending spending) {
  const std::vector<double> levels = spend_alpha(alpha, fractions, spending);
  std::vector<Look> looks;
  for (size_t i = 0; i < levels.size(); ++i) looks.push_back({cases_at(n, fractions[i]), levels[i]});
  return looks;
}

int64_t most_losses(double limit, double alpha, int64_t n) {
  return most_losses_for_limit(n, limit, alpha).value_or(-1);
}

std::vector<LookRule> look_rules(std::span<const Look> looks, double limit) {
  check_looks(looks);
  internal::check_open_unit(limit, "limit");
  std::vector<LookRule> rules;
  for (const Look& look : looks) {
    rules.push_back({look, most_losses(limit, look.level, look.cases), fewest_degraded(look.cases, limit, look.level),
                     look.cases + 1});
  }
  int64_t still_passes = -1;  // at any later look
  for (size_t i = rules.size() - 1; i > 0; --i) {
    still_passes = std::max(still_passes, rules[i].pass_most);
    rules[i - 1].hopeless_from = still_passes + 1;
  }
  return rules;
}

LookExpectation expect_looks(std::span<const Look> looks, double limit, double loss_rate) {
  const std::vector<LookRule> rules = look_rules(looks, limit);
  if (!(loss_rate >= 0.0 && loss_rate <= 1.0)) {
    throw_usage("the loss rate must lie between 0 and 1, but it is {}", loss_rate);
  }
  LookExpectation expectation{};
  std::vector<double> going_on = {1.0};
  int64_t before = 0;
  double expected_cases = 0.0;
  for (const LookRule& rule : rules) {
    going_on = add_cases(going_on, rule.look.cases - before, loss_rate);
    const LookShares shares = stop(going_on, rule, &rule == &rules.back());
    expectation.looks.push_back(shares);
    LookShares& total = expectation.total;
    total.pass += shares.pass;
    total.degraded += shares.degraded;
    total.hopeless += shares.hopeless;
    total.not_established += shares.not_established;
    expected_cases += (shares.pass + shares.degraded + shares.hopeless + shares.not_established) *
                      static_cast<double>(rule.look.cases);
    before = rule.look.cases;
  }
  expectation.cases_share = expected_cases / static_cast<double>(before);
  return expectation;
}

}  // namespace asymkv::stats
