#include "asymkv/record/record_scan.h"

#include <gtest/gtest.h>

#include "asymkv/base/file.h"
#include "asymkv/record/kernel_row.h"
#include "asymkv/record/record_testkit.h"

namespace asymkv {
namespace {

using test::expect_error;
using test::full_record;
namespace fs = std::filesystem;

fs::path source_file(const std::string& name) {
  return fs::path(std::getenv("ASYMKV_SOURCE_DIR")) / name;
}

TEST(RecordScan, FindsRecordsAtAnyDepth) {
  const Json record = record_to_json(full_record());
  const Json document = {{"records", {{"k16v8", record}}}, {"rows", {{{"record", record}}, {{"record", record}}}}};
  const std::vector<FoundRecord> found = find_records(document, "x");
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].at, "records.k16v8");
  EXPECT_EQ(found[2].at, "rows[1].record");
  EXPECT_EQ(found[2].record, full_record());
  EXPECT_EQ(find_records(record, "x")[0].at, "");
  expect_error([] { find_records({{"rows", 1}}, "x.json"); }, ErrorCode::kBadInput, "x.json: holds no record");
}

TEST(RecordScan, ABrokenRecordIsNamedByItsPlace) {
  Json record = record_to_json(full_record());
  record["value"]["effective"] = "bf16";
  expect_error(
      [&] {
        find_records({{"rows", {{{"record", record}}}}}, "x.json");
      },
      ErrorCode::kBadInput, "x.json: rows[0].record: field \"value.effective\" must be \"e4m3\"");
  record["schema"] = "asymkv.record/9";
  expect_error([&] { find_records(record, "x.json"); }, ErrorCode::kUnsupported, "asymkv.record/9");
}

TEST(RecordScan, ReadsTheFilesOfThisProject) {
  const fs::path example = source_file("examples/qwen2.5-coder-0.5b-quick");
  const std::vector<FoundRecord> run = read_records(example / "record.json");
  EXPECT_EQ(choose_record(run, "SD", "x").record.value.effective(), "e4m3");
  EXPECT_EQ(choose_record(run, "arms.JD", "x").record.key.effective(), "i8-prebias");
  EXPECT_EQ(read_records(example / "certificate.json").size(), run.size());
  const std::vector<FoundRecord> bench = read_records(source_file("bench/results/engine-a32.json"));
  EXPECT_TRUE(choose_record(bench, "k16v8", "x").record.key.attested());
  expect_error([&] { choose_record(run, "", "run.json"); }, ErrorCode::kUsage, "run.json holds 5 records: name one of");
  expect_error([&] { choose_record(run, "XX", "run.json"); }, ErrorCode::kUsage, "has no record at \"XX\"");
  expect_error(
      [&] {
        choose_record(
            find_records({{"a", {{"r", record_to_json(full_record())}}}, {"b", {{"r", record_to_json(full_record())}}}},
                         "x"),
            "r", "x");
      },
      ErrorCode::kUsage, "\"r\" may be a.r or b.r");
}

TEST(RecordScan, ReadsLinesOfRecords) {
  const fs::path path = fs::path(testing::TempDir()) / "record_scan_test.jsonl";
  const std::string line = canonical_json(record_to_json(full_record())) + "\n";
  write_file_atomic(path, line + line);
  EXPECT_EQ(read_records(path).size(), 2U);
  EXPECT_EQ(read_records(path)[1].at, "[1]");
  write_file_atomic(path, line);
  EXPECT_EQ(read_records(path).size(), 1U);
  fs::remove(path);
}

// The rows of a kernel benchmark carry a record of their own, which says of each side where it was seen.
TEST(RecordScan, RowsOfTheKernelBenchmarkBecomeRecords) {
  const std::vector<FoundRecord> rows = read_records(source_file("bench/results/kernel-h200.json"));
  EXPECT_EQ(rows.size(), 377U);
  for (const FoundRecord& row : rows) {
    EXPECT_TRUE(row.record.key.attested() && row.record.value.attested()) << row.at;
    EXPECT_EQ(row.record.device.name, "NVIDIA H200");
    record_to_json(row.record);  // obeys the reader
  }
  const Record& first = rows[0].record;
  EXPECT_EQ(first.key.allocated->page_bytes, 16 * 8 * 128 * 2);  // slots, heads, channels, bytes of bf16
  const auto prebias = std::ranges::find_if(rows, [](const FoundRecord& row) {
    return row.record.key.effective() == "i8-prebias" && row.record.key.requested == "ki8v8-prebias";
  });
  ASSERT_NE(prebias, rows.end());
  EXPECT_EQ(prebias->record.key.allocated->scale, "dynamic");
  EXPECT_EQ(prebias->record.key.allocated->scale_bytes, 16 * 8 * 4);
}

TEST(RecordScan, ARowOfTheKernelBenchmarkHasTheBytesOfItsPool) {
  Json row = read_json_file(source_file("bench/results/kernel-h200.json")).at("rows").at(0);
  EXPECT_EQ(record_from_kernel_row(row, "x").key.allocated->payload_bytes, 0) << "an earlier row does not say";
  row["record"]["launch"]["pool_pages"] = 1000;
  const Record record = record_from_kernel_row(row, "x");
  EXPECT_EQ(record.key.allocated->payload_bytes, 1000 * record.key.allocated->page_bytes);
  EXPECT_EQ(record.value.allocated->payload_bytes, 1000 * record.value.allocated->page_bytes);
  row["record"]["key"]["scale"] = "dynamic";
  expect_error([&] { record_from_kernel_row(row, "x"); }, ErrorCode::kBadInput,
               "x: field \"record\" has bf16 keys with scale dynamic and bf16 values with scale none");
  row["record"]["key"]["allocated"] = "e5m2";
  expect_error([&] { record_from_kernel_row(row, "x"); }, ErrorCode::kBadInput, "x: field \"record\" is wrong");
}

}  // namespace
}  // namespace asymkv
