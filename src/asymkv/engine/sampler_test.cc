#include "asymkv/engine/sampler.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

constexpr std::array<float, 5> kLogits = {0.0F, 2.0F, 1.0F, 2.0F, -5.0F};

TEST(Sampler, GreedyTakesTheFirstOfEquals) {
  Sampler sampler({});
  EXPECT_EQ(sampler.sample(kLogits), 1);
  EXPECT_EQ(argmax(kLogits), 1);
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  SamplingOptions options;
  options.temperature = 0.7;
  options.seed = 11;
  Sampler sampler(options);
  std::map<int32_t, int> counts;
  constexpr int kDraws = 40000;
  for (int i = 0; i < kDraws; ++i) ++counts[sampler.sample(kLogits)];
  double total = 0;
  for (const float x : kLogits) total += std::exp(x / options.temperature);
  for (size_t i = 0; i < kLogits.size(); ++i) {
    const double p = std::exp(kLogits[i] / options.temperature) / total;
    const double tolerance = 4.5 * std::sqrt(p * (1 - p) / kDraws);
    EXPECT_NEAR(static_cast<double>(counts[static_cast<int32_t>(i)]) / kDraws, p, tolerance + 1e-9) << "token " << i;
  }
}

TEST(Sampler, TopKAndTopPCutTheTail) {
  SamplingOptions top_k;
  top_k.temperature = 5.0;
  top_k.top_k = 2;
  Sampler two(top_k);
  SamplingOptions top_p;
  top_p.temperature = 1.0;
  top_p.top_p = 0.1;
  Sampler nucleus(top_p);
  for (int i = 0; i < 500; ++i) {
    const int32_t token = two.sample(kLogits);
    EXPECT_TRUE(token == 1 || token == 3) << token;
    EXPECT_EQ(nucleus.sample(kLogits), 1);
  }
}

TEST(Sampler, EqualSeedsGiveEqualDraws) {
  SamplingOptions options;
  options.temperature = 1.0;
  options.seed = 3;
  Sampler a(options);
  Sampler b(options);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(a.sample(kLogits), b.sample(kLogits));
}

TEST(Sampler, OddOptionsAreRefused) {
  const auto refused = [](SamplingOptions options) { EXPECT_THROW(check_sampling_options(options), Error); };
  SamplingOptions options;
  options.temperature = -0.1;
  refused(options);
  options.temperature = std::numeric_limits<double>::quiet_NaN();
  refused(options);
  options = {};
  options.top_p = 0.0;
  refused(options);
  options.top_p = 1.5;
  refused(options);
  options = {};
  options.top_k = -1;
  refused(options);
}

TEST(Sampler, LogitsThatAreNotFiniteAreRefused) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const double temperature : {0.0, 1.0}) {
      SamplingOptions options;
      options.temperature = temperature;
      EXPECT_THROW(Sampler(options).sample(std::vector<float>{1.0F, bad, 2.0F}), Error) << bad << " " << temperature;
    }
  }
}

}  // namespace
}  // namespace asymkv
