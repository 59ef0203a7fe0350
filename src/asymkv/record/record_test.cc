#include "asymkv/record/record.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "asymkv/base/error.h"
#include "asymkv/record/record_testkit.h"
#include "asymkv/record/schema_testkit.h"

namespace asymkv {
namespace {

using test::expect_error;
using test::full_record;
using test::test_file;

const test::SchemaCheck& schema() {
  static const test::SchemaCheck check("record.schema.json");
  return check;
}

// Another engine that emits the record itself, types of its own included.
Record other_engine() {
  Record r = full_record();
  r.engine = "other";
  r.value.resolved = r.value.allocated->format = r.value.launched[0].format = "q8_0";
  r.value.allocated->scale = "block";
  return r;
}

TEST(Record, RoundTripsAndObeysTheSchema) {
  Record imported;
  imported.engine = "other";
  imported.imported_from = "other-log";
  imported.key.requested = "auto";
  for (const Record& record : {Record(), full_record(), imported, other_engine()}) {
    const Json json = record_to_json(record);
    EXPECT_EQ(schema().check(json), "");
    EXPECT_EQ(record_from_json(parse_json(canonical_json(json), "x"), "x"), record);
  }
}

TEST(Record, TheSchemaRefusesWhatTheReaderRefuses) {
  const auto broken = [](const char* pointer, const Json& value) {
    Json json = record_to_json(full_record());
    json[Json::json_pointer(pointer)] = value;
    return schema().check(json);
  };
  EXPECT_NE(broken("/key/allocated/format", "fp8"), "");
  EXPECT_NE(broken("/key/launched", Json::array()), "");
  EXPECT_NE(broken("/scales/epoch", -1), "");
  EXPECT_NE(broken("/scales/epoch", 1.5), "");
  EXPECT_NE(broken("/model/weights_sha256", "abc"), "");
  EXPECT_NE(broken("/model/note", "x"), "");
  EXPECT_NE(broken("/started", "yesterday"), "");
  EXPECT_NE(broken("/schema", "asymkv.record/1"), "");
  Json json = record_to_json(full_record());
  json.erase("build");
  EXPECT_EQ(schema().check(json), "$ lacks build");
}

TEST(Record, NothingIsCopiedIntoAGap) {
  Record record;
  record.key.requested = "k8v8";
  const Json json = record_to_json(record);
  EXPECT_EQ(json["key"]["requested"], "k8v8");
  EXPECT_EQ(json["key"]["resolved"], "unknown");
  EXPECT_EQ(json["key"]["allocated"], "unknown");
  EXPECT_EQ(json["key"]["launched"], "unknown");
  EXPECT_EQ(json["key"]["effective"], "unknown");
  EXPECT_EQ(json["value"]["requested"], "unset");
  EXPECT_EQ(json["key"]["attested"], false);
}

TEST(Record, IsAttestedOnlyIfEveryKernelAgrees) {
  SideFacts side = full_record().value;
  EXPECT_EQ(side.effective(), "e4m3");
  EXPECT_TRUE(side.attested());
  side.launched.push_back({"ref", "attend", "bf16", "b1", 1});
  EXPECT_FALSE(side.attested());
  side.launched.clear();
  EXPECT_FALSE(side.attested());
  side = full_record().value;
  side.allocated.reset();
  EXPECT_FALSE(side.attested());
  EXPECT_EQ(side.effective(), "unknown");
}

TEST(Record, MergingAddsLaunchesAndKeepsTheFirstStart) {
  Record later = full_record();
  later.key.launched[0].count = 5;
  later.key.launched.push_back({"cuda-sm90a", "write<bf16,e4m3>", "bf16", "b1", 7});
  later.key.allocated->payload_bytes = 1 << 21;
  later.argv_sha256 = std::string(64, '0');
  later.started = "2026-11-29T17:00:00Z";
  later.ended = "2026-11-29T17:30:00Z";
  const Record merged = merge_records(full_record(), later, "record.json");
  Record expected = full_record();
  expected.key.launched = {{"cuda-sm90a", "attend<bf16,e4m3,64>", "bf16", "b1", 17},
                           {"cuda-sm90a", "write<bf16,e4m3>", "bf16", "b1", 7}};
  expected.value.launched[0].count = 24;
  expected.key.allocated->payload_bytes = 1 << 21;
  expected.ended = later.ended;
  EXPECT_EQ(merged, expected);
  // A resumed run may go on elsewhere, with the same kernels.
  later.device.name = "H100";
  later.launch.threads = 8;
  later.launch.batch = 40;
  const Record moved = merge_records(merged, later, "record.json");
  EXPECT_EQ(moved.device.name, "H200; H100");
  EXPECT_EQ(moved.launch.threads, 0);
  EXPECT_EQ(moved.launch.batch, 40) << "the largest";
  // Its units may have had no decode step, or the earlier ones none.
  later.launch.mode = "eager";
  EXPECT_EQ(merge_records(moved, later, "record.json").launch.mode, "graph");
  EXPECT_EQ(merge_records(later, moved, "record.json").launch.mode, "graph");
  EXPECT_EQ(merge_records(later, later, "record.json").launch.mode, "eager");
  EXPECT_EQ(merge_records(moved, later, "record.json").device.name, "H200; H100");
  // A process that ran nothing takes nothing away.
  later.key.launched.clear();
  later.value.launched.clear();
  EXPECT_EQ(merge_records(full_record(), later, "record.json").key.launched, full_record().key.launched);
}

TEST(Record, RecordsOnOtherTermsAreNotMerged) {
  const auto refuse = [](const std::function<void(Record&)>& change, std::string_view words) {
    Record later = full_record();
    change(later);
    expect_error([&] { merge_records(full_record(), later, "record.json"); }, ErrorCode::kBadInput, words);
  };
  refuse([](Record& r) { r.value.allocated->format = r.value.launched[0].format = "bf16"; }, "field \"value\" is");
  refuse([](Record& r) { r.key.allocated->page_bytes = 8192; }, "record.json: field \"key\" is");
  refuse([](Record& r) { r.launch.mode = "unknown"; }, "field \"launch\" is");
  refuse([](Record& r) { r.model.weights_sha256 = std::string(64, '9'); }, "field \"model\" is");
  refuse([](Record& r) { r.scales = {"none", "", 3}; }, "field \"scales\" is");
  refuse([](Record& r) { r.worker = "cuda-sm90a+cuda-cublaslt-a16"; }, "field \"worker\" is");
}

TEST(Record, BrokenRecordsNameTheField) {
  const auto refuse = [](const char* pointer, const Json& value, std::string_view words) {
    Json json = record_to_json(full_record());
    json[Json::json_pointer(pointer)] = value;
    SCOPED_TRACE(pointer);
    expect_error([&] { record_from_json(json, "r.json"); }, ErrorCode::kBadInput, words);
    expect_error([&] { record_from_json(json, "r.json"); }, ErrorCode::kBadInput, "r.json");
  };
  refuse("/key/effective", "e4m3", "field \"key.effective\" must be \"bf16\", the allocated format");
  refuse("/value/attested", false, "field \"value.attested\" must be true");
  refuse("/value/resolved", "fp8", "field \"value.resolved\" is \"fp8\"; known: bf16 f16 f32 e4m3");
  refuse("/value/resolved", "auto", "field \"value.resolved\" is \"auto\"");
  refuse("/value/allocated", "e4m3", "field \"value.allocated\" must be an object, found string");
  refuse("/value/allocated/scale", "static", "field \"value.allocated.scale\" is \"static\"");
  refuse("/value/allocated/page_bytes", 0, "field \"value.allocated.page_bytes\" is 0, below 1");
  refuse("/value/launched", Json::array(), "field \"value.launched\" is an empty list");
  refuse("/value/launched/0/count", 0, "field \"value.launched[0].count\" is 0, below 1");
  refuse("/model/weights_sha256", "ABC", "field \"model.weights_sha256\" is \"ABC\", which is no lower-case SHA-256");
  refuse("/model/id", "", "field \"model.id\" is empty: write null");
  refuse("/scales/source", "calibrated", "field \"scales.sha256\" is null, but calibrated scales come from a file");
  refuse("/transform/sha256", nullptr, "field \"transform.sha256\" must be given exactly where a bias was removed");
  refuse("/launch/mode", "lazy", "field \"launch.mode\" is \"lazy\"; known: eager graph");
  refuse("/ended", "2026-11-29 16:20:05", "field \"ended\" is \"2026-11-29 16:20:05\"");
  refuse("/imported_from", "other-log", "an imported record may carry what was requested, nothing more");
  refuse("/note", 1, "unknown field \"note\"");
  Json json = record_to_json(full_record());
  json["schema"] = "asymkv.record/9";
  expect_error([&] { record_from_json(json, "r.json"); }, ErrorCode::kUnsupported,
               "reads asymkv.record/1 to asymkv.record/2");
}

TEST(Record, OnlyAnotherEngineHasTypesOfItsOwn) {
  Json json = record_to_json(other_engine());
  json["engine"] = "asymkv";
  expect_error([&] { record_from_json(json, "r.json"); }, ErrorCode::kBadInput, "is \"q8_0\"; known:");
  json = record_to_json(other_engine());
  json["value"]["resolved"] = "fp8";
  expect_error([&] { record_from_json(json, "r.json"); }, ErrorCode::kBadInput, "is \"fp8\"; known:");
}

// A sample of every version ever written stays here; each is read, and written again, as it was.
TEST(Record, EveryVersionEverWrittenIsReadAndKept) {
  for (int64_t version = 1; version <= kRecordVersion; ++version) {
    const std::string name = fmt::format("record-{}.json", version);
    const Json sample = read_json_file(test_file(name));
    const Record record = record_from_json(sample, name);
    EXPECT_EQ(record.version, version);
    EXPECT_EQ(record_to_json(record), sample) << name;
    const std::string schema_file = version == kRecordVersion ? "record.schema.json" : "record-1.schema.json";
    EXPECT_EQ(test::SchemaCheck(schema_file).check(sample), "") << name;
    EXPECT_TRUE(record.key.attested() && record.value.attested()) << name;
  }
}

TEST(Record, AForeignRecordOfVersion1MayHaveRequestedOnly) {
  Json json = read_json_file(test_file("record-1.json"));
  json["engine"] = "other";
  expect_error([&] { record_from_json(json, "r.json"); }, ErrorCode::kBadInput, "field \"engine\" is \"other\"");
}

TEST(Record, ARecordThatCouldNotBeReadIsNotWritten) {
  Record record = full_record();
  record.model.weights_sha256 = "short";
  expect_error([&] { record_to_json(record); }, ErrorCode::kInternal, "model.weights_sha256");
}

std::string fingerprint(const std::vector<std::string>& argv) {
  return argv_fingerprint(argv);
}

TEST(ArgvFingerprint, LengthPrefixesSeparateArguments) {
  // printf '\x06\0\0\0\0\0\0\0asymkv\x05\0\0\0\0\0\0\0admit' | sha256sum
  EXPECT_EQ(fingerprint({"asymkv", "admit"}), "00bf44d0c64d007499a327bf7330e0c8ce7485db65936aa1ba3c37bdec46fdb5");
  EXPECT_NE(fingerprint({"ab", "c"}), fingerprint({"a", "bc"}));
  EXPECT_NE(fingerprint({"a"}), fingerprint({"a", ""}));
  EXPECT_NE(fingerprint({"--max-tokens", "5"}), fingerprint({"--max-tokens", "6"}));
  EXPECT_NE(fingerprint({"--tokenizer=a"}), fingerprint({"--tokenizer=b"}));
}

TEST(ArgvFingerprint, SecretsLeaveNoTrace) {
  const std::string bare = fingerprint({"serve", "--api-key", "--port", "1"});
  EXPECT_EQ(fingerprint({"serve", "--api-key", "hunter2", "--port", "1"}), bare);
  EXPECT_EQ(fingerprint({"serve", "--api-key", "other", "--port", "1"}), bare);
  EXPECT_EQ(fingerprint({"serve", "--api-key=hunter2", "--port", "1"}), bare);
  EXPECT_NE(fingerprint({"serve", "--api-key", "hunter2", "--port", "2"}), bare);
  for (const char* option : {"--hf-token", "--Password", "--redis-secret", "--authorization", "--credentials"}) {
    EXPECT_EQ(fingerprint({option, "a"}), fingerprint({option, "b"})) << option;
  }
}

TEST(UtcTimestamp, IsRfc3339) {
  EXPECT_EQ(utc_timestamp(std::chrono::system_clock::from_time_t(0)), "1970-01-01T00:00:00Z");
  EXPECT_EQ(utc_timestamp(std::chrono::system_clock::from_time_t(1795969205)), "2026-11-29T16:20:05Z");
}

TEST(Record, LaunchInstancesSayWhatQueriesWereRoundedTo) {
  EXPECT_EQ(launch_instance("decode", "cpu-avx2/decode", ""), "decode:cpu-avx2/decode");
  const std::string rounded = launch_instance("decode", "cpu-avx2/decode", "e4m3");
  EXPECT_EQ(rounded, "decode:cpu-avx2/decode queries=e4m3");
  EXPECT_EQ(launch_query(rounded), "e4m3");
  EXPECT_EQ(launch_query("decode:cpu-avx2/decode"), "");
  EXPECT_TRUE(is_launch_of(rounded, "decode", "e4m3"));
  EXPECT_FALSE(is_launch_of(rounded, "decode", ""));
  EXPECT_FALSE(is_launch_of(rounded, "write", "e4m3"));
  EXPECT_TRUE(is_launch_of("decode:cpu-avx2/decode", "decode", ""));
  EXPECT_FALSE(is_launch_of("decode:cpu-avx2/decode", "decode", "e4m3"));
}

}  // namespace
}  // namespace asymkv
