#include "memory_guard.h"

#include <gtest/gtest.h>

#include "asymkv/base/error_testkit.h"
#include "asymkv/gate/run_folder.h"

namespace asymkv::app {
namespace {

using test::expect_error;

class CountingRunner final : public CaseRunner {
 public:
  std::vector<RawOutcome> run_unit(const Unit& /*unit*/) override {
    ++units;
    return {RawOutcome()};
  }
  int units = 0;
};

TEST(MemoryGuard, EndsARunThatIsFoundAboveALimit) {
  Protocol protocol;
  protocol.process_limit_bytes = 1000;
  protocol.device_limit_bytes = 50;
  MemoryUse use = {1000, 50};
  CountingRunner inner;
  MemoryGuard guard(inner, protocol, [&] { return use; });
  guard.begin(RunSummary());
  EXPECT_EQ(guard.run_unit(Unit()).size(), 1);
  use.process_peak = 1001;
  expect_error([&] { guard.run_unit(Unit()); }, ErrorCode::kResourceExhausted,
               "the run took 1001 bytes so far, but the protocol's process_limit_bytes is 1000");
  use = {900, 51};
  expect_error([&] { guard.begin(RunSummary()); }, ErrorCode::kResourceExhausted,
               "the run took 51 bytes so far, but the protocol's device_limit_bytes is 50");
  EXPECT_EQ(inner.units, 2);
}

TEST(MemoryGuard, MeasuresNothingWithoutALimit) {
  CountingRunner inner;
  MemoryGuard guard(inner, Protocol(), []() -> MemoryUse {
    ADD_FAILURE() << "measured";
    return {};
  });
  guard.run_unit(Unit());
}

TEST(HostMemoryUse, GrowsByWhatIsTouched) {
  const int64_t before = host_memory_use().process_peak;
  const std::vector<char> block(static_cast<size_t>(before) + (64 << 20), 1);
  EXPECT_GE(host_memory_use().process_peak, static_cast<int64_t>(block.size()));
  EXPECT_EQ(host_memory_use().device_peak, 0);
}

}  // namespace
}  // namespace asymkv::app
