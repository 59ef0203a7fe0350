#include "asymkv/kernels/cpu/simd_kernels.h"

// SSSE3 and AVX3_DL would only repeat their neighbours; vectors of unknown length cannot be kept in arrays.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "asymkv/kernels/cpu/simd_kernels.cc"
#include "hwy/foreach_target.h"  // first of the SIMD headers
//
#include "asymkv/kernels/cpu/attend_block-inl.h"
#include "asymkv/kernels/cpu/attend_query-inl.h"
#include "asymkv/kernels/cpu/tile_math-inl.h"
#include "asymkv/kernels/cpu/write_rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu {
namespace HWY_NAMESPACE {

void attend_task(const AttendParams& params, const AttendTask& task, Scratch& scratch, float* partials) {
  if (task.query_end - task.query_begin == 1) {
    QueryAttention(params, task, scratch).run(partials);
  } else {
    BlockAttention(params, task, scratch).run(partials);
  }
}

void write_tokens(const WriteKvParams& params, int64_t begin, int64_t end, TargetCounters* counters) {
  RowWriter writer(params, counters);
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t head = 0; head < params.geometry.num_kv_heads; ++head) writer.write(token, head);
  }
}

void exp2_all(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = hn::GetLane(exp2_of(broadcast(in[i])));
}

SimdKernels simd_kernels() {
#if HWY_TARGET == HWY_AVX3
  constexpr std::string_view kName = "cpu-avx512";
#elif HWY_TARGET == HWY_AVX2
  constexpr std::string_view kName = "cpu-avx2";
#elif HWY_TARGET == HWY_SSE4
  constexpr std::string_view kName = "cpu-sse4";
#elif HWY_TARGET == HWY_NEON
  constexpr std::string_view kName = "cpu-neon";
#else
  constexpr std::string_view kName = "cpu-scalar";
#endif
  return {kName, &attend_task, &write_tokens, &exp2_all};
}

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace asymkv::cpu {

HWY_EXPORT(simd_kernels);

std::vector<SimdKernels> available_simd_kernels() {
  std::vector<SimdKernels> kernels;
  const int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  // A lower bit is a better target. The chosen target is put back at the end.
  for (int64_t rest = supported; rest != 0; rest &= rest - 1) {
    hwy::GetChosenTarget().Update(rest & -rest);
    kernels.push_back(HWY_DYNAMIC_DISPATCH(simd_kernels)());
  }
  hwy::GetChosenTarget().Update(supported);
  return kernels;
}

}  // namespace asymkv::cpu
#endif
