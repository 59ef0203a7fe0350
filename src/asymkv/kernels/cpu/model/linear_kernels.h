#pragma once

#include <cstdint>

#include "asymkv/tensor/ggml_quants.h"

namespace asymkv::cpu {

// Stored rows of one part of a matrix, and the output column of the first.
struct StoredRows {
  const uint8_t* data = nullptr;
  int64_t row_bytes = 0;
  int64_t num_rows = 0;
  int64_t first_column = 0;
};

// Widened rows, [num_rows rounded up to kTileAlignRows][depth] floats.
struct WidenedTile {
  const float* data = nullptr;
  int64_t num_rows = 0;
  int64_t first_column = 0;
};

// Rows of activations, `x_stride` floats apart; depth is a multiple of 32.
struct LinearInput {
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t depth = 0;
};

// Rows of activations rounded to 16 bits in groups of 32: x = scale * code. [rows][groups * 32] codes, [rows][groups]
// scales and scaled sums of codes; groups is depth / 32 rounded up to kQuadGroups; scales and sums behind depth are 0.
struct RoundedInput {
  const int16_t* codes = nullptr;
  const float* scales = nullptr;
  const float* sums = nullptr;
  int64_t depth = 0;
  int64_t groups = 0;

  RoundedInput from(int64_t row) const {
    return {codes + row * groups * 32, scales + row * groups, sums + row * groups, depth, groups};
  }
};
inline constexpr int64_t kQuadGroups = 4;

// Unpacked rows of one part, for many rows of activations: rows rounded up to LinearKernels::tile_panel, 32-byte
// aligned.
struct RoundedTile {
  int32_t* pairs = nullptr;  // [depth / 2] pairs of codes a row
  float* factors = nullptr;  // at most [depth / 16] a row
  int64_t num_rows = 0;
  int64_t first_column = 0;
};

struct LinearOutput {
  float* y = nullptr;
  int64_t y_stride = 0;
  const float* bias = nullptr;  // [columns]; may be null
  bool accumulate = false;
};

// Rows of activations that a stored-row kernel takes at once.
inline constexpr int64_t kStoredKernelRows = 4;
inline constexpr int64_t kRoundedTileRows = 4;  // the same of a kernel on a RoundedTile
inline constexpr int64_t kTileAlignRows = 3;
// Rows of activations that a tile kernel takes at once.
inline constexpr int64_t kTileKernelRows = 4;

// Elements [begin, end) of a depth: four rows of activations stay in a first-level cache.
struct DepthStep {
  int64_t begin = 0;
  int64_t end = 0;
};
inline constexpr int64_t kDepthStep = 1024;

// Kernels of one stored type on one SIMD target; null where it has none.
struct LinearKernels {
  // [rows - 1], rows up to kStoredKernelRows: unpacks each weight once and multiplies it with all rows.
  void (*multiply_stored[kStoredKernelRows])(const StoredRows& w, const LinearInput& in, const LinearOutput& out) = {};
  // The same with rounded activations; null for wide types, which have no codes.
  void (*multiply_i16[kStoredKernelRows])(const StoredRows& w, const RoundedInput& in, const LinearOutput& out) = {};
  // Unpacks rows of the same types for multiply_i16_tile, whose results are those of multiply_i16; [rows - 1].
  int64_t tile_panel = 0;
  void (*unpack_i16_tile)(const StoredRows& w, int64_t depth, const RoundedTile& tile) = nullptr;
  void (*multiply_i16_tile[kRoundedTileRows])(const RoundedTile& tile, const RoundedInput& in,
                                              const LinearOutput& out) = {};
  // The exact values of dequantize_ggml (a zero may have the other sign), [num_rows][depth].
  void (*widen)(const StoredRows& w, int64_t depth, float* tile) = nullptr;
};

// Independent of the stored type.
struct TileKernels {
  int64_t lanes = 0;
  // [rows - 1], rows up to kTileKernelRows: elements [step.begin, step.end) of k. sums: what the rows have gathered so
  // far, kTileKernelRows * (tile rows rounded up to kTileAlignRows) * lanes floats, aligned to 64 bytes; written out
  // with the last step.
  void (*multiply[kTileKernelRows])(const WidenedTile& tile, const DepthStep& step, const LinearInput& in,
                                    const LinearOutput& out, float* sums) = {};
};

// Of the best SIMD target of this machine.
const char* linear_target_name();  // "avx2", ...
// Rounds one row: depth codes, depth / 32 scales and sums.
void round_to_i16(const float* x, int64_t depth, int16_t* codes, float* scales, float* sums);
LinearKernels linear_kernels(GgmlType type);
TileKernels tile_kernels();

}  // namespace asymkv::cpu
