#pragma once

#include <cstdint>
#include <optional>

#include "asymkv/stats/intervals.h"

namespace asymkv::stats {

// What a protocol can reach before it runs. `alpha` is that of one bound. All throw Error{kUsage} on alpha outside
// (0, 0.5), on limits outside (0, 1) and where the answer would exceed kMaxCases.

// Fewest cases for which zero losses bring the Clopper-Pearson upper bound down to `limit` (a fraction, say 0.02).
int64_t cases_for_limit(double limit, double alpha);

// Most losses among n cases whose Clopper-Pearson upper bound is still <= limit; nullopt if even zero losses miss it.
std::optional<int64_t> most_losses_for_limit(int64_t n, double limit, double alpha);

// A number of cases at which an arm of a known quality is likely to pass, and what it may lose then.
struct PowerPlan {
  int64_t cases = 0;
  int64_t most_losses = 0;  // most_losses_for_limit of that many cases
  double power = 0.0;       // chance of no more losses
};
// Fewest cases for which losses that come independently with probability `loss_rate` (in [0, 1)) pass `limit` with
// probability `power` (in (0, 1)) or more; nullopt where none up to kMaxCases do, as for a loss rate of the limit or
// above. Exact. The chance falls with each further case until one more loss is allowed: a panel takes this number, or
// asks again for the chance at its own.
std::optional<PowerPlan> cases_for_power(double loss_rate, double limit, double alpha, double power);

// Fewest cases for which the lower Tango bound reaches `margin` (a negative fraction, say -0.01) with no discordant
// pair at all.
int64_t cases_for_margin(double margin, double alpha);

// Fewest cases for which the same share of lost and gained cases as observed (both >= 0, lost + gained <= n) would
// clear the limit or the margin; nullopt if no number does, because the observed rate itself lies beyond it. A plain
// projection of the point estimate (counts scaled as real numbers), for the sentence "needs n = ..."; it promises
// nothing, and may be below observed.n.
std::optional<int64_t> projected_cases_for_limit(const PairedCounts& observed, double limit, double alpha);
std::optional<int64_t> projected_cases_for_margin(const PairedCounts& observed, double margin, double alpha);

}  // namespace asymkv::stats
