#include "asymkv/kernels/cuda/model/widened_rows.h"

#include <algorithm>

namespace asymkv::cuda {
namespace {

constexpr int64_t kTableBytes = int64_t{64} << 20;

int64_t capacity_of(int64_t row_elems) {
  return std::max<int64_t>(1, kTableBytes / (row_elems * static_cast<int64_t>(sizeof(float))));
}

}  // namespace

WidenedRows::WidenedRows(int64_t row_elems)
    : row_elems_(row_elems),
      rows_(capacity_of(row_elems) * row_elems * static_cast<int64_t>(sizeof(float))),
      slots_(capacity_of(row_elems)) {}

std::optional<std::vector<int32_t>> WidenedRows::find(const WeightMatrix& matrix, std::span<const int32_t> rows) {
  std::optional<RowSlots::Answer> found = slots_.find(rows);
  if (!found) return std::nullopt;
  if (!found->missing.empty()) {
    try {
      const std::vector<float> values = matrix.widen_rows(found->missing);
      rows_.upload(std::as_bytes(std::span(values)),
                   found->first_missing * row_elems_ * static_cast<int64_t>(sizeof(float)));
    } catch (...) {
      slots_ = RowSlots(capacity_of(row_elems_));  // what they were to hold is not there
      throw;
    }
  }
  return std::move(found->slots);
}

}  // namespace asymkv::cuda
