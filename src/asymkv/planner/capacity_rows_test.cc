#include "asymkv/planner/capacity_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "asymkv/base/error.h"
#include "asymkv/planner/capacity_testkit.h"

namespace asymkv {
namespace {

using planner_testkit::full_layers;
using planner_testkit::shape_of;

Json committed_rows() {
  return read_json_file(std::string(std::getenv("ASYMKV_SOURCE_DIR")) + "/bench/results/kernel-h200.json");
}

size_t num_rows(const Json& bench, std::string_view kv, ScaleKind scale, const std::function<void(RowsKey&)>& change) {
  const ModelShape shape = shape_of({full_layers(36, 8, 128)}, 32);
  const CachePlan plan =
      plan_cache(shape, {.format = parse_kv_format(kv, DType::kBF16, scale), .memory = KvMemory::kDevice});
  RowsKey key{plan.groups[0], 32, "tiled-1", "NVIDIA H200"};
  change(key);
  return measured_rows(bench, "rows.json", key).size();
}

TEST(CapacityRows, OnlyRowsOfExactlyThisPlan) {
  const Json bench = committed_rows();
  const auto same = [](RowsKey&) {};
  EXPECT_EQ(num_rows(bench, "native", ScaleKind::kDynamic, same), 13);
  EXPECT_EQ(num_rows(bench, "k16v8", ScaleKind::kDynamic, same), 13);
  EXPECT_EQ(num_rows(bench, "k16v8", ScaleKind::kFixed, same), 13);
  EXPECT_EQ(num_rows(bench, "k8v16", ScaleKind::kFixed, same), 13);
  EXPECT_EQ(num_rows(bench, "k8v16", ScaleKind::kDynamic, same), 0);
  EXPECT_EQ(num_rows(bench, "ki8v8", ScaleKind::kDynamic, same), 0);  // measured with fixed value scales only
  EXPECT_EQ(num_rows(bench, "native", ScaleKind::kDynamic, [](RowsKey& key) { key.num_q_heads = 16; }), 0);
  EXPECT_EQ(num_rows(bench, "native", ScaleKind::kDynamic, [](RowsKey& key) { key.layout = "plain-1"; }), 0);
  EXPECT_EQ(num_rows(bench, "native", ScaleKind::kDynamic, [](RowsKey& key) { key.device = "NVIDIA H100"; }), 0);
  const auto other_pages = [](RowsKey& key) {
    KvGeometry geometry = key.group.layout.geometry();
    geometry.page_size = 32;
    key.group.layout = KvLayout(geometry, key.group.layout.format());
  };
  EXPECT_EQ(num_rows(bench, "native", ScaleKind::kDynamic, other_pages), 0);
}

TEST(CapacityRows, AnotherFileIsRefused) {
  EXPECT_THROW(num_rows({{"schema", "other"}}, "native", ScaleKind::kDynamic, [](RowsKey&) {}), Error);
  EXPECT_THROW(num_rows({{"schema", "asymkv-bench-kernel-1"}, {"device", "NVIDIA H200"}, {"rows", {{{"us", 1}}}}},
                        "native", ScaleKind::kDynamic, [](RowsKey&) {}),
               Error);
}

}  // namespace
}  // namespace asymkv
