#include "asymkv/planner/capacity_verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "asymkv/base/error_testkit.h"
#include "asymkv/device/device.h"
#include "asymkv/planner/capacity_testkit.h"

namespace asymkv {
namespace {

using planner_testkit::all_formats;
using planner_testkit::full_layers;
using planner_testkit::shape_of;

ModelShape two_kinds() {
  LayerGroup window = full_layers(3, 2, 64);
  window.kind = LayerKind::kSliding;
  window.window = 100;
  return shape_of({full_layers(4, 2, 128), window}, 4);
}

TEST(CapacityVerify, RealAllocationsOfAllFormatsMatchToTheByte) {
  for (const KvFormat& format : all_formats(DType::kBF16)) {
    const CachePlan plan = plan_cache(two_kinds(), {.format = format});
    const VerifyResult result = verify_allocation(plan, 128, KvMemory::kHost);
    for (const VerifyLine& line : result.lines) EXPECT_EQ(line.planned, line.found) << format.id() << " " << line.term;
    EXPECT_EQ(result.difference_bytes(), 0);
    EXPECT_EQ(result.lines.size(), 16);
    if (result.growth) {
      EXPECT_GT(result.growth->planned, 8 * result.growth->tolerance) << "the check would see nothing";
      EXPECT_TRUE(result.growth->ok()) << format.id() << ": planned " << result.growth->planned << ", mapped "
                                       << result.growth->mapped << ", resident " << result.growth->resident;
    }
  }
}

TEST(CapacityVerify, WindowLayersTakeTheirWindow) {
  const CachePlan plan = plan_cache(two_kinds(), {});
  const VerifyResult result = verify_allocation(plan, 128, KvMemory::kHost);
  const auto slots = std::ranges::find(result.lines, "sliding slots", &VerifyLine::term);
  ASSERT_NE(slots, result.lines.end());
  EXPECT_EQ(slots->found, 7 * 16);
}

// Every line is looked at: a cache that differs in one of them is told by it.
TEST(CapacityVerify, ADifferenceInAnyLineIsFound) {
  const CacheGroup group =
      plan_cache(two_kinds(), {.format = parse_kv_format("k8v8", DType::kBF16, ScaleKind::kFixed)}).groups[0];
  const KvCache real(group.layout, verify_config(group, 5));
  const auto not_ok = [&](const CacheInventory& inventory, int64_t num_slots) {
    const auto lines = compare_inventory(group, 5, inventory, num_slots);
    return std::ranges::count_if(lines, [](const VerifyLine& line) { return !line.ok(); });
  };
  const CacheInventory right = real.inventory();
  EXPECT_EQ(not_ok(right, 80), 0);
  EXPECT_EQ(not_ok(right, 79), 1);
  int64_t PageBytes::*const terms[] = {&PageBytes::k_payload, &PageBytes::v_payload, &PageBytes::k_scales,
                                       &PageBytes::v_scales, &PageBytes::padding};
  for (int64_t PageBytes::*const term : terms) {
    CacheInventory wrong = right;
    wrong.planes.*term += 1;
    EXPECT_EQ(not_ok(wrong, 80), 1);
  }
  CacheInventory wrong = right;
  wrong.num_pages = 4;
  wrong.fixed_scale_bytes = 0;
  EXPECT_EQ(not_ok(wrong, 80), 2);
}

TEST(CapacityVerify, AFormatOfOtherBytesIsNotTakenForThePlanned) {
  const KvFormat planned = parse_kv_format("k8v16", DType::kBF16, ScaleKind::kFixed);
  const KvFormat stored = parse_kv_format("k16v8", DType::kBF16, ScaleKind::kFixed);  // as many bytes in all
  const CacheGroup group = plan_cache(two_kinds(), {.format = planned}).groups[0];
  const CacheGroup other = plan_cache(two_kinds(), {.format = stored}).groups[0];
  const KvCache real(other.layout, verify_config(other, 5));
  const auto lines = compare_inventory(group, 5, real.inventory(), 80);
  EXPECT_FALSE(lines[0].ok());
  EXPECT_FALSE(lines[1].ok());
}

TEST(CapacityVerify, GrowthBeyondItsToleranceIsAnError) {
  ProcessGrowth growth{.planned = 1000000, .mapped = 1000100, .resident = 999900, .tolerance = 100};
  EXPECT_TRUE(growth.ok());
  growth.mapped = 1000101;
  EXPECT_FALSE(growth.ok());
  growth = {.planned = 1000000, .mapped = 1000000, .resident = 999899, .tolerance = 100};
  EXPECT_FALSE(growth.ok());
}

TEST(CapacityVerify, DeviceGrowthBeyondItsBlocksIsAnError) {
  VerifyResult result;
  result.device = {{"caches", 1000, 1100, 100}, {"staging", 1000, 900, 100}};
  EXPECT_TRUE(result.ok());
  result.device[0].found = 1101;
  EXPECT_FALSE(result.ok());
  result.device[0].found = 1000;
  result.device[1].found = 899;
  EXPECT_FALSE(result.ok());
}

TEST(CapacityVerify, DeviceMemoryIsMeasuredWhereThereIsADevice) {
  CachePlanOptions options;
  options.memory = KvMemory::kDevice;
  const CachePlan plan = plan_cache(two_kinds(), options);
  if (list_devices().devices.empty()) {
    test::expect_error([&] { verify_allocation(plan, 8, KvMemory::kDevice); }, ErrorCode::kUnsupported, "");
    return;
  }
  const VerifyResult result = verify_allocation(plan, 8192, KvMemory::kDevice, int64_t{64} << 20);
  EXPECT_TRUE(result.ok());
  ASSERT_EQ(result.device.size(), 2);
  EXPECT_GT(result.device[0].found, 8 * result.device[0].tolerance) << "the check would see nothing";
  EXPECT_EQ(result.device[1].found, int64_t{64} << 20);
}

}  // namespace
}  // namespace asymkv
