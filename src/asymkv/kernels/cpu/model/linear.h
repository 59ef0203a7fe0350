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
  FloatBuffer codes;     // [rows, depth] 16-bit codes
  FloatBuffer x_scales;  // [rows, depth / 32] scales, then as many sums
  FloatBuffer padded_x;  // [rows, depth], where the matrix's rows are not whole groups
  struct Thread {
    FloatBuffer tile;  // widened weights
    FloatBuffer sums;
  };
  std::vector<Thread> threads;
};

// One product on all threads. Up to kStoredKernelRows rows of activations multiply the stored weights directly, each
// weight read once; more rows share tiles of widened weights. With FP32 activations both give the same bits
// (linear_f32-inl.h). kI16 rounds activations where few rows meet quantised weights and leaves the rest in FP32.
void run_linear(const LinearParams& params, Activations activations, LinearScratch& scratch);

}  // namespace asymkv::cpu
