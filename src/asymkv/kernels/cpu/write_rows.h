#pragma once

#include "asymkv/ops/attention.h"

namespace asymkv::cpu {

struct TargetCounters {
  SideCounters k;
  SideCounters v;
};

// Writes tokens [begin, end) of a call to all its targets and fresh outputs, in one pass over k and v. counters:
// [targets], added to.
void write_tokens(const WriteKvParams& params, int64_t begin, int64_t end, TargetCounters* counters);

}  // namespace asymkv::cpu
