#pragma once

#include "asymkv/kernels/cuda/cuda_support.h"
#include "asymkv/ops/attention.h"

namespace asymkv::cuda {

// attend with params in host memory, through the decode kernel: stored keys from their pages, fresh keys from scratch
// pages of 16-bit rows, the two results and the sinks joined by the law of ops/softmax_state.h. Params were checked.
void attend_from_host(const AttendParams& params);

}  // namespace asymkv::cuda
