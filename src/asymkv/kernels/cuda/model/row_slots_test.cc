#include "asymkv/kernels/cuda/model/row_slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace asymkv::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RowSlots, GivesEachRowASlotOnce) {
  RowSlots table(5);
  const auto first = table.find(std::vector<int32_t>{70, 3, 70}).value();
  EXPECT_THAT(first.slots, ElementsAre(0, 1, 0));
  EXPECT_THAT(first.missing, ElementsAre(70, 3));
  EXPECT_EQ(first.first_missing, 0);
  const auto second = table.find(std::vector<int32_t>{3, 8, 70, 9}).value();
  EXPECT_THAT(second.slots, ElementsAre(1, 2, 0, 3));
  EXPECT_THAT(second.missing, ElementsAre(8, 9));
  EXPECT_EQ(second.first_missing, 2);
  EXPECT_THAT(table.find(std::vector<int32_t>{9, 8}).value().missing, IsEmpty());
}

TEST(RowSlots, StartsOverWithoutRoom) {
  RowSlots table(4);
  table.find(std::vector<int32_t>{1, 2, 3});
  const auto next = table.find(std::vector<int32_t>{3, 4, 5}).value();  // five rows in all
  EXPECT_THAT(next.slots, ElementsAre(0, 1, 2));
  EXPECT_THAT(next.missing, ElementsAre(3, 4, 5));
  EXPECT_EQ(next.first_missing, 0);
}

TEST(RowSlots, RefusesMoreThanItHolds) {
  RowSlots table(2);
  table.find(std::vector<int32_t>{1, 2});
  EXPECT_FALSE(table.find(std::vector<int32_t>{4, 5, 6}).has_value());
  EXPECT_THAT(table.find(std::vector<int32_t>{2, 1}).value().slots, ElementsAre(1, 0));  // as before
  EXPECT_THAT(table.find(std::vector<int32_t>{7, 7, 7, 1}).value().missing, ElementsAre(7, 1));
}

}  // namespace
}  // namespace asymkv::cuda
