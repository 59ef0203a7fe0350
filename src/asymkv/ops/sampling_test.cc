#include "asymkv/ops/sampling.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>

namespace asymkv {
namespace {

constexpr std::array<float, 5> kLogits = {0.0F, 2.0F, 1.0F, 2.0F, -5.0F};

double number(int i, int count) {
  return (i + 0.5) / count;
}

TEST(Sampling, TemperatureZeroTakesTheFirstOfEquals) {
  EXPECT_EQ(draw_token(kLogits, {}, 0.99), 1);
  EXPECT_EQ(argmax(kLogits), 1);
}

TEST(Sampling, SharesOfTheUniformAreTheSoftmax) {
  constexpr int kDraws = 40000;
  const SamplingLaw law{.temperature = 0.7};
  std::map<int32_t, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[draw_token(kLogits, law, number(i, kDraws))];
  double total = 0;
  for (const float x : kLogits) total += std::exp(x / law.temperature);
  for (size_t i = 0; i < kLogits.size(); ++i) {
    const double p = std::exp(kLogits[i] / law.temperature) / total;
    EXPECT_NEAR(static_cast<double>(counts[static_cast<int32_t>(i)]) / kDraws, p, 1.0 / kDraws) << "token " << i;
  }
}

TEST(Sampling, FallsFromTheLikeliestAndOfEqualsFromTheFirst) {
  const SamplingLaw law{.temperature = 1.0};
  EXPECT_EQ(draw_token(kLogits, law, 0.0), 1);
  EXPECT_EQ(draw_token(kLogits, law, 0.45), 3);
  EXPECT_EQ(draw_token(kLogits, law, std::nextafter(1.0, 0.0)), 4);
}

TEST(Sampling, TopKAndTopPCutTheTail) {
  for (int i = 0; i < 500; ++i) {
    const int32_t token = draw_token(kLogits, {.temperature = 5.0, .top_k = 2}, number(i, 500));
    EXPECT_EQ(token, i < 250 ? 1 : 3);
    EXPECT_EQ(draw_token(kLogits, {.temperature = 1.0, .top_p = 0.1}, number(i, 500)), 1);
  }
  // Two equals reach 0.8 of the first three's mass together, one does not.
  EXPECT_EQ(draw_token(kLogits, {.temperature = 1.0, .top_p = 0.8, .top_k = 3}, 0.75), 3);
}

}  // namespace
}  // namespace asymkv
