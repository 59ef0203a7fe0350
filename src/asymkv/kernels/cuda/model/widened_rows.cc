#include "asymkv/kernels/cuda/model/widened_rows.h"

#include <algorithm>

namespace asymkv::cuda {
namespace {

constexpr int64_t kTableBytes = int64_t{64} << 20;

int64_t capacity_of(const WeightMatrix& matrix) {
  const int64_t rows = kTableBytes / (matrix.in() * static_cast<int64_t>(sizeof(float)));
  return std::clamp<int64_t>(rows, 1, std::max<int64_t>(1, matrix.rows()));
}

}  // namespace

WidenedRows::WidenedRows(const WeightMatrix& matrix)
    : row_bytes_(matrix.in() * static_cast<int64_t>(sizeof(float))),
      rows_(capacity_of(matrix) * row_bytes_),
      slots_(capacity_of(matrix)) {}

std::optional<std::vector<int32_t>> WidenedRows::find(const WeightMatrix& matrix, std::span<const int32_t> rows) {
  try {
    std::optional<RowSlots::Answer> found = slots_.find(rows);
    if (!found) return std::nullopt;
    if (!found->missing.empty()) {
      const std::vector<float> values = matrix.widen_rows(found->missing);
      rows_.upload(std::as_bytes(std::span(values)), found->first_missing * row_bytes_);
    }
    return std::move(found->slots);
  } catch (...) {
    slots_ = RowSlots(capacity_of(matrix));  // what they were to hold may not be there
    throw;
  }
}

}  // namespace asymkv::cuda
