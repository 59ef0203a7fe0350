#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "asymkv/kernels/cpu/model/cpu_model.h"
#include "asymkv/kernels/cpu/scratch.h"
#include "asymkv/ops/model_ops.h"

namespace asymkv::cpu {

// Working memory of linear(), kept between calls; calls from several threads each take their own.
struct LinearScratch {
  FloatBuffer codes;     // [rows, groups * 32] 16-bit codes
  FloatBuffer x_scales;  // [rows, groups] scales, then as many sums
  FloatBuffer padded_x;  // [rows, depth], where the matrix's rows are not whole groups
  struct Thread {
    FloatBuffer tile;  // widened or unpacked weights
    FloatBuffer sums;
  };
  std::vector<Thread> threads;
};

// One product on all threads. A few rows of activations multiply the stored weights directly, each weight read once for
// up to four rows; more rows share tiles of widened weights (kF32) or unpacked codes (k16). Both give the same bits:
// linear_f32-inl.h and linear_i16-inl.h say which sums. k16 rounds activations where they meet quantised weights that
// have a SIMD kernel and leaves the rest in FP32.
void run_linear(const LinearParams& params, Activations activations, LinearScratch& scratch);

}  // namespace asymkv::cpu
