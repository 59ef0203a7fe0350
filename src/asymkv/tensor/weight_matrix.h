#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "asymkv/tensor/ggml_quants.h"

namespace asymkv {

// Consecutive rows of one stored type, row after row without gaps, as in a GGUF or safetensors file.
struct WeightPart {
  GgmlType type = GgmlType::kF32;
  int64_t first_row = 0;  // of the matrix
  int64_t num_rows = 0;
  int64_t row_bytes = 0;
  const std::byte* data = nullptr;  // cache-line aligned; kOverreadBytes may be read past the last row

  const std::byte* row(int64_t part_row) const { return data + part_row * row_bytes; }
};

// A matrix as a device's products read it. Only the backend that made it knows more.
class PlacedWeights {
 public:
  virtual ~PlacedWeights() = default;
  virtual int64_t bytes() const = 0;          // of the device's memory
  virtual int64_t product_bytes() const = 0;  // of these, what a product reads
};

// A [rows, in] matrix kept as it is stored, in one part or in several stacked ones of different types (q, k and v;
// gate and up). It owns its bytes. Movable; a moved-from matrix is empty.
class WeightMatrix {
 public:
  // Bytes past the last row that kernels may read (and must not use).
  static constexpr int64_t kOverreadBytes = 64;

  WeightMatrix() = default;  // 0 x 0
  // row_elems > 0: elements of one row.
  explicit WeightMatrix(int64_t row_elems);

  // A matrix of one FP32 part with a copy of `values`, [rows, row_elems].
  static WeightMatrix from_f32(int64_t rows, int64_t row_elems, std::span<const float> values);

  // Appends num_rows rows and returns their memory, to be filled by the caller. Throws Error{kUnsupported} for a row
  // that is not whole blocks of `type`.
  std::span<std::byte> append(GgmlType type, int64_t num_rows);

  int64_t rows() const { return rows_; }
  int64_t in() const { return in_; }
  bool empty() const { return rows_ == 0; }
  const std::vector<WeightPart>& parts() const { return parts_; }
  int64_t stored_bytes() const;

  // A device's copy of the whole matrix; the host's bytes go unless keep_host is set (parts() is empty then, the shape
  // stays).
  void set_placed(std::shared_ptr<const PlacedWeights> placed, bool keep_host);
  const PlacedWeights* placed() const { return placed_.get(); }

  // Exact FP32 values of one row; out has in() floats. Error{kInternal} outside [0, rows()), or if the host's bytes are
  // gone.
  void widen_row(int64_t row, std::span<float> out) const;
  // The same of several rows, one after the other, on all threads.
  std::vector<float> widen_rows(std::span<const int32_t> rows) const;

 private:
  struct Free {
    std::align_val_t alignment{};
    void operator()(std::byte* data) const;
  };
  int64_t in_ = 0;
  int64_t rows_ = 0;
  std::vector<WeightPart> parts_;
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
  std::shared_ptr<const PlacedWeights> placed_;
};

}  // namespace asymkv
