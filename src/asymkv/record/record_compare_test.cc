#include "asymkv/record/record_compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "asymkv/record/record_table.h"
#include "asymkv/record/record_testkit.h"
#include "asymkv/record/schema_testkit.h"

namespace asymkv {
namespace {

using test::expect_error;
using test::full_record;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void store(SideFacts& side, const std::string& format, const std::string& scale) {
  side.resolved = format;
  side.allocated->format = format;
  side.allocated->scale = scale;
  for (LaunchedKernel& kernel : side.launched) kernel.format = format;
}

// full_record with both sides native.
Record native_record() {
  Record record = full_record();
  store(record.value, "bf16", "none");
  record.scales.source = "none";
  return record;
}

TEST(RecordCompare, EqualRecordsAreComparable) {
  const RecordComparison same = compare_records(full_record(), full_record(), {});
  EXPECT_TRUE(same.comparable());
  EXPECT_EQ(same.varies, "");
  EXPECT_THAT(same.differences, IsEmpty());
}

TEST(RecordCompare, WhatDoesNotChangeTheWorkMakesNoDifference) {
  Record later = full_record();
  later.key.requested = "bf16/e4m3";
  later.value.requested = "bf16/e4m3";
  later.value.allocated->payload_bytes = 7 << 20;
  later.key.launched[0].count = 99;
  later.argv_sha256 = std::string(64, '0');
  later.started = later.ended = "2026-12-01T00:00:00Z";
  later.model.id = "the same weights under another name";
  EXPECT_TRUE(compare_records(full_record(), later, {}).comparable());
}

// The value's scale comes with its format: it is one thing that differs.
TEST(RecordCompare, TheOneDifferenceIsInferred) {
  const RecordComparison comparison = compare_records(native_record(), full_record(), {});
  EXPECT_TRUE(comparison.comparable());
  EXPECT_EQ(comparison.varies, "value");
  ASSERT_EQ(comparison.differences.size(), 1U);
  EXPECT_EQ(comparison.differences[0].a, "bf16, attested");
  EXPECT_EQ(comparison.differences[0].b, "e4m3, attested");
}

TEST(RecordCompare, EveryFieldIsNamedAndRefusedBesideAnother) {
  const std::vector<std::pair<std::string, std::function<void(Record&)>>> changes = {
      {"engine", [](Record& r) { r.engine = "other"; }},
      {"key", [](Record& r) { store(r.key, "e4m3", "dynamic"); }},
      {"scale", [](Record& r) { r.value.allocated->scale = "fixed"; }},
      {"scale",
       [](Record& r) {
         r.scales = {"calibrated", std::string(64, '1'), 0};
       }},
      {"kernel", [](Record& r) { r.key.launched[0].family = r.value.launched[0].family = "cuda-ref"; }},
      {"kernel", [](Record& r) { r.worker = "cuda-sm90a+cuda-cublaslt-a16"; }},
      {"query", [](Record& r) { r.key.launched[0].instance += " queries=e4m3"; }},
      {"build", [](Record& r) { r.build.hash = "b2"; }},
      {"build", [](Record& r) { r.build.compiler = "clang 14"; }},
      {"layout", [](Record& r) { r.layout.id = "tiled-1"; }},
      {"layout", [](Record& r) { r.layout.page_size = 32; }},
      {"transform", [](Record& r) { r.transform.sha256 = std::string(64, '1'); }},
      {"model", [](Record& r) { r.model.weights_sha256 = std::string(64, '1'); }},
      {"device", [](Record& r) { r.device.name = "H100"; }},
      {"device", [](Record& r) { r.device.driver = "581"; }},
      {"launch", [](Record& r) { r.launch.mode = "eager"; }},
      {"launch", [](Record& r) { r.launch.batch = 1; }},
      {"launch", [](Record& r) { r.launch.split = "flat"; }},
      {"launch", [](Record& r) { r.launch.threads = 1; }}};
  for (const auto& [field, change] : changes) {
    SCOPED_TRACE(field);
    Record other = full_record();
    change(other);
    const RecordComparison alone = compare_records(full_record(), other, {});
    EXPECT_TRUE(alone.comparable());
    EXPECT_EQ(alone.varies, field);
    // Beside the value's format it is a second thing.
    const RecordComparison second = compare_records(native_record(), other, {"value", {}});
    const bool same_scales = field == "scale";  // of which native values have none
    EXPECT_EQ(second.comparable(), same_scales) << render_record_comparison(second);
    if (!same_scales) {
      EXPECT_THAT(second.refused, ElementsAre(field));
    }
    EXPECT_TRUE(compare_records(native_record(), other, {"value", {field}}).comparable());
  }
}

TEST(RecordCompare, TwoDifferencesAreRefusedByName) {
  Record other = native_record();
  other.build.hash = "b2";
  const RecordComparison comparison = compare_records(full_record(), other, {});
  EXPECT_FALSE(comparison.comparable());
  EXPECT_THAT(comparison.refused, ElementsAre("value", "build"));
  EXPECT_THAT(render_record_comparison(comparison), HasSubstr("not comparable: value, build\n"));
  EXPECT_EQ(test::SchemaCheck("record-comparison.schema.json").check(record_comparison_to_json(comparison)), "");
}

TEST(RecordCompare, BothSidesTogetherMustBeAskedFor) {
  Record other = full_record();
  store(other.key, "e4m3-prebias", "dynamic");
  store(other.value, "bf16", "none");
  EXPECT_THAT(compare_records(full_record(), other, {}).refused, ElementsAre("key", "value"));
  const RecordComparison asked = compare_records(full_record(), other, {"format", {}});
  EXPECT_TRUE(asked.comparable());
  EXPECT_EQ(test::SchemaCheck("record-comparison.schema.json").check(record_comparison_to_json(asked)), "");
}

TEST(RecordCompare, TwoUnknownsAreNotEqual) {
  Record imported;
  imported.engine = "vllm";
  imported.imported_from = "vllm-log";
  imported.key.requested = imported.value.requested = "auto";
  imported.scales.source = imported.transform.kind = imported.launch.mode = "unknown";
  const RecordComparison comparison = compare_records(imported, imported, {});
  EXPECT_THAT(comparison.refused,
              ElementsAre("key", "value", "kernel", "build", "transform", "model", "device", "launch"));
  EXPECT_THAT(render_record_comparison(comparison),
              HasSubstr("unknown, not attested: nothing says what was allocated"));
  EXPECT_FALSE(compare_records(imported, imported, {"key", {}}).comparable());
}

TEST(RecordCompare, WhatIsNotAttestedIsNotCompared) {
  Record other = full_record();
  other.value.launched[0].format = "bf16";
  const RecordComparison comparison = compare_records(full_record(), other, {"value", {}});
  EXPECT_THAT(comparison.refused, ElementsAre("value"));
  EXPECT_EQ(comparison.differences[0].why, Unlike::kNotAttested);
  EXPECT_THAT(comparison.differences[0].b, HasSubstr("e4m3, not attested: attend<bf16,e4m3,64> worked on bf16"));
}

TEST(RecordCompare, UnknownFieldsAreBadUsage) {
  const Record record = full_record();
  const auto refuse = [&](const RecordComparisonOptions& options, std::string_view words) {
    expect_error([&] { compare_records(record, record, options); }, ErrorCode::kUsage, words);
  };
  refuse({"dtype", {}}, "--varies \"dtype\" is no field");
  refuse({"", {"format"}}, "--ignore \"format\" is no field");
}

TEST(RecordTable, SaysEachFactAndWhyASideIsNotAttested) {
  Record record = full_record();
  const std::string table = render_record({"records.k16v8", record});
  EXPECT_THAT(table, HasSubstr("records.k16v8: asymkv 0.1.0\n"));
  EXPECT_THAT(table, testing::ContainsRegex("requested +k16v8 +k16v8\n"));
  EXPECT_THAT(table, testing::ContainsRegex("resolved +bf16 +e4m3\n"));
  EXPECT_THAT(table, testing::ContainsRegex("allocated +bf16 +e4m3\n"));
  EXPECT_THAT(table, testing::ContainsRegex("launched +bf16 +e4m3\n"));
  EXPECT_THAT(table, testing::ContainsRegex("effective +bf16 +e4m3\n +attested +attested\n"));
  EXPECT_THAT(table, HasSubstr("attend<bf16,e4m3,64> on e4m3, 12 times, build b1\n"));
  record.value.launched[0].format = "bf16";
  EXPECT_THAT(render_record({"", record}), HasSubstr("not attested: attend<bf16,e4m3,64> worked on bf16\n"));
  record.value.launched.clear();
  EXPECT_THAT(render_record({"", record}), HasSubstr("not attested: nothing says which kernels ran\n"));
  EXPECT_THAT(render_record_list(std::vector<FoundRecord>{{"a", record}}),
              HasSubstr("a  keys bf16, values e4m3, not attested\n"));
}

}  // namespace
}  // namespace asymkv
