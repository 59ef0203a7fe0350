#include "asymkv/kernels/cuda/model/int4_weights.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "asymkv/tensor/dtype.h"

namespace asymkv::cuda {
namespace {

// A Q5_0 matrix whose codes are `least` of each group and up to `spread` more.
WeightMatrix draw_matrix(int64_t rows, int64_t in, int64_t group, unsigned spread) {
  WeightMatrix matrix(in);
  const std::span<std::byte> bytes = matrix.append(GgmlType::kQ5_0, rows);
  std::mt19937 random(7);
  for (int64_t r = 0; r < rows; ++r) {
    unsigned least = 0;
    uint16_t scale = 0;
    for (int64_t b = 0; b < in / 32; ++b) {
      if (b * 32 % group == 0) {
        least = static_cast<unsigned>(random() % (32 - spread));
        scale = static_cast<uint16_t>(0x2000 + random() % 0x1000);
      }
      uint32_t fifth = 0;
      std::array<uint8_t, 16> low = {};
      for (unsigned i = 0; i < 32; ++i) {
        const unsigned code = i == 0   ? least
                              : i == 1 ? least + spread
                                       : least + static_cast<unsigned>(random()) % (spread + 1);
        fifth |= (code >> 4U) << i;
        low[i % 16] = static_cast<uint8_t>(low[i % 16] | (code & 0xFU) << (i < 16 ? 0U : 4U));
      }
      std::byte* block = bytes.data() + (r * (in / 32) + b) * 22;
      std::memcpy(block, &scale, 2);
      std::memcpy(block + 2, &fifth, 4);
      std::memcpy(block + 6, low.data(), 16);
    }
  }
  return matrix;
}

void expect_same_values(const WeightMatrix& matrix, const Int4Weights& packed) {
  std::vector<float> row(static_cast<size_t>(matrix.in()));
  for (int64_t r = 0; r < matrix.rows(); ++r) {
    matrix.widen_row(r, row);
    for (int64_t i = 0; i < matrix.in(); ++i)
      ASSERT_EQ(packed.value(r, i), row[static_cast<size_t>(i)]) << r << " " << i;
  }
}

TEST(Int4Weights, KeepsEveryValueInTheLargestGroupsThatServe) {
  for (const int64_t group : {32, 64, 128}) {
    const WeightMatrix matrix = draw_matrix(40, 384, group, 15);
    const auto packed = pack_int4(matrix);
    ASSERT_TRUE(packed.has_value()) << group;
    EXPECT_EQ(packed->group, group);
    EXPECT_EQ(packed->padded_rows(), 64);
    EXPECT_EQ(packed->stored_bytes(), 64 * 384 / 2 + 384 / group * 64 * 4);
    expect_same_values(matrix, *packed);
  }
  const WeightMatrix narrow = draw_matrix(8, 192, 64, 3);  // rows of no whole 128
  ASSERT_TRUE(pack_int4(narrow).has_value());
  expect_same_values(narrow, *pack_int4(narrow));
}

// A lane's word holds what mma.m16n8k16 wants of it.
TEST(Int4Weights, LiesAsALaneReadsIt) {
  const WeightMatrix matrix = draw_matrix(32, 128, 128, 15);
  const Int4Weights packed = pack_int4(matrix).value();
  constexpr int64_t kTile = 1, kHalf = 1, kStep = 0, kLane = 4 * 5 + 3;  // rows 21 and 29
  const uint32_t word = packed.codes[static_cast<size_t>(((1 * 2 + kTile) * 32 + kLane) * 4 + 2 * kHalf + kStep)];
  for (unsigned pair = 0; pair < 4; ++pair) {
    for (unsigned odd = 0; odd < 2; ++odd) {
      const auto row = static_cast<int64_t>(pair % 2 == 0 ? 21 : 29);
      const int64_t input = 64 * kTile + 32 * kHalf + 8 * (kLane % 4) + 4 * kStep + 2 * (pair / 2) + odd;
      const Int4Scale& shared = packed.scales[static_cast<size_t>(row)];
      const auto code = static_cast<int>(word >> 4 * (pair + 4 * odd) & 0xFU);
      EXPECT_EQ(f16_to_f32(shared.scale) * static_cast<float>(code + shared.offset), packed.value(row, input));
    }
  }
}

TEST(Int4Weights, RefusesWhatNeedsMore) {
  EXPECT_FALSE(pack_int4(draw_matrix(8, 128, 32, 16)).has_value());  // 17 codes
  EXPECT_FALSE(pack_int4(draw_matrix(8, 96, 32, 15)).has_value());   // no whole tiles
  EXPECT_FALSE(pack_int4(WeightMatrix::from_f32(2, 64, std::vector<float>(128))).has_value());
  EXPECT_FALSE(pack_int4(WeightMatrix()).has_value());
}

}  // namespace
}  // namespace asymkv::cuda
