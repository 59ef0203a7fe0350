#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "asymkv/tensor/weight_matrix.h"

namespace asymkv::cuda {

// What a group of codes of one row shares: value = scale * (code + offset), exact in FP32.
struct Int4Scale {
  uint16_t scale = 0;  // FP16 bits
  int16_t offset = 0;
};

// A [rows, in] matrix of 4-bit codes in the order in which lanes of a warp multiply with mma.m16n8k16. Rows come in
// tiles of 32 (two of the instruction), padded with zeros, inputs in tiles of 64, two steps for each half. Lane l of a
// warp holds rows l / 4 and l / 4 + 8 of 16, and of each half 8 (l % 4) to 8 (l % 4) + 7, four for each step: the order
// of inputs within a half is free, since activations are read in the same.
struct Int4Weights {
  static constexpr int64_t kRowTile = 32, kInTile = 64;

  int64_t rows = 0;
  int64_t in = 0;
  int64_t group = 0;  // inputs that share an Int4Scale: 32, 64 or 128
  // [row / 16][in / 64][lane][step]: nibble p of a word is the even, nibble p + 4 the odd input of pair p; pairs 0 and
  // 2 are of the lane's first row, 1 and 3 of its second.
  std::vector<uint32_t> codes;
  std::vector<Int4Scale> scales;  // [in / group][padded rows]

  int64_t padded_rows() const { return (rows + kRowTile - 1) / kRowTile * kRowTile; }
  int64_t stored_bytes() const;
  // Of row 0..rows-1, input 0..in-1, as the kernels take it.
  float value(int64_t row, int64_t input) const;
};

// The matrix without loss in 4-bit codes: AWQ's, which the host keeps as Q5_0 (model/awq.h). Nothing for one with parts
// of other types, with a group that needs more than 16 codes, or with a row that is not whole tiles.
std::optional<Int4Weights> pack_int4(const WeightMatrix& matrix);

}  // namespace asymkv::cuda
