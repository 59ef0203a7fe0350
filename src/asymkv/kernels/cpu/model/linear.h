#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "asymkv/kernels/cpu/scratch.h"
#include "asymkv/ops/model_ops.h"

namespace asymkv::cpu {

// Working memory of linear(), kept between calls; calls from several threads each take their own.
struct LinearScratch {
  FloatBuffer padded_x;  // [rows, depth], where the matrix's rows are not whole groups
  struct Thread {
    FloatBuffer tile;  // widened weights
    FloatBuffer sums;
  };
  std::vector<Thread> threads;
};

// One product on all threads. Up to kStoredKernelRows rows of activations multiply the stored weights directly, each
// weight read once; more rows share tiles of widened weights. Both give the same bits (linear_f32-inl.h).
void run_linear(const LinearParams& params, LinearScratch& scratch);

}  // namespace asymkv::cpu
