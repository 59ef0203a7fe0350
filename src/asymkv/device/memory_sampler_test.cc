#include "asymkv/device/memory_sampler.h"

#include <gtest/gtest.h>

#include <atomic>

#include "asymkv/base/error.h"
#include "asymkv/base/error_testkit.h"

namespace asymkv {
namespace {

using std::chrono::milliseconds;

TEST(MemorySampler, SeesAPeakBetweenTwoQuestions) {
  std::atomic<int64_t> used = 10, asked = 0;
  MemorySampler sampler(
      [&] {
        ++asked;
        return used.load();
      },
      milliseconds(1));
  EXPECT_EQ(sampler.peak().bytes, 10);
  used = 70;
  for (const int64_t before = asked; asked < before + 2;) std::this_thread::sleep_for(milliseconds(1));
  used = 20;
  EXPECT_EQ(sampler.peak().bytes, 70);
  EXPECT_GE(sampler.peak().samples, 4);
  sampler.restart();
  EXPECT_EQ(sampler.peak().bytes, 20);
}

TEST(MemorySampler, EndsAtOnceHoweverLongItsInterval) {
  MemorySampler sampler([] { return int64_t{5}; }, milliseconds(3'600'000));
  EXPECT_EQ(sampler.peak().bytes, 5);
}

TEST(MemorySampler, TellsOfAFailedSample) {
  MemorySampler sampler([]() -> int64_t { throw_error(ErrorCode::kInternal, "no such device"); }, milliseconds(1));
  test::expect_error([&] { sampler.peak(); }, ErrorCode::kInternal, "no such device");
}

}  // namespace
}  // namespace asymkv
