#pragma once

#include <string_view>
#include <vector>

#include "asymkv/kernels/cpu/attend_plan.h"
#include "asymkv/kernels/cpu/scratch.h"

namespace asymkv::cpu {

struct TargetCounters {
  SideCounters k;
  SideCounters v;
};

// The entry points of one SIMD target. No SIMD type leaves simd_kernels.cc.
struct SimdKernels {
  std::string_view name;  // "cpu-avx2", ...
  // Runs one task of a plan. partials: the plan's partial_floats, may be null if it has none.
  void (*attend_task)(const AttendParams& params, const AttendTask& task, Scratch& scratch, float* partials) = nullptr;
  // Writes tokens [begin, end) of a call to all its targets and fresh outputs, in one pass over k and v; the bytes are
  // those of kv/codec. counters: [targets], added to.
  void (*write_tokens)(const WriteKvParams& params, int64_t begin, int64_t end, TargetCounters* counters) = nullptr;
  // exp2 of each element, as the softmax uses it (for tests): inputs <= 0, below -126 gives 0.
  void (*exp2_all)(const float* in, float* out, int64_t count) = nullptr;
};

// Of this build and machine, best first.
std::vector<SimdKernels> available_simd_kernels();

}  // namespace asymkv::cpu
