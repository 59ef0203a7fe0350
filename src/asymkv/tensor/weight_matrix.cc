#include "asymkv/tensor/weight_matrix.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/parallel.h"

namespace asymkv {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr size_t kHugePageBytes = 2 << 20;

// Memory of at least a huge page starts on one, and the system is asked for huge pages: a product reads whole matrices,
// with fewer address translations.
std::align_val_t alignment_of(size_t bytes) {
  return bytes < kHugePageBytes ? kAlignment : std::align_val_t{kHugePageBytes};
}

}  // namespace

void WeightMatrix::Free::operator()(std::byte* data) const {
  ::operator delete(data, alignment);
}

WeightMatrix::WeightMatrix(int64_t row_elems) : in_(row_elems) {
  ASYMKV_CHECK(row_elems > 0, "a matrix with rows of {} elements", row_elems);
}

WeightMatrix WeightMatrix::from_f32(int64_t rows, int64_t row_elems, std::span<const float> values) {
  ASYMKV_CHECK(static_cast<int64_t>(values.size()) == rows * row_elems, "{} values for {} rows of {}", values.size(),
               rows, row_elems);
  WeightMatrix matrix(row_elems);
  const std::span<std::byte> memory = matrix.append(GgmlType::kF32, rows);
  if (!values.empty()) std::memcpy(memory.data(), values.data(), values.size_bytes());
  return matrix;
}

std::span<std::byte> WeightMatrix::append(GgmlType type, int64_t num_rows) {
  const GgmlTypeTraits& traits = ggml_type_traits(type);
  ASYMKV_CHECK(in_ > 0 && num_rows >= 0, "{} rows of {} elements", num_rows, in_);
  if (in_ % traits.block_elems != 0) {
    throw_unsupported("a row of {} elements is no whole number of {} blocks of {}", in_, traits.name,
                      traits.block_elems);
  }
  WeightPart part;
  part.type = type;
  part.first_row = rows_;
  part.num_rows = num_rows;
  part.row_bytes = in_ / traits.block_elems * traits.block_bytes;
  const auto bytes = static_cast<size_t>(num_rows * part.row_bytes);
  const std::align_val_t alignment = alignment_of(bytes);
  auto* data = static_cast<std::byte*>(::operator new(bytes + static_cast<size_t>(kOverreadBytes), alignment));
  memory_.emplace_back(data, Free{alignment});
  if (bytes >= kHugePageBytes) ::madvise(data, bytes, MADV_HUGEPAGE);  // a hint: refused where there are none
  std::memset(data + bytes, 0, static_cast<size_t>(kOverreadBytes));
  part.data = data;
  parts_.push_back(part);
  rows_ += num_rows;
  return {data, bytes};
}

int64_t WeightMatrix::stored_bytes() const {
  int64_t bytes = 0;
  for (const WeightPart& part : parts_) bytes += part.num_rows * part.row_bytes;
  return bytes;
}

void WeightMatrix::set_placed(std::shared_ptr<const PlacedWeights> placed, bool keep_host) {
  placed_ = std::move(placed);
  if (keep_host) return;
  parts_.clear();
  memory_.clear();
}

void WeightMatrix::widen_row(int64_t row, std::span<float> out) const {
  for (const WeightPart& part : parts_) {
    const int64_t part_row = row - part.first_row;
    if (part_row < 0 || part_row >= part.num_rows) continue;
    dequantize_ggml(part.type, {part.row(part_row), static_cast<size_t>(part.row_bytes)}, out);
    return;
  }
  throw_error(ErrorCode::kInternal, "row {} of a matrix with {} rows{}", row, rows_,
              parts_.empty() ? ", none of them in host memory" : "");
}

std::vector<float> WeightMatrix::widen_rows(std::span<const int32_t> rows) const {
  constexpr size_t kRowsATask = 32;
  const auto in = static_cast<size_t>(in_);
  std::vector<float> values(rows.size() * in);
  parallel_for(static_cast<int64_t>((rows.size() + kRowsATask - 1) / kRowsATask), [&](int64_t task, int) {
    const size_t begin = static_cast<size_t>(task) * kRowsATask;
    for (size_t i = begin; i < std::min(begin + kRowsATask, rows.size()); ++i) {
      widen_row(rows[i], std::span(values).subspan(i * in, in));
    }
  });
  return values;
}

}  // namespace asymkv
