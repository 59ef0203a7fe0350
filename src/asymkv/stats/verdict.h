#pragma once

#include <string_view>

#include "asymkv/stats/bootstrap.h"
#include "asymkv/stats/intervals.h"

namespace asymkv::stats {

enum class Verdict {
  kPass,            // the bound clears the limit
  kUninformative,   // native itself missed the protocol's floor: decided by the caller, before any bound
  kNotEstablished,  // the bound does not clear the limit, and degradation is not shown either
  kDegraded,        // the opposite bound lies beyond the limit
};

std::string_view verdict_name(Verdict verdict);   // for JSON: "pass", "uninformative", "not_established", "degraded"
std::string_view verdict_words(Verdict verdict);  // for people: the same with spaces
// Reads verdict_name's words back. Throws Error{kBadInput} on any other word.
Verdict parse_verdict(std::string_view name);

inline constexpr double kPreservationLimit = 0.02;
inline constexpr double kRetrievalLimit = 0.05;
inline constexpr double kLossLimit = 0.01;
inline constexpr double kAggregateMargin = -0.01;

// Every number a verdict was made of; fractions. alpha is that of each bound.
struct GrossLossVerdict {
  Verdict verdict;
  PairedCounts counts;
  double alpha;
  double limit;
  double gross_loss;  // lost / n
  double upper;       // Clopper-Pearson; pass when upper <= limit
  double lower;       // degraded when lower > limit
};

struct NetChangeVerdict {
  Verdict verdict;
  PairedCounts counts;
  double alpha;
  double margin;
  double net_change;  // (gained - lost) / n
  double lower;       // Tango; pass when lower >= margin
  double upper;       // degraded when upper < margin
};

struct LossVerdict {
  Verdict verdict;
  LossRatio ratio;  // pass when ratio.upper <= limit, degraded when ratio.lower > limit
  double limit;
};

// Answer preservation, and with limit = kRetrievalLimit retrieval at one context length.
// Throws Error{kUsage} on bad counts (check_counts), alpha outside (0, 0.5) or limit outside (0, 1).
GrossLossVerdict preservation_verdict(const PairedCounts& counts, double alpha, double limit = kPreservationLimit);
GrossLossVerdict retrieval_verdict(const PairedCounts& counts, double alpha, double limit = kRetrievalLimit);

// Aggregate accuracy. margin is in (-1, 0).
NetChangeVerdict aggregate_verdict(const PairedCounts& counts, double alpha, double margin = kAggregateMargin);

// Prediction loss, from bootstrap_loss_ratio. limit is finite and >= 0.
LossVerdict loss_verdict(const LossRatio& ratio, double limit = kLossLimit);

}  // namespace asymkv::stats
