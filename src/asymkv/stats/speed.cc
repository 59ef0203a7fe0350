#include "asymkv/stats/speed.h"

#include <algorithm>
#include <cmath>

#include "asymkv/base/error.h"
#include "asymkv/stats/internal.h"

namespace asymkv::stats {
namespace {

void check_rate(double rate, std::string_view name, size_t block) {
  if (rate > 0.0 && std::isfinite(rate)) return;
  throw_usage("block {}: the {} rate must be positive and finite, but it is {}", block + 1, name, rate);
}

void check_hypothesis(const SpeedHypothesis& hypothesis) {
  if (hypothesis.blocks.empty()) throw_usage("a speed decision needs at least one block");
  if (hypothesis.failed_requests < 0) {
    throw_usage("failed requests must not be negative, but there are {}", hypothesis.failed_requests);
  }
  for (size_t i = 0; i < hypothesis.blocks.size(); ++i) {
    check_rate(hypothesis.blocks[i].candidate, "candidate", i);
    check_rate(hypothesis.blocks[i].control, "control", i);
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2.0;
}

SpeedDecision observe(const SpeedHypothesis& hypothesis, double min_effect) {
  SpeedDecision decision{};
  std::vector<double> log_ratios;
  for (const auto& [candidate, control] : hypothesis.blocks) {
    decision.faster += candidate > control ? 1 : 0;
    decision.slower += candidate < control ? 1 : 0;
    decision.ties += candidate == control ? 1 : 0;
    log_ratios.push_back(std::log(candidate) - std::log(control));
  }
  const double middle = median(std::move(log_ratios));
  const int64_t signs = decision.faster + decision.slower;
  decision.median_ratio = std::exp(middle);
  decision.sign = signs == 0 ? PValue{1.0, 0.0} : sign_test(decision.faster, signs);
  decision.large = std::abs(middle) > std::log1p(min_effect);
  decision.valid = hypothesis.failed_requests == 0;
  return decision;
}

SpeedVerdict judge(const SpeedDecision& decision) {
  if (!decision.valid) return SpeedVerdict::kInvalid;
  if (!decision.significant || !decision.large) return SpeedVerdict::kNotShown;
  const bool up = decision.median_ratio > 1.0;
  if (up != (decision.faster > decision.slower)) return SpeedVerdict::kNotShown;
  return up ? SpeedVerdict::kFaster : SpeedVerdict::kSlower;
}

}  // namespace

std::string_view speed_verdict_name(SpeedVerdict verdict) {
  switch (verdict) {
    case SpeedVerdict::kFaster:
      return "faster";
    case SpeedVerdict::kSlower:
      return "slower";
    case SpeedVerdict::kNotShown:
      return "not_shown";
    case SpeedVerdict::kInvalid:
      return "invalid";
  }
  return "invalid";
}

std::string_view speed_verdict_words(SpeedVerdict verdict) {
  if (verdict == SpeedVerdict::kNotShown) return "no difference shown";
  return verdict == SpeedVerdict::kInvalid ? "invalid: requests failed" : speed_verdict_name(verdict);
}

std::vector<SpeedDecision> decide_speed(std::span<const SpeedHypothesis> hypotheses, const SpeedRules& rules) {
  internal::check_alpha(rules.alpha);
  if (!(rules.min_effect >= 0.0 && rules.min_effect <= 10.0)) {
    throw_usage("the smallest effect must lie between 0 and 10, but it is {}", rules.min_effect);
  }
  if (hypotheses.empty()) throw_usage("the list of speed hypotheses is empty: give at least one");
  std::vector<SpeedDecision> decisions;
  std::vector<double> p, log10_p;
  for (const SpeedHypothesis& hypothesis : hypotheses) {
    check_hypothesis(hypothesis);
    decisions.push_back(observe(hypothesis, rules.min_effect));
    p.push_back(decisions.back().sign.p);
    log10_p.push_back(decisions.back().sign.log10_p);
  }
  const std::vector<double> adjusted = holm(p), adjusted_log10 = holm_log10(log10_p);
  for (size_t i = 0; i < decisions.size(); ++i) {
    decisions[i].sign_holm = {adjusted[i], adjusted_log10[i]};
    decisions[i].significant = adjusted[i] <= rules.alpha;
    decisions[i].verdict = judge(decisions[i]);
  }
  return decisions;
}

}  // namespace asymkv::stats
