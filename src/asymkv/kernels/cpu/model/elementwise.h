#pragma once

#include <cstdint>

#include "asymkv/ops/model_ops.h"

namespace asymkv::cpu {

// Rows [0, params.rows) of RMS norm.
void rms_norm_rows(const RmsNormParams& params);
// y[i] = gate[i] / (1 + exp(-gate[i])) * up[i] for i in [0, dim).
void silu_mul_row(int64_t dim, const float* gate, const float* up, float* y);
// y[i] = gelu(gate[i]) * up[i] with the tanh form of model_ops.h.
void gelu_mul_row(int64_t dim, const float* gate, const float* up, float* y);
// Rotates one head in place by the given cosines and sines, rotate-half.
void rotate_head(int64_t num_pairs, const float* cosine, const float* sine, float* x);

}  // namespace asymkv::cpu
