#pragma once

#include <cstdint>
#include <span>

#include "asymkv/stats/sequential.h"

// How often the bounds and the verdict built of them are wrong: exactly where the outcomes can be counted, by seeded
// simulation elsewhere. For tests and tools/simulate_statistics.cc; docs/statistics.md holds what they found.
namespace asymkv::stats {

// Probability that a one-sided bound misses the truth. Nominally alpha each.
struct Misses {
  double lower = 0;  // lower bound above the truth
  double upper = 0;  // upper bound below the truth
};

// Exact: every count weighed with its binomial probability.
Misses clopper_pearson_misses(int64_t n, double rate, double alpha);

struct PairedRates {
  double lost;
  double gained;
};
// Exact but for outcomes of together less than 1e-9: every pair of counts weighed with its trinomial probability.
Misses tango_misses(int64_t n, const PairedRates& rates, double alpha);

// Independent repeats, each with its own random stream: the result does not depend on threads.
struct Repeats {
  int64_t count = 1000;
  int64_t resamples = 5000;  // of each bootstrap
  uint64_t seed = 1;
};

// Documents with native losses uniform on 2 to 4 nats and candidate = native * (1 + ratio_minus_1 + spread * noise),
// noise of mean 0 and variance 1: normal, or exponential - 1, where a few documents suffer most.
enum class LossNoise { kNormal, kSkewed };
struct LossModel {
  int64_t documents = 16;
  double ratio_minus_1 = 0;
  double spread = 0.02;
  LossNoise noise = LossNoise::kNormal;
};
Misses bootstrap_misses(const LossModel& model, double alpha, const Repeats& repeats);

// A whole admission: several arms, each with math, two retrieval lengths and loss documents, limits as in verdict.h.
struct Admission {
  int64_t arms = 6;
  int64_t math_cases = 1319;
  int64_t retrieval_cases = 200;  // at each of two lengths
  LossModel loss;                 // ratio_minus_1 of every arm included
  double math_loss = 0;           // true rates of lost answers, of every arm
  double retrieval_loss = 0;
  double alpha = 0.05 / 24;  // of each bound; bounds per arm: 4
};
// Shares of repeats in which the event happens to at least one arm; arms are independent, which is the worst case.
struct AdmissionRates {
  double any_bound_passes = 0;
  double any_arm_passes = 0;  // all four bounds
  double all_arms_pass = 0;
  double any_arm_degraded = 0;
};
AdmissionRates admission_rates(const Admission& admission, const Repeats& repeats);

// Simulated expect_looks: one path of losses a repeat, judged by look_rules at each look.
LookShares simulate_looks(std::span<const Look> looks, double limit, double loss_rate, const Repeats& repeats);

// Tango's lower bound under looks: share of repeats in which it reaches margin at some look. Counts at each look are
// sums of those before and new ones with the given rates.
double tango_pass_share(std::span<const Look> looks, double margin, const PairedRates& rates, const Repeats& repeats);

}  // namespace asymkv::stats
