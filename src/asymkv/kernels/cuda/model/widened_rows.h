#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "asymkv/device/device.h"
#include "asymkv/kernels/cuda/model/row_slots.h"
#include "asymkv/tensor/weight_matrix.h"

namespace asymkv::cuda {

// Exact FP32 rows of a matrix that the device holds rounded, if at all: for looking up tokens, of which a text has few
// different ones. A row is widened and brought over when it is first asked for.
class WidenedRows {
 public:
  explicit WidenedRows(const WeightMatrix& matrix);
  int64_t bytes() const { return rows_.bytes(); }
  const float* data() const { return rows_.as<float>(); }
  // Where in data() these rows of the matrix are, for launches after the call; nothing if there are too many of them.
  std::optional<std::vector<int32_t>> find(const WeightMatrix& matrix, std::span<const int32_t> rows);

 private:
  int64_t row_bytes_ = 0;
  DeviceBuffer rows_;
  RowSlots slots_;
};

}  // namespace asymkv::cuda
