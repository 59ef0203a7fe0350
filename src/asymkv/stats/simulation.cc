#include "asymkv/stats/simulation.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/math/constants/constants.hpp>
#include <boost/math/special_functions/gamma.hpp>
#include <cmath>
#include <functional>
#include <vector>

#include "asymkv/base/parallel.h"
#include "asymkv/stats/bootstrap.h"
#include "asymkv/stats/intervals.h"
#include "asymkv/stats/random.h"
#include "asymkv/stats/verdict.h"

namespace asymkv::stats {
namespace {

constexpr double kNegligible = 1e-14;  // probability of one outcome that is left out of an exact sum

double log_binomial(int64_t n, int64_t k) {
  using boost::math::lgamma;
  const auto trials = static_cast<double>(n), part = static_cast<double>(k);
  return lgamma(trials + 1.0) - lgamma(part + 1.0) - lgamma(trials - part + 1.0);
}

// P(X = k), X ~ Binomial(n, rate).
double binomial(int64_t n, int64_t k, double rate) {
  if (rate <= 0.0) return k == 0 ? 1.0 : 0.0;
  if (rate >= 1.0) return k == n ? 1.0 : 0.0;
  return std::exp(log_binomial(n, k) + static_cast<double>(k) * std::log(rate) +
                  static_cast<double>(n - k) * std::log1p(-rate));
}

// Uniform on (0, 1).
double uniform(SplitMix64& random) {
  return (static_cast<double>(random.next() >> 11) + 0.5) * 0x1p-53;
}

// Draws from Binomial(n, rate) by inversion of its distribution function.
class BinomialDraws {
 public:
  BinomialDraws(int64_t n, double rate) {
    double sum = 0.0;
    for (int64_t k = 0; k <= n; ++k) up_to_.push_back(sum += binomial(n, k, rate));
  }
  int64_t draw(SplitMix64& random) const {
    const auto at = std::lower_bound(up_to_.begin(), up_to_.end() - 1, uniform(random));
    return at - up_to_.begin();
  }

