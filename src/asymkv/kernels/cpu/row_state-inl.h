// What a task has gathered for its query rows, and where it goes; compiled once per SIMD target.
#if defined(ASYMKV_KERNELS_CPU_ROW_STATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASYMKV_KERNELS_CPU_ROW_STATE_INL_H_
#undef ASYMKV_KERNELS_CPU_ROW_STATE_INL_H_
#else
#define ASYMKV_KERNELS_CPU_ROW_STATE_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <numbers>

#include "asymkv/kernels/cpu/attend_plan.h"
#include "asymkv/kernels/cpu/merge.h"
#include "asymkv/kernels/cpu/tile_math-inl.h"
#include "asymkv/ops/attention.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu {
namespace HWY_NAMESPACE {

// Row r of a task is query r / group, head r % group: neighbouring rows see nearly the same keys. The index into
// [rows of the call, num_q_heads].
HWY_INLINE int64_t head_row(const AttendParams& params, const AttendTask& task, int64_t row) {
  const int64_t group = params.num_q_heads / params.num_kv_heads;
  const AttendSequence& sequence = params.sequences[static_cast<size_t>(task.sequence_idx)];
  const int64_t query = sequence.query_row + task.query_begin + row / group;
  return query * params.num_q_heads + task.kv_head * group + row % group;
}

// Scores are base-2 logits; with a soft cap they stay natural until the cap is applied.
HWY_INLINE float query_factor(const AttendParams& params) {
  return params.softmax_scale * (params.logit_soft_cap > 0.0F ? 1.0F : std::numbers::log2e_v<float>);
}

HWY_INLINE VecF32 capped(VecF32 scores, float soft_cap) {
  const VecF32 cap = broadcast(soft_cap * std::numbers::log2e_v<float>);
  return hn::Mul(cap, hn::Tanh(F32(), hn::Mul(scores, broadcast(1.0F / soft_cap))));
}

// The online softmax of all rows of a task.
struct RowState {
  int64_t rows = 0;
  int64_t output_stride = 0;
  const float* outputs = nullptr;  // [rows, v_head_dim] by output_stride: weighted sums
  const float* maxima = nullptr;   // [rows], base-2 logits
  const float* sums = nullptr;     // [rows, kLanes]: sums of weights of the keys whose place in their tile is a lane's
};

// Writes the output rows, or the partial state that the plan asks for.
HWY_INLINE void write_rows(const AttendParams& params, const AttendTask& task, const RowState& state, float* partials) {
  const int64_t dim = params.v_head_dim;
  for (int64_t r = 0; r < state.rows; ++r) {
    const float sum = hn::GetLane(hn::SumOfLanes(F32(), load(state.sums, r * kLanes)));
    const float* from = state.outputs + r * state.output_stride;
    if (task.partial_offset >= 0) {
      float* partial = partials + task.partial_offset;
      std::copy_n(from, dim, partial + r * dim);
      partial[state.rows * dim + r] = state.maxima[r];
      partial[state.rows * (dim + 1) + r] = sum;
      continue;
    }
    const int64_t place = head_row(params, task, r);
    const FinalRow row = final_row(params, place, state.maxima[r], sum);
    for (int64_t c = 0; c < dim; ++c) params.out[place * dim + c] = from[c] * row.factor;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
