#include "asymkv/kernels/testing/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "asymkv/kernels/ref/ref_attention.h"
#include "asymkv/kernels/testing/attend_case.h"

namespace asymkv::testing {
namespace {

constexpr int64_t kDim = 64;

// A small case, its oracle and its twin; each test damages the twin's output in one way.
class Compare : public ::testing::Test {
 protected:
  Compare() : data_(shape()) {
    oracle_ = data_.run(RefAttention());
    twin_ = data_.run(RefAttention(RefAttention::Precision::kFloat));
    actual_ = twin_.out;
  }
  static AttendCase shape() {
    AttendCase shape;
    shape.sequences = {{.stored = 200, .queries = 4}, {.stored = 40, .queries = 30, .fresh = true}};
    return shape;
  }
  std::string judge() const { return compare(actual_, oracle_.out, twin_.out, kDim); }
  float* head_row(int64_t row, int64_t head) { return actual_.data() + (row * data_.num_q_heads() + head) * kDim; }

  AttendData data_;
  AttendOutput oracle_;
  AttendOutput twin_;
  std::vector<float> actual_;
};

TEST_F(Compare, PassesTheTwinItself) {
  EXPECT_EQ(judge(), "");
  EXPECT_EQ(compare(twin_.lse, oracle_.lse, twin_.lse, data_.num_q_heads()), "");
}

TEST_F(Compare, FailsOneZeroedTile) {
  for (int64_t row = 8; row < 24; ++row) std::fill_n(head_row(row, 3), 16, 0.0F);
  EXPECT_NE(judge(), "");
}

TEST_F(Compare, FailsTwoSwappedHeads) {
  std::swap_ranges(head_row(2, 4), head_row(2, 4) + kDim, head_row(2, 5));
  EXPECT_NE(judge(), "");
}

TEST_F(Compare, FailsOneDroppedToken) {
  data_.sequences()[0].stored_len -= 1;
  actual_ = data_.run(RefAttention(RefAttention::Precision::kFloat)).out;
  EXPECT_NE(judge(), "");
}

TEST_F(Compare, FailsOneWrongElement) {
  head_row(1, 0)[7] *= 1.0F + 0x1p-12F;
  EXPECT_NE(judge(), "");
}

TEST_F(Compare, FailsAnErrorSmallInEveryRowButSystematic) {
  // Seven times the twin's error everywhere passes by element; the norm does not let it pass.
  for (size_t i = 0; i < actual_.size(); ++i) actual_[i] = oracle_.out[i] + 7.0F * (twin_.out[i] - oracle_.out[i]);
  EXPECT_THAT(judge(), ::testing::HasSubstr("norm"));
}

TEST_F(Compare, FailsAnotherClassOfNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  head_row(1, 0)[7] = nan;
  EXPECT_NE(judge(), "");
  const std::vector<float> oracle = {1.0F, inf};
  EXPECT_NE(compare(std::vector{1.0F, -inf}, oracle, oracle, 2), "");
  EXPECT_NE(compare(std::vector{1.0F, nan}, oracle, oracle, 2), "");
  EXPECT_EQ(compare(oracle, oracle, oracle, 2), "");
}

TEST_F(Compare, MistrustsWhatCannotJudge) {
  const std::vector<float> zeros(8, 0.0F);
  EXPECT_THAT(compare(zeros, zeros, zeros, 4), ::testing::HasSubstr("mistrusted"));
  const std::vector<float> ones(8, 1.0F);
  const std::vector<float> far(8, 1.1F);
  EXPECT_THAT(compare(ones, ones, far, 4), ::testing::HasSubstr("mistrusted"));
}

}  // namespace
}  // namespace asymkv::testing
