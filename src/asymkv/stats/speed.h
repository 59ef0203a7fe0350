#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "asymkv/stats/significance.h"

namespace asymkv::stats {

// Rates of one counterbalanced block that ran both arms, in any unit in which more is faster (tokens/s, requests/s).
struct SpeedBlock {
  double candidate;
  double control;
};

// One declared hypothesis: the blocks of one workload, and how many primary requests failed in them.
struct SpeedHypothesis {
  std::vector<SpeedBlock> blocks;
  int64_t failed_requests = 0;
};

struct SpeedRules {
  double min_effect = 0.01;  // the median ratio must be beyond 1 + min_effect, or below 1 / (1 + min_effect)
  double alpha = 0.05;       // family-wise, Holm over the hypotheses
};

enum class SpeedVerdict { kFaster, kSlower, kNotShown, kInvalid };
std::string_view speed_verdict_name(SpeedVerdict verdict);   // for JSON: "faster", "slower", "not_shown", "invalid"
std::string_view speed_verdict_words(SpeedVerdict verdict);  // for people: "no difference shown", ...

struct SpeedDecision {
  int64_t faster;  // blocks
  int64_t slower;
  int64_t ties;         // dropped from the sign test
  double median_ratio;  // candidate / control over all blocks, ties included: exp of the median log ratio
  PValue sign;          // exact, two-sided; 1 if all blocks are ties
  PValue sign_holm;
  bool significant;      // sign_holm <= alpha
  bool large;            // the median-effect screen
  bool valid;            // no failed primary request
  SpeedVerdict verdict;  // faster or slower only if all three hold and the median agrees with the signs
};

// One decision a hypothesis, in order. Throws Error{kUsage} on an empty list, a hypothesis without blocks, a rate that
// is not positive and finite, negative failed_requests, min_effect outside [0, 10] and alpha outside (0, 0.5).
std::vector<SpeedDecision> decide_speed(std::span<const SpeedHypothesis> hypotheses, const SpeedRules& rules = {});

}  // namespace asymkv::stats
