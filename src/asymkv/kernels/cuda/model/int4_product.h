#pragma once

#include <cstdint>

#include "asymkv/kernels/cuda/model/int4_weights.h"

// Products with matrices of 4-bit codes. One launch each on current_stream(), with pointers to device memory.
namespace asymkv::cuda {

struct Int4Matrix {
  const uint32_t* codes = nullptr;  // Int4Weights
  const Int4Scale* scales = nullptr;
  int64_t rows = 0;
  int64_t padded_rows = 0;
  int64_t in = 0;
  int64_t group = 0;  // inputs of a scale: 32, 64 or 128
};

// Rows of activations of one launch.
constexpr int64_t kInt4ProductRows = 32;

// y[num_rows, rows] = x[num_rows, in] * matrix^T (+ y): codes are multiplied as they are, each group's sum, in FP32, by
// its scale. num_rows <= kInt4ProductRows.
struct Int4ProductParams {
  Int4Matrix matrix;
  const void* x = nullptr;  // BF16
  int64_t num_rows = 0;
  void* y = nullptr;
  bool y_is_bf16 = false;  // else FP32
  bool accumulate = false;
};
void launch_int4_product(const Int4ProductParams& params);

// Every value rounded to BF16, [rows, in].
void launch_int4_widen(const Int4Matrix& matrix, void* to);

}  // namespace asymkv::cuda