 private:
  std::vector<double> up_to_;
};

double draw_noise(LossNoise noise, SplitMix64& random) {
  if (noise == LossNoise::kSkewed) return -std::log(uniform(random)) - 1.0;
  const double radius = std::sqrt(-2.0 * std::log(uniform(random)));  // Box and Muller
  return radius * std::cos(2.0 * boost::math::constants::pi<double>() * uniform(random));
}

std::vector<PairedLoss> draw_documents(const LossModel& model, SplitMix64& random) {
  std::vector<PairedLoss> documents(static_cast<size_t>(model.documents));
  for (PairedLoss& document : documents) {
    document.native = 2.0 + 2.0 * uniform(random);
    const double change = model.ratio_minus_1 + model.spread * draw_noise(model.noise, random);
    document.candidate = document.native * std::max(0.0, 1.0 + change);
  }
  return documents;
}

LossRatio draw_ratio(const LossModel& model, double alpha, const Repeats& repeats, SplitMix64& random) {
  const std::vector<PairedLoss> documents = draw_documents(model, random);
  return bootstrap_loss_ratio(documents, {repeats.resamples, random.next(), alpha});
}

// Runs `one` for every repeat; it adds 1 to the counters of what happened. Returns their shares.
template <size_t kEvents>
std::array<double, kEvents> shares_of(
    const Repeats& repeats, const std::function<void(SplitMix64&, std::array<std::atomic<int64_t>, kEvents>&)>& one) {
  std::array<std::atomic<int64_t>, kEvents> counts{};
  parallel_for(repeats.count, [&](int64_t repeat, int) {
    SplitMix64 random(repeats.seed, static_cast<uint64_t>(repeat));
    one(random, counts);
  });
  std::array<double, kEvents> shares{};
  for (size_t i = 0; i < kEvents; ++i) {
    shares[i] = static_cast<double>(counts[i].load()) / static_cast<double>(repeats.count);
  }
  return shares;
}

struct ArmEvents {
  bool any_pass = false;
  bool all_pass = true;
  bool degraded = false;
  void add(Verdict verdict) {
    any_pass = any_pass || verdict == Verdict::kPass;
    all_pass = all_pass && verdict == Verdict::kPass;
    degraded = degraded || verdict == Verdict::kDegraded;
  }
};

}  // namespace

Misses clopper_pearson_misses(int64_t n, double rate, double alpha) {
  Misses misses;
  for (int64_t k = 0; k <= n; ++k) {
    const double p = binomial(n, k, rate);
    if (p < kNegligible) continue;
    if (clopper_pearson_lower(k, n, alpha) > rate) misses.lower += p;
    if (clopper_pearson_upper(k, n, alpha) < rate) misses.upper += p;
  }
  return misses;
}

Misses tango_misses(int64_t n, const PairedRates& rates, double alpha) {
  const double truth = rates.gained - rates.lost;
  Misses misses;
  for (int64_t lost = 0; lost <= n; ++lost) {
    const double p_lost = binomial(n, lost, rates.lost);
    if (p_lost < kNegligible) continue;
    for (int64_t gained = 0; gained <= n - lost; ++gained) {
      const double p = p_lost * binomial(n - lost, gained, rates.gained / (1.0 - rates.lost));
      if (p < kNegligible) continue;
      if (tango_lower({n, lost, gained}, alpha) > truth) misses.lower += p;
      if (tango_upper({n, lost, gained}, alpha) < truth) misses.upper += p;
    }
  }
  return misses;
}

Misses bootstrap_misses(const LossModel& model, double alpha, const Repeats& repeats) {
  const auto shares = shares_of<2>(repeats, [&](SplitMix64& random, auto& counts) {
    const LossRatio ratio = draw_ratio(model, alpha, repeats, random);
    if (ratio.lower > model.ratio_minus_1) ++counts[0];
    if (ratio.upper < model.ratio_minus_1) ++counts[1];
  });
  return {shares[0], shares[1]};
}

AdmissionRates admission_rates(const Admission& admission, const Repeats& repeats) {
  const BinomialDraws math(admission.math_cases, admission.math_loss);
  const BinomialDraws retrieval(admission.retrieval_cases, admission.retrieval_loss);
  const double alpha = admission.alpha;
  const auto shares = shares_of<4>(repeats, [&](SplitMix64& random, auto& counts) {
    bool bound = false, some = false, every = true, degraded = false;
    for (int64_t arm = 0; arm < admission.arms; ++arm) {
      ArmEvents events;
      events.add(preservation_verdict({admission.math_cases, math.draw(random), 0}, alpha).verdict);
      for (int length = 0; length < 2; ++length) {
        events.add(retrieval_verdict({admission.retrieval_cases, retrieval.draw(random), 0}, alpha).verdict);
      }
      events.add(loss_verdict(draw_ratio(admission.loss, alpha, repeats, random)).verdict);
      bound = bound || events.any_pass;
      some = some || events.all_pass;
      every = every && events.all_pass;
      degraded = degraded || events.degraded;
    }
    counts[0] += bound ? 1 : 0;
    counts[1] += some ? 1 : 0;
    counts[2] += every ? 1 : 0;
    counts[3] += degraded ? 1 : 0;
  });
  return {shares[0], shares[1], shares[2], shares[3]};
}

LookShares simulate_looks(std::span<const Look> looks, double limit, double loss_rate, const Repeats& repeats) {
  const std::vector<LookRule> rules = look_rules(looks, limit);
  std::vector<BinomialDraws> draws;
  for (size_t i = 0; i < looks.size(); ++i) {
    draws.emplace_back(looks[i].cases - (i == 0 ? 0 : looks[i - 1].cases), loss_rate);
  }
  const auto shares = shares_of<4>(repeats, [&](SplitMix64& random, auto& counts) {
    int64_t lost = 0;
    for (size_t i = 0; i < looks.size(); ++i) {
      lost += draws[i].draw(random);
      if (lost <= rules[i].pass_most) return static_cast<void>(++counts[0]);
      if (lost >= rules[i].degraded_from) return static_cast<void>(++counts[1]);
      if (lost >= rules[i].hopeless_from) return static_cast<void>(++counts[2]);
    }
    ++counts[3];
  });
  return {shares[0], shares[1], shares[2], shares[3]};
}

double tango_pass_share(std::span<const Look> looks, double margin, const PairedRates& rates, const Repeats& repeats) {
  const auto shares = shares_of<1>(repeats, [&](SplitMix64& random, auto& counts) {
    PairedCounts so_far;
    for (const Look& look : looks) {
      for (; so_far.n < look.cases; ++so_far.n) {
        const double at = uniform(random);
        so_far.lost += at < rates.lost ? 1 : 0;
        so_far.gained += at > 1.0 - rates.gained ? 1 : 0;
      }
      if (tango_lower(so_far, look.level) >= margin) return static_cast<void>(++counts[0]);
    }
  });
  return shares[0];
}

}  // namespace asymkv::stats
