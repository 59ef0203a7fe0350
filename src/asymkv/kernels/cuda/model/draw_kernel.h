#pragma once

#include <cstdint>

#include "asymkv/ops/sampling.h"

// Tokens drawn where the logits are.
namespace asymkv::cuda {

constexpr int32_t kNoToken = -1;

// draw_token() of each row of x [rows, dim] into tokens [rows], or kNoToken for a row with an element that is not
// finite. Weights are summed in FP64 by parts: a token may differ from the host's where `uniform` falls on a bound to
// within rounding. law.temperature > 0; pointers but the law's are device memory; launches on current_stream().
struct DrawParams {
  int64_t rows = 0;
  int64_t dim = 0;
  const float* x = nullptr;
  const double* uniforms = nullptr;  // [rows]
  int32_t* tokens = nullptr;
  SamplingLaw law;
};
// Returns the cudaError_t of the sort.
int launch_draw(const DrawParams& params);

}  // namespace asymkv::cuda
