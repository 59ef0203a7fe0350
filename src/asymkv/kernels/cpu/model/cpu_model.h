#pragma once

#include <memory>

#include "asymkv/ops/model_ops.h"

namespace asymkv {

// Highway kernels with run-time dispatch; weights are read as stored and widened exactly in registers or small tiles.
// Named after the SIMD target and what activations are kept in: "cpu-avx2-a32" multiplies FP32 activations.
// "cpu-avx2-a16" rounds activations to 16 bits in groups of 32 where they meet quantised weights with a SIMD kernel:
// exact integer products of the codes, about 2^-16 of a group's largest value off. Under both a row's bits do not
// depend on its batch. Gates use kF32.
std::shared_ptr<const ModelBackend> make_cpu_model_backend(Activations activations = Activations::kF32);

}  // namespace asymkv
