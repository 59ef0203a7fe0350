#include "run_cost.h"

#include <gtest/gtest.h>

#include <string>

namespace asymkv::app {
namespace {

// A machine on which a unit of n cases takes 1 second for every prompt (shared by its arms), and a step that all its
// lanes make together costs 4 seconds and another one for every lane beyond the eighth.
class FakeMachine final : public CaseRunner {
 public:
  std::vector<RawOutcome> run_unit(const Unit& unit) override {
    const auto lanes = static_cast<double>(unit.cases.size() * unit.slots.size());
    now += static_cast<double>(unit.cases.size()) + 4 + std::max(0.0, lanes - 8);
    if (!unit.cases.empty() && unit.cases.front().context != prefix) now += prefix_seconds;
    prefix = unit.cases.back().context;
    batches.push_back(std::ssize(unit.cases));
    return {};
  }

  double now = 0;
  double prefix_seconds = 0;
  std::string prefix;
  std::vector<int64_t> batches;
};

Unit make_unit(const std::string& panel, int64_t first, int64_t count, const std::vector<ArmId>& arms) {
  Unit unit;
  unit.panel = panel;
  for (int64_t i = first; i < first + count; ++i) {
    Case item;
    item.id = std::to_string(i);
    item.context = "head";
    unit.cases.push_back(item);
  }
  for (const ArmId arm : arms) unit.slots.push_back({arm, {}});
  return unit;
}

TEST(RunCost, APanelAskedInSeveralLooksIsOnePanel) {
  FakeMachine machine;
  CostMeter meter(machine, [&machine] { return machine.now; });
  for (const char* panel : {"math", "loss", "math", "loss"}) meter.run_unit(make_unit(panel, 0, 2, {ArmId::kN}));
  const std::vector<PanelCost> costs = meter.against_native(machine);
  ASSERT_EQ(costs.size(), 2U);
  EXPECT_EQ(costs[0].panel, "math");
  EXPECT_EQ(costs[1].panel, "loss");
  EXPECT_EQ(costs[0].native_batch, 4) << "the cases of both looks";
}

TEST(RunCost, ComparesAllArmsWithTheBestNativeBatch) {
  FakeMachine machine;
  CostMeter meter(machine, [&machine] { return machine.now; });
  for (int64_t i = 0; i < 10; ++i) meter.run_unit(make_unit("math", 4 * i, 4, {ArmId::kN, ArmId::kN2, ArmId::kSD}));
  machine.batches.clear();
  const std::vector<PanelCost> costs = meter.against_native(machine);
  ASSERT_EQ(costs.size(), 1U);
  EXPECT_EQ(costs[0].panel, "math");
  EXPECT_EQ(costs[0].arms, 3);
  EXPECT_DOUBLE_EQ(costs[0].seconds_per_case, (4 + 4 + 4) / 4.0);  // 12 lanes, four of them beyond the eighth
  // 32 of the 40 cases. In batches of 32: 32 + 4 + 24; of 16: 2 x (16 + 4 + 8); of 8: 4 x (8 + 4); of 4: 8 x 8.
  EXPECT_DOUBLE_EQ(costs[0].native_seconds_per_case, 48.0 / 32);
  EXPECT_EQ(costs[0].native_batch, 8);
  EXPECT_DOUBLE_EQ(costs[0].ratio(), 2.0);
  ASSERT_EQ(machine.batches.size(), 1U + 1 + 2 + 4 + 8 + 16 + 32);
  EXPECT_EQ(machine.batches[0], 32) << "the shared context, before the clock counts";
  EXPECT_EQ(cost_lines(costs), "math: 3 arms took 2.0x a native-only run (best batch 8)\n");
  EXPECT_EQ(cost_to_json(costs).dump(),
            R"({"math":{"arms":3,"native_batch":8,"native_seconds_per_case":1.5,"ratio":2.0,"seconds_per_case":3.0}})");
}

TEST(RunCost, APrefixThatAllCasesShareIsNotCounted) {
  FakeMachine machine;
  CostMeter meter(machine, [&machine] { return machine.now; });
  meter.run_unit(make_unit("math", 0, 8, {ArmId::kN}));
  machine.prefix = "another";
  machine.prefix_seconds = 1000;
  EXPECT_DOUBLE_EQ(meter.against_native(machine)[0].native_seconds_per_case, 12.0 / 8);
}

TEST(RunCost, LongPromptsMakeSmallBatchesAndPanelsStandInOrder) {
  FakeMachine machine;
  CostMeter meter(machine, [&machine] { return machine.now; });
  EXPECT_TRUE(meter.against_native(machine).empty()) << "a resumed run that had nothing left to do";
  Unit far = make_unit("retrieval-30720", 0, 5, {ArmId::kN, ArmId::kSD});
  for (Case& item : far.cases) {
    item.length = 30720;
    item.context = item.id;
  }
  meter.run_unit(far);
  meter.run_unit(make_unit("math", 0, 1, {ArmId::kN, ArmId::kSD}));
  machine.batches.clear();
  const std::vector<PanelCost> costs = meter.against_native(machine);
  ASSERT_EQ(costs.size(), 2U);
  EXPECT_EQ(costs[0].panel, "retrieval-30720");
  EXPECT_EQ(costs[1].panel, "math");
  EXPECT_EQ(machine.batches, (std::vector<int64_t>{2, 1, 1, 1})) << "two prompts fit into 65,536 tokens";
}

TEST(RunCost, ClocksRun) {
  const double processor = processor_seconds();
  const double wall = wall_seconds();
  while (processor_seconds() == processor || wall_seconds() == wall) {
  }
  EXPECT_GT(processor_seconds(), processor);
  EXPECT_GT(wall_seconds(), wall);
}

}  // namespace
}  // namespace asymkv::app
