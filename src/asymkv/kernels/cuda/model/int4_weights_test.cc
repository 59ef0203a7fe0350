#include "asymkv/kernels/cuda/model/int4_weights.h"

#include <gtest/gtest.h>

#include "asymkv/tensor/dtype.h"
#include "asymkv/tensor/q5_0_testkit.h"

namespace asymkv::cuda {
namespace {

using test::draw_q5_groups;

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
    const WeightMatrix matrix = draw_q5_groups(40, 384, group, 15);
    const auto packed = pack_int4(matrix);
    ASSERT_TRUE(packed.has_value()) << group;
    EXPECT_EQ(packed->group, group);
    EXPECT_EQ(packed->padded_rows(), 64);
    EXPECT_EQ(packed->stored_bytes(), 64 * 384 / 2 + 384 / group * 64 * 4);
    expect_same_values(matrix, *packed);
  }
  const WeightMatrix narrow = draw_q5_groups(8, 192, 64, 3);  // rows of no whole 128
  ASSERT_TRUE(pack_int4(narrow).has_value());
  expect_same_values(narrow, *pack_int4(narrow));
}

// A lane's word holds what mma.m16n8k16 wants of it.
TEST(Int4Weights, LiesAsALaneReadsIt) {
  const WeightMatrix matrix = draw_q5_groups(32, 128, 128, 15);
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
  EXPECT_FALSE(pack_int4(draw_q5_groups(8, 128, 32, 16)).has_value());  // 17 codes
  EXPECT_FALSE(pack_int4(draw_q5_groups(8, 96, 32, 15)).has_value());   // no whole tiles
  EXPECT_FALSE(pack_int4(WeightMatrix::from_f32(2, 64, std::vector<float>(128))).has_value());
  EXPECT_FALSE(pack_int4(WeightMatrix()).has_value());
}

}  // namespace
}  // namespace asymkv::cuda
