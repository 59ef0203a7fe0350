#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace asymkv::stats {

// Group-sequential looks: a run may be judged before its last case, at numbers of cases declared in advance, if every
// look has its own share of alpha.

// Spending functions of Lan and DeMets, Biometrika 70 (1983) 659-663, at the fraction t of the cases, each alpha at 1:
//   O'Brien-Fleming  2 (1 - Phi(z / sqrt t)) with z the upper alpha / 2 quantile: next to nothing early, most at the
//   end Pocock           alpha ln(1 + (e - 1) t): nearly even looks
enum class Spending { kObrienFleming, kPocock };

std::string_view spending_name(Spending spending);  // "obrien-fleming", "pocock"
// Throws Error{kUsage} naming the text and the known names.
Spending parse_spending(std::string_view name);

// The one-sided level of each look: what the spending function gains since the look before. The levels add up to alpha,
// so by the union bound every statistic whose fixed-level bound is valid (Clopper-Pearson at any n) is wrong at some
// look with probability at most alpha, whatever the dependence between looks: no joint distribution is needed. That is
// conservative; boundaries from the joint distribution would spend a little more at each look. A statistic that is only
// approximately valid at its fixed level (Tango, bootstrap) is only approximately valid here, the less the smaller the
// level: O'Brien-Fleming's first levels are far below what a bootstrap can resolve.
// `fractions` of the cases rise strictly and end at 1. Throws Error{kUsage} otherwise, on alpha outside (0, 0.5), and
// on a look so early that its level would be no positive double.
std::vector<double> spend_alpha(double alpha, std::span<const double> fractions, Spending spending);

// Largest number of losses among n cases whose one-sided Clopper-Pearson upper bound is <= limit, -1 if even 0 misses
// it: most_losses_for_limit (required_cases.h), for comparisons.
int64_t most_losses(double limit, double alpha, int64_t n);

// Largest number of cases of a plan of looks; the recursion's cost grows like limit * cases^2.
inline constexpr int64_t kMaxLookCases = 100'000;

struct Look {
  int64_t cases;  // all up to this look
  double level;   // one-sided, of each bound judged at it
};
// Cases that a look at this fraction of n has: rounded up, but 0.3 of 10 is 3 whatever its binary form.
int64_t cases_at(int64_t n, double fraction);
// Looks at these fractions of n cases, with the levels of spend_alpha, whose errors it throws.
std::vector<Look> make_looks(int64_t n, double alpha, std::span<const double> fractions, Spending spending);

// What a binary endpoint with an upper limit decides at one look, by its losses so far. Between pass_most and the
// others the run goes on; at the last look it is not established. Degraded goes before hopeless where both hold.
struct LookRule {
  Look look;
  int64_t pass_most;      // pass up to here: upper bound <= limit; -1 if nothing passes
  int64_t degraded_from;  // degraded from here: lower bound > limit; cases + 1 if nothing is
  int64_t hopeless_from;  // more than any later look lets pass; cases + 1 at the last look, which has no later one
};
// Throws Error{kUsage} unless there is a look, cases rise strictly from >= 1 to <= kMaxLookCases, levels are in
// (0, 0.5) and limit is in (0, 1).
std::vector<LookRule> look_rules(std::span<const Look> looks, double limit);

// Probabilities to end at one look.
struct LookShares {
  double pass;
  double degraded;
  double hopeless;
  double not_established;  // last look only
};
struct LookExpectation {
  std::vector<LookShares> looks;
  LookShares total;
  double cases_share;  // expected cases used / cases of the last look
};
// Exact, by recursion over the looks: the losses between two looks are Binomial(cases between them, loss_rate), and
// what has not stopped goes on. Throws Error{kUsage} as look_rules does and on loss_rate outside [0, 1].
LookExpectation expect_looks(std::span<const Look> looks, double limit, double loss_rate);

}  // namespace asymkv::stats
