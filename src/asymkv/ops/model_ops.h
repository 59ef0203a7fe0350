#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "asymkv/kv/rope.h"
#include "asymkv/tensor/weight_matrix.h"

namespace asymkv {

// y[rows, out] = x[rows, in] * w[out, in]^T (+ bias[out]) (+ y, if accumulate). out and in are the matrix's rows and
// row length. FP32 accumulation; what the activations are rounded to is the backend's, named in its name(). A row's
// result depends on that row alone: not on the other rows of the call and not on the number of threads.
struct LinearParams {
  int64_t rows = 0;
  const float* x = nullptr;
  const WeightMatrix* w = nullptr;
  const float* bias = nullptr;  // may be null
  float* y = nullptr;
  bool accumulate = false;
};

// y = x / sqrt(mean(x^2) + eps) * weight, row by row; x and y are [rows, dim] and may be the same.
struct RmsNormParams {
  int64_t rows = 0;
  int64_t dim = 0;
  float eps = 0.0F;
  const float* x = nullptr;
  const float* weight = nullptr;  // [dim]
  float* y = nullptr;
};

// Everything of a decoder layer that is not attention, on one device.
class ModelBackend {
 public:
  virtual ~ModelBackend() = default;
  virtual std::string_view name() const = 0;
  virtual void linear(const LinearParams& params) const = 0;
  virtual void rms_norm(const RmsNormParams& params) const = 0;
  // y[rows, dim] = silu(gate) * up, where gate_up is [rows, gate dim | up dim].
  virtual void silu_mul(int64_t rows, int64_t dim, const float* gate_up, float* y) const = 0;
  // y[rows, dim] = gelu(gate) * up, laid out the same; gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
  // Throws Error{kUnsupported} on a backend that has none.
  virtual void gelu_mul(int64_t rows, int64_t dim, const float* gate_up, float* y) const;
  // RoPE in place on x [rows, num_heads, head_dim], one position a row.
  virtual void rotate(const RopeTable& rope, std::span<const int32_t> positions, int64_t num_heads, float* x) const = 0;
};

}  // namespace asymkv
