#include "asymkv/stats/speed.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "asymkv/stats/test_support.h"

namespace asymkv::stats {
namespace {

// `count` blocks with this ratio.
std::vector<SpeedBlock> blocks(int64_t count, double ratio) {
  std::vector<SpeedBlock> all;
  for (int64_t i = 0; i < count; ++i) {
    const double control = 100.0 + static_cast<double>(i);
    all.push_back({control * ratio, control});
  }
  return all;
}

SpeedHypothesis mixed(int64_t faster, double up, int64_t slower, double down, int64_t failed = 0) {
  SpeedHypothesis hypothesis{blocks(faster, up), failed};
  for (const SpeedBlock& block : blocks(slower, down)) hypothesis.blocks.push_back(block);
  return hypothesis;
}

SpeedDecision decide(const SpeedHypothesis& hypothesis) {
  return decide_speed(std::vector<SpeedHypothesis>{hypothesis}).front();
}

TEST(Speed, AllThreeConditionsDecide) {
  const SpeedDecision clear = decide(mixed(9, 1.05, 1, 0.99));
  EXPECT_EQ(clear.faster, 9);
  EXPECT_EQ(clear.slower, 1);
  EXPECT_EQ(clear.sign.p, .021484375);
  EXPECT_NEAR(clear.median_ratio, 1.05, 1e-12);
  EXPECT_EQ(clear.verdict, SpeedVerdict::kFaster);
  EXPECT_EQ(decide(mixed(0, 1.0, 12, 0.9)).verdict, SpeedVerdict::kSlower);

  const SpeedDecision small = decide(mixed(12, 1.009, 0, 1.0));
  EXPECT_TRUE(small.significant);
  EXPECT_FALSE(small.large);
  EXPECT_EQ(small.verdict, SpeedVerdict::kNotShown);
  const SpeedDecision few = decide(mixed(5, 1.5, 0, 1.0));  // p = 2 / 32
  EXPECT_FALSE(few.significant);
  EXPECT_EQ(few.verdict, SpeedVerdict::kNotShown);
  const SpeedDecision failed = decide(mixed(12, 1.5, 0, 1.0, 1));
  EXPECT_FALSE(failed.valid);
  EXPECT_TRUE(failed.significant);
  EXPECT_EQ(failed.verdict, SpeedVerdict::kInvalid);
}

TEST(Speed, TheScreenIsSymmetricInTheRatio) {
  EXPECT_FALSE(decide(mixed(12, 1.00999, 0, 1.0)).large);
  EXPECT_TRUE(decide(mixed(12, 1.01001, 0, 1.0)).large);
  EXPECT_FALSE(decide(mixed(0, 1.0, 12, 1.0 / 1.00999)).large);
  EXPECT_TRUE(decide(mixed(0, 1.0, 12, 1.0 / 1.01001)).large);
}

TEST(Speed, TiesAreDroppedFromTheTestAndKeptInTheMedian) {
  SpeedHypothesis hypothesis{blocks(7, 1.0), 0};
  for (const SpeedBlock& block : blocks(6, 1.1)) hypothesis.blocks.push_back(block);
  const SpeedDecision got = decide(hypothesis);
  EXPECT_EQ(got.ties, 7);
  EXPECT_EQ(got.sign.p, 2.0 / 64.0);
  EXPECT_EQ(got.median_ratio, 1.0);
  EXPECT_EQ(got.verdict, SpeedVerdict::kNotShown);  // six of six, but the median block is a tie
  const SpeedDecision ties = decide({blocks(4, 1.0), 0});
  EXPECT_EQ(ties.sign.p, 1.0);
  EXPECT_EQ(ties.sign.log10_p, 0.0);
}

TEST(Speed, HolmOverTheDeclaredHypotheses) {
  // 9 of 10 is significant beside one other hypothesis, and beside two it is not.
  const std::vector<SpeedHypothesis> two = {mixed(9, 1.05, 1, 0.99), mixed(5, 1.05, 5, 0.95)};
  const std::vector<SpeedDecision> got = decide_speed(two);
  EXPECT_NEAR(got[0].sign_holm.p, 2 * .021484375, 1e-15);
  EXPECT_TRUE(got[0].significant);
  const std::vector<SpeedHypothesis> three = {two[0], two[1], two[1]};
  EXPECT_FALSE(decide_speed(three)[0].significant);
  EXPECT_TRUE(decide_speed(three, {.alpha = 0.1})[0].significant);
}

TEST(Speed, LogarithmDoesNotUnderflow) {
  const SpeedDecision got = decide({blocks(2000, 1.1), 0});
  EXPECT_EQ(got.sign.p, 0.0);
  EXPECT_NEAR(got.sign.log10_p, -1999 * std::log10(2.0), 1e-9);
  EXPECT_EQ(got.verdict, SpeedVerdict::kFaster);
}

TEST(Speed, OddInputs) {
  const std::vector<SpeedHypothesis> good = {mixed(3, 1.1, 0, 1.0)};
  expect_usage([] { decide_speed({}); }, "list of speed hypotheses is empty");
  expect_usage([] { decide({{}, 0}); }, "at least one block");
  expect_usage([] { decide(mixed(3, 1.1, 0, 1.0, -1)); }, "must not be negative");
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    expect_usage([&] { decide({{{1.0, 1.0}, {bad, 1.0}}, 0}); }, "block 2: the candidate rate");
    expect_usage([&] { decide({{{1.0, bad}}, 0}); }, "block 1: the control rate");
  }
  expect_usage([&] { decide_speed(good, {.min_effect = -0.1}); }, "smallest effect");
  expect_usage([&] { decide_speed(good, {.alpha = 0.5}); }, "alpha must lie");
}

}  // namespace
}  // namespace asymkv::stats
