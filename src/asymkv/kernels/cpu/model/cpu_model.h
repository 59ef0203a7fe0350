#pragma once

#include <memory>

#include "asymkv/ops/model_ops.h"

namespace asymkv {

// Highway kernels with run-time dispatch; weights are read as stored and widened exactly in registers or small tiles.
// Named after the SIMD target and what activations are kept in: "cpu-avx2-a32" multiplies FP32 activations.
std::shared_ptr<const ModelBackend> make_cpu_model_backend();

}  // namespace asymkv
