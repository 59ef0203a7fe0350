#include "asymkv/stats/verdict.h"

#include <array>
#include <cmath>

#include "asymkv/base/error.h"
#include "asymkv/stats/internal.h"

namespace asymkv::stats {
namespace {

struct VerdictText {
  Verdict verdict;
  std::string_view name;
  std::string_view words;
};
constexpr std::array<VerdictText, 4> kVerdicts = {{{Verdict::kPass, "pass", "pass"},
                                                   {Verdict::kUninformative, "uninformative", "uninformative"},
                                                   {Verdict::kNotEstablished, "not_established", "not established"},
                                                   {Verdict::kDegraded, "degraded", "degraded"}}};

const VerdictText& text(Verdict verdict) {
  for (const VerdictText& entry : kVerdicts) {
    if (entry.verdict == verdict) return entry;
  }
  throw_error(ErrorCode::kInternal, "verdict {} has no name", static_cast<int>(verdict));
}

Verdict decide(bool clears, bool degradation_shown) {
  if (clears) return Verdict::kPass;
  return degradation_shown ? Verdict::kDegraded : Verdict::kNotEstablished;
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  return text(verdict).name;
}
std::string_view verdict_words(Verdict verdict) {
  return text(verdict).words;
}

Verdict parse_verdict(std::string_view name) {
  for (const VerdictText& entry : kVerdicts) {
    if (entry.name == name) return entry.verdict;
  }
  throw_bad_input("unknown verdict '{}': use pass, uninformative, not_established or degraded", name);
}

GrossLossVerdict preservation_verdict(const PairedCounts& counts, double alpha, double limit) {
  check_counts(counts);
  internal::check_open_unit(limit, "limit");
  const double upper = clopper_pearson_upper(counts.lost, counts.n, alpha);
  const double lower = clopper_pearson_lower(counts.lost, counts.n, alpha);
  return {.verdict = decide(upper <= limit, lower > limit),
          .counts = counts,
          .alpha = alpha,
          .limit = limit,
          .gross_loss = counts.gross_loss(),
          .upper = upper,
          .lower = lower};
}

GrossLossVerdict retrieval_verdict(const PairedCounts& counts, double alpha, double limit) {
  return preservation_verdict(counts, alpha, limit);
}

NetChangeVerdict aggregate_verdict(const PairedCounts& counts, double alpha, double margin) {
  if (!(margin > -1.0 && margin < 0.0)) {
    throw_usage("margin must lie between -1 and 0 (both excluded), but it is {}", margin);
  }
  const double lower = tango_lower(counts, alpha);
  const double upper = tango_upper(counts, alpha);
  return {.verdict = decide(lower >= margin, upper < margin),
          .counts = counts,
          .alpha = alpha,
          .margin = margin,
          .net_change = counts.net_change(),
          .lower = lower,
          .upper = upper};
}

LossVerdict loss_verdict(const LossRatio& ratio, double limit) {
  if (!(std::isfinite(limit) && limit >= 0.0)) throw_usage("the loss limit must be a number >= 0, but it is {}", limit);
  if (!(ratio.lower <= ratio.upper)) {
    throw_usage("the loss ratio's bounds must be numbers in order, but they are {} and {}", ratio.lower, ratio.upper);
  }
  return {.verdict = decide(ratio.upper <= limit, ratio.lower > limit), .ratio = ratio, .limit = limit};
}

}  // namespace asymkv::stats
