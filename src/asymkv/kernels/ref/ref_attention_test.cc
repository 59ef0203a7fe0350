#include "asymkv/kernels/ref/ref_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "asymkv/kernels/testing/attend_case.h"

namespace asymkv {
namespace {

using testing::AttendCase;
using testing::AttendData;

// A tiny call on fresh rows with one head of two channels, worked out by hand.
class HandMade : public ::testing::Test {
 protected:
  HandMade() {
    sequence_.fresh_k = k_.data();
    sequence_.fresh_v = v_.data();
    sequence_.num_fresh = sequence_.num_queries = 3;
    params_.num_q_heads = params_.num_kv_heads = 1;
    params_.k_head_dim = params_.v_head_dim = 2;
    params_.softmax_scale = 0.5F;
    params_.q = q_.data();
    params_.out = out_.data();
    params_.lse = lse_.data();
    params_.sequences = std::span(&sequence_, 1);
  }

  // Logits of the last query: 0, ln 2, ln 5 after the scale.
  const float ln2_ = std::log(2.0F);
  const float ln5_ = std::log(5.0F);
  std::vector<float> q_ = {1, 0, 1, 0, 1, 0};
  std::vector<float> k_ = {0, 9, 2 * ln2_, 9, 2 * ln5_, 9};
  std::vector<float> v_ = {8, 0, 0, 8, 16, 16};
  std::vector<float> out_ = std::vector<float>(6, -1.0F);
  std::vector<float> lse_ = std::vector<float>(3, -1.0F);
  AttendSequence sequence_;
  AttendParams params_;
};

TEST_F(HandMade, CausalSoftmax) {
  RefAttention().attend(params_);
  const float expected[] = {8, 0, 8.0F / 3, 16.0F / 3, 1 + 10, 2 + 10};
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(out_[i], expected[i], 1e-5) << i;
  EXPECT_NEAR(lse_[0], 0.0, 1e-6);
  EXPECT_NEAR(lse_[1], std::log(3.0), 1e-6);
  EXPECT_NEAR(lse_[2], std::log(8.0), 1e-6);
}

TEST_F(HandMade, WindowOfTwo) {
  params_.window = 2;
  RefAttention().attend(params_);
  EXPECT_NEAR(out_[4], 16.0 * 5 / 7, 1e-5);
  EXPECT_NEAR(out_[5], (8.0 * 2 + 16 * 5) / 7, 1e-5);
}

TEST_F(HandMade, SinkTakesWeightWithoutValue) {
  const float sink = std::log(8.0F);
  params_.sinks = &sink;
  RefAttention().attend(params_);
  EXPECT_NEAR(out_[4], 11.0 / 2, 1e-5);
  EXPECT_NEAR(out_[5], 12.0 / 2, 1e-5);
  EXPECT_NEAR(lse_[2], std::log(16.0), 1e-6);
}

TEST_F(HandMade, SoftCapBendsLogits) {
  params_.logit_soft_cap = 1.0F;
  RefAttention().attend(params_);
  const double w[3] = {1.0, std::exp(std::tanh(std::log(2.0))), std::exp(std::tanh(std::log(5.0)))};
  EXPECT_NEAR(out_[4], (8 * w[0] + 16 * w[2]) / (w[0] + w[1] + w[2]), 1e-5);
}

TEST_F(HandMade, NoVisibleKeyGivesZerosAndMinusInfinity) {
  sequence_.num_fresh = 0;
  RefAttention().attend(params_);
  EXPECT_EQ(out_, std::vector<float>(6, 0.0F));
  for (const float lse : lse_) EXPECT_EQ(lse, -std::numeric_limits<float>::infinity());
}

// Score of a stored key without its bias plus q . R(t) removed = score of the whole key: with an exact 8-bit store the
// two formats must agree up to their own rounding.
class RemovedVector : public ::testing::TestWithParam<double> {};

// With YaRN's attention factor the removed vector must come back multiplied by it as well.
TEST_P(RemovedVector, ComesBackTurned) {
  AttendCase shape;
  shape.rope_magnitude = GetParam();
  shape.sequences = {{.stored = 200, .queries = 5}};
  shape.bias = 40.0F;
  const auto run = [&](const char* id) {
    shape.formats = {parse_kv_format(id, DType::kF32, ScaleKind::kDynamic)};
    return AttendData(shape).run(RefAttention()).out;
  };
  const std::vector<float> exact = run("f32/f32");
  const std::vector<float> without = run("i8-prebias/f32");
  const std::vector<float> with = run("e4m3/f32");
  const auto distance = [&](const std::vector<float>& x) {
    double sum = 0.0;
    for (size_t i = 0; i < x.size(); ++i) sum += std::pow(static_cast<double>(x[i] - exact[i]), 2);
    return std::sqrt(sum);
  };
  EXPECT_LT(distance(without), 0.05 * distance(std::vector<float>(exact.size())));
  EXPECT_GT(distance(with), 4 * distance(without));
}

INSTANTIATE_TEST_SUITE_P(RefAttention, RemovedVector, ::testing::Values(1.0, 1.25, 0.5));

TEST(RefAttention, DoesNotDependOnThePageOrderOrPadding) {
  AttendCase shape;
  shape.formats = {parse_kv_format("e4m3/e4m3", DType::kBF16, ScaleKind::kDynamic)};
  shape.sequences = {{.stored = 130, .queries = 7, .fresh = true}};
  const std::vector<float> plain = AttendData(shape).run(RefAttention()).out;
  shape.padding = {.k_row_bytes = 16, .v_row_bytes = 3, .k_page_bytes = 5, .v_page_bytes = 7};
  EXPECT_EQ(AttendData(shape).run(RefAttention()).out, plain);
  shape.page_size = 1;
  EXPECT_EQ(AttendData(shape).run(RefAttention()).out, plain);
}

}  // namespace
}  // namespace asymkv
