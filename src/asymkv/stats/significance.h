#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace asymkv::stats {

// A p value and its decimal logarithm. p may underflow to 0; log10_p never does.
struct PValue {
  double p;
  double log10_p;
};

// For people: "0.0525", "4.43e-06" or, below the range of a double, the same form from the logarithm ("2.32e-361").
std::string p_words(const PValue& value);

// Exact McNemar test, two-sided: min(1, 2 P(X <= min(lost, gained))), X ~ Binomial(lost + gained, 1/2). No discordant
// pair gives p = 1. Throws Error{kUsage} if a count is negative or their sum exceeds kMaxCases.
PValue mcnemar_exact(int64_t lost, int64_t gained);

// Exact sign test, two-sided, of `positive` positive signs among n (ties dropped by the caller, who reports them).
// Throws Error{kUsage} unless 1 <= n <= kMaxCases and 0 <= positive <= n.
PValue sign_test(int64_t positive, int64_t n);

// Holm's step-down adjustment (Scandinavian Journal of Statistics 6 (1979) 65-70): the k-th smallest of m p values is
// multiplied by m - k + 1, made monotone and cut at 1. The result keeps the order of the input.
// Throws Error{kUsage} on an empty list and on a value that is NaN or outside [0, 1].
std::vector<double> holm(std::span<const double> p);

// The same on decimal logarithms (each <= 0, -infinity allowed for p = 0): for p values below the range of a double.
std::vector<double> holm_log10(std::span<const double> log10_p);

}  // namespace asymkv::stats
