#pragma once

#include <cstdint>

#include "asymkv/kernels/cpu/attend_plan.h"
#include "asymkv/ops/attention.h"

namespace asymkv::cpu {

// How a finished row is written: out = gathered sums * factor.
struct FinalRow {
  float factor = 0.0F;
};

// Adds the sink's weight, writes the row's LSE if asked for. head_row: index into [rows, num_q_heads]; max: base-2
// logit; sum: of the weights relative to it.
FinalRow final_row(const AttendParams& params, int64_t head_row, float max, float sum);

// Merges the splits of one block in order (the law of SoftmaxState::merge, base 2) and writes its rows.
void merge_splits(const AttendParams& params, const MergeTask& task, float* partials);

}  // namespace asymkv::cpu
