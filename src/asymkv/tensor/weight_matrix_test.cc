#include "asymkv/tensor/weight_matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/tensor/dtype.h"

namespace asymkv {
namespace {

TEST(WeightMatrix, StacksPartsOfDifferentTypes) {
  WeightMatrix matrix(32);
  auto wide = matrix.append(GgmlType::kBF16, 2);
  ASSERT_EQ(wide.size(), 128U);
  for (size_t i = 0; i < 64; ++i) {
    const uint16_t bits = f32_to_bf16(static_cast<float>(i));
    std::memcpy(wide.data() + i * sizeof(bits), &bits, sizeof(bits));
  }
  auto narrow = matrix.append(GgmlType::kQ8_0, 1);
  ASSERT_EQ(narrow.size(), 34U);
  const uint16_t scale = f32_to_f16(0.5F);
  std::memcpy(narrow.data(), &scale, sizeof(scale));
  for (size_t i = 0; i < 32; ++i) narrow[2 + i] = static_cast<std::byte>(i);

  EXPECT_EQ(matrix.rows(), 3);
  EXPECT_EQ(matrix.in(), 32);
  EXPECT_EQ(matrix.stored_bytes(), 128 + 34);
  EXPECT_EQ(matrix.parts()[1].first_row, 2);
  const WeightMatrix moved = std::move(matrix);
  std::vector<float> row(32);
  moved.widen_row(1, row);
  EXPECT_EQ(row[31], 63.0F);
  moved.widen_row(2, row);
  EXPECT_EQ(row[31], 15.5F);
  EXPECT_THROW(moved.widen_row(3, row), Error);
}

TEST(WeightMatrix, RefusesRowsOfPartialBlocks) {
  WeightMatrix matrix(48);
  try {
    matrix.append(GgmlType::kQ4_0, 1);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(e.what(), testing::HasSubstr("row of 48 elements"));
    EXPECT_THAT(e.what(), testing::HasSubstr("Q4_0"));
  }
}

TEST(WeightMatrix, CopiesFloats) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const WeightMatrix matrix = WeightMatrix::from_f32(2, 3, values);
  std::vector<float> row(3);
  matrix.widen_row(1, row);
  EXPECT_EQ(row, (std::vector<float>{4, 5, 6}));
  EXPECT_THROW(WeightMatrix::from_f32(2, 2, values), Error);
}

TEST(WeightMatrix, WidensRowsInTheOrderAsked) {
  std::vector<float> values(100);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const WeightMatrix matrix = WeightMatrix::from_f32(50, 2, values);
  std::vector<int32_t> rows;
  for (int32_t i = 0; i < 70; ++i) rows.push_back((7 * i) % 50);
  const std::vector<float> wide = matrix.widen_rows(rows);
  ASSERT_EQ(wide.size(), 140U);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(wide[2 * i + 1], static_cast<float>(2 * rows[i] + 1));
  EXPECT_THROW(matrix.widen_rows(std::vector<int32_t>{50}), Error);
}

struct FourBytes final : PlacedWeights {
  int64_t bytes() const override { return 4; }
  int64_t product_bytes() const override { return 4; }
};

TEST(WeightMatrix, PlacedMatricesMayLetGoOfTheHostsBytes) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  WeightMatrix matrix = WeightMatrix::from_f32(2, 3, values);
  const auto placed = std::make_shared<const FourBytes>();
  std::vector<float> row(3);
  matrix.set_placed(placed, true);
  EXPECT_EQ(matrix.placed(), placed.get());
  matrix.widen_row(1, row);
  EXPECT_EQ(row, (std::vector<float>{4, 5, 6}));
  matrix.set_placed(placed, false);
  EXPECT_EQ(matrix.rows(), 2);
  EXPECT_EQ(matrix.in(), 3);
  EXPECT_EQ(matrix.stored_bytes(), 0);
  EXPECT_THROW(matrix.widen_row(1, row), Error);
}

}  // namespace
}  // namespace asymkv
