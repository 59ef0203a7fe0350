#include "asymkv/kernels/cpu/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace asymkv::cpu {

FinalRow final_row(const AttendParams& params, int64_t head_row, float max, float sum) {
  float top = max;
  float total = sum;
  float keep = 1.0F;
  if (params.sinks != nullptr) {
    const float sink = params.sinks[head_row % params.num_q_heads] * std::numbers::log2e_v<float>;
    top = std::max(max, sink);
    keep = sum == 0.0F ? 0.0F : std::exp2(max - top);
    total = sum * keep + std::exp2(sink - top);
  }
  if (params.lse != nullptr) {
    params.lse[head_row] =
        total == 0.0F ? -std::numeric_limits<float>::infinity() : (top + std::log2(total)) * std::numbers::ln2_v<float>;
  }
  return {total == 0.0F ? 0.0F : keep / total};
}

namespace {

// Adds row `row` of a split to the running state (max, sum, out) that lives in split 0.
void merge_row(float* into, const float* from, int64_t rows, int64_t row, int64_t v_head_dim) {
  float& max = into[rows * v_head_dim + row];
  float& sum = into[rows * (v_head_dim + 1) + row];
  const float other_max = from[rows * v_head_dim + row];
  const float other_sum = from[rows * (v_head_dim + 1) + row];
  if (other_sum == 0.0F) return;  // an empty split is the identity
  const float new_max = std::max(max, other_max);
  const float mine = sum == 0.0F ? 0.0F : std::exp2(max - new_max);
  const float theirs = std::exp2(other_max - new_max);
  sum = sum * mine + other_sum * theirs;
  float* out = into + row * v_head_dim;
  const float* other = from + row * v_head_dim;
  for (int64_t c = 0; c < v_head_dim; ++c) out[c] = out[c] * mine + other[c] * theirs;
  max = new_max;
}

}  // namespace

void merge_splits(const AttendParams& params, const MergeTask& task, float* partials) {
  const int64_t group = params.num_q_heads / params.num_kv_heads;
  const int64_t rows = (task.query_end - task.query_begin) * group;
  const AttendSequence& sequence = params.sequences[static_cast<size_t>(task.sequence_idx)];
  float* state = partials + task.first_offset;
  for (int64_t split = 1; split < task.num_splits; ++split) {
    const float* other = state + split * task.stride;
    for (int64_t r = 0; r < rows; ++r) merge_row(state, other, rows, r, params.v_head_dim);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t query = sequence.query_row + task.query_begin + r / group;
    const int64_t head_row = query * params.num_q_heads + task.kv_head * group + r % group;
    const float max = state[rows * params.v_head_dim + r];
    const float sum = state[rows * (params.v_head_dim + 1) + r];
    const FinalRow row = final_row(params, head_row, max, sum);
    float* to = params.out + head_row * params.v_head_dim;
    for (int64_t c = 0; c < params.v_head_dim; ++c) to[c] = state[r * params.v_head_dim + c] * row.factor;
  }
}

}  // namespace asymkv::cpu
