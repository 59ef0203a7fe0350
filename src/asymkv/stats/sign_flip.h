#pragma once

#include <cstdint>
#include <span>

#include "asymkv/stats/significance.h"

namespace asymkv::stats {

// Up to this many differences that are not 0 all sign patterns are counted.
inline constexpr int64_t kMaxExactFlips = 16;

struct SignFlipOptions {
  int64_t flips = 1'000'000;  // Monte-Carlo draws where there are more differences than kMaxExactFlips
  uint64_t seed = 1;
};

struct SignFlip {
  PValue value;
  int64_t n;    // differences, those of 0 included
  double mean;  // of the differences
  bool exact;   // all patterns counted; else value.p >= 1 / (flips + 1)
};

// Paired sign-flip (Fisher's randomisation) test of a mean difference, two-sided: the share of sign patterns whose
// |sum| reaches the observed one. Its null hypothesis is that the two arms could be exchanged within every pair, so a
// small p says that they differ. Monte Carlo counts the observed pattern as one of flips + 1, which keeps the test
// valid (Phipson and Smyth, Statistical Applications in Genetics and Molecular Biology 9 (2010) 39). Depends on the set
// of differences, flips and seed alone, not on order, overall sign or the number of threads.
// Throws Error{kUsage} on an empty list, a difference that is not finite or above 1e150 in size, and flips outside
// [1, 100,000,000].
SignFlip sign_flip_test(std::span<const double> differences, const SignFlipOptions& options = {});

}  // namespace asymkv::stats
