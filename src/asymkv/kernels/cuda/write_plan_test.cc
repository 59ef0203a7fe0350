#include "asymkv/kernels/cuda/write_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "asymkv/kernels/cuda/decode_types.h"
#include "asymkv/kernels/cuda/key_norm.h"
#include "asymkv/kernels/cuda/quotient.h"
#include "asymkv/kv/codec.h"

namespace asymkv::cuda {
namespace {

TEST(WritePlan, LaunchesWholePagesFirst) {
  std::vector<int64_t> slots = {30, 31};
  for (int64_t s = 48; s < 64; ++s) slots.push_back(s);
  slots.push_back(5);
  for (int64_t s = 0; s < 16; ++s) slots.push_back(80 + s);
  slots.push_back(-1);
  const WritePlan plan = plan_write(slots, 96);
  EXPECT_EQ(plan.num_whole(), 2);
  const std::vector<WriteRun> expected = {{2, 16, 3, 0}, {19, 16, 5, 0}, {0, 2, 1, 14}, {18, 1, 0, 5}};
  EXPECT_EQ(plan.launch_order(), expected);
}

TEST(WritePlan, NoTokensNoRuns) {
  const WritePlan plan = plan_write(std::vector<int64_t>{-1, -1}, 16);
  EXPECT_EQ(plan.num_whole(), 0);
  EXPECT_TRUE(plan.launch_order().empty());
}

TEST(KeyNorm, IsTheRmsNormOfTheDefinition) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  for (const size_t dim : {size_t{64}, size_t{96}, size_t{128}, size_t{256}}) {
    std::vector<float> x;
    std::vector<float> weight;
    double squares = 0.0;
    for (size_t c = 0; c < dim; ++c) {
      x.push_back(normal(random));
      weight.push_back(normal(random));
      squares += static_cast<double>(x[c]) * static_cast<double>(x[c]);
    }
    const std::vector<float> raw = x;
    norm_key(weight, 1e-6F, x);
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(dim) + 1e-6);
    for (size_t c = 0; c < dim; ++c) {
      const double expected = static_cast<double>(raw[c]) * factor * static_cast<double>(weight[c]);
      EXPECT_NEAR(static_cast<double>(x[c]), expected, 1e-6 * std::fabs(expected)) << dim << " " << c;
    }
  }
}

// The order of the sum is part of the definition: channels 16 apart first, in order.
TEST(KeyNorm, SumsInItsOwnOrder) {
  std::vector<float> x(32, 0.0F);
  x[0] = 4096.0F;               // 2^24: one more is lost
  x[16] = x[1] = x[17] = 1.0F;  // 16 is lost in sum 0; 1 and 17 come as 2
  EXPECT_EQ(norm_sum(x), 16777218.0F);
}

TEST(Quotient, EncodesAsTheDivisionDoes) {
  std::mt19937 random(5);
  std::uniform_real_distribution<float> exponent(-80.0F, 80.0F);
  std::uniform_int_distribution<uint32_t> bits;
  int64_t compared = 0;
  for (int i = 0; i < 200000; ++i) {
    const float scale = std::exp2(exponent(random));
    const float x = bf16_to_f32(static_cast<uint16_t>(bits(random)));
    if (!std::isfinite(x) || std::fabs(x / scale) > 460.0F) continue;
    const float got = quotient(x, scale, 1.0F / scale);
    EXPECT_EQ(encode_e4m3(got), encode_e4m3(x / scale)) << x << " / " << scale;
    EXPECT_EQ(encode_i8(got), encode_i8(x / scale)) << x << " / " << scale;
    ++compared;
  }
  EXPECT_GT(compared, 50000);
}

TEST(Quotient, KeepsTheSignOfZeroAndTies) {
  for (const float scale : {1.0F, 0.3F, 0x1p-90F, 0x1p90F}) {
    EXPECT_FALSE(std::signbit(quotient(0.0F, scale, 1.0F / scale)));
    EXPECT_TRUE(std::signbit(quotient(-0.0F, scale, 1.0F / scale)));
  }
  // 17 * scale / scale is a tie between the codes 16 and 18 whatever the reciprocal rounds to.
  for (const float scale : {0.75F, 0.875F, 1.25F, 3.0F, 0.0625F})
    EXPECT_EQ(quotient(17.0F * scale, scale, 1.0F / scale), 17.0F);
}

}  // namespace
}  // namespace asymkv::cuda
