#include "asymkv/engine/sampler.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

SamplingOptions sampling(const SamplingLaw& law, uint64_t seed = 0) {
  return {law, seed};
}

TEST(Sampler, EqualSeedsGiveEqualNumbers) {
  const SamplingLaw law{.temperature = 1.0};
  Sampler a(sampling(law, 3)), b(sampling(law, 3)), c(sampling(law, 4));
  std::set<double> seen;
  int differ = 0;
  for (int i = 0; i < 200; ++i) {
    const double x = a.next_uniform();
    EXPECT_EQ(x, b.next_uniform());
    EXPECT_GE(x, 0.0);
    EXPECT_LT(x, 1.0);
    differ += x == c.next_uniform() ? 0 : 1;
    seen.insert(x);
  }
  EXPECT_EQ(seen.size(), 200U);
  EXPECT_EQ(differ, 200);
}

// splitmix64 from state 0 starts with 0xe220a8397b1dcdaf.
TEST(Sampler, NumbersAreThePublishedGenerators) {
  EXPECT_EQ(Sampler(sampling({.temperature = 1.0})).next_uniform(),
            static_cast<double>(0xe220a8397b1dcdafULL >> 11) * 0x1.0p-53);
}

TEST(Sampler, OddOptionsAreRefused) {
  const auto refused = [](const SamplingLaw& law) { EXPECT_THROW(check_sampling_options(sampling(law)), Error); };
  refused({.temperature = -0.1});
  refused({.temperature = std::numeric_limits<double>::quiet_NaN()});
  refused({.top_p = 0.0});
  refused({.top_p = 1.5});
  refused({.top_k = -1});
}

}  // namespace
}  // namespace asymkv
