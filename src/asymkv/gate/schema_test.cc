#include <gtest/gtest.h>

#include "asymkv/base/file.h"
#include "asymkv/gate/certificate_verify.h"
#include "asymkv/gate/compare.h"
#include "asymkv/gate/jsonl_reader.h"
#include "asymkv/gate/judgement_testkit.h"
#include "asymkv/gate/test_support.h"
#include "asymkv/record/schema_testkit.h"

// The published schemas against what a run really writes.
namespace asymkv {
namespace {

using test::SchemaCheck;

class Schemas : public testing::Test {
 protected:
  void SetUp() override {
    gate_testkit::write_finished_run(gate_testkit::fragile_plan(), Fragility::kFragile, folder_.path());
  }
  Json read(const std::string& file) const { return read_json_file(folder_.path() / file); }

  test::TempFolder folder_;
};

TEST_F(Schemas, EveryFileOfARunObeysItsOwn) {
  for (const std::string name : {"protocol", "run", "certificate", "policy"}) {
    EXPECT_EQ(SchemaCheck(name + ".schema.json").check(read(name + ".json")), "") << name;
  }
  EXPECT_EQ(SchemaCheck("admission-record.schema.json").check(read("record.json")), "");
  const SchemaCheck outcome("outcome.schema.json");
  read_jsonl(folder_.path() / "outcomes/SD.jsonl",
             [&](const Json& line, const std::string& origin) { EXPECT_EQ(outcome.check(line), "") << origin; });
}

TEST_F(Schemas, BuiltInProtocolsObey) {
  const SchemaCheck protocol("protocol.schema.json");
  for (const std::string& name : builtin_protocol_names()) {
    EXPECT_EQ(protocol.check(protocol_to_json(builtin_protocol(name))), "") << name;
  }
}

// Panels without any bound, and answers of both kinds to the check itself.
TEST_F(Schemas, EmptyRunsAndVerificationsObey) {
  gate_testkit::RunPlan plan = gate_testkit::robust_plan();
  plan.protocol.protocol_class = ProtocolClass::kScreening;
  plan.protocol.noise_floor = false;
  plan.arms = {{ArmId::kSD, {{{"loss-1024", {.failed = 24}}, {"math", {.failed = 336}}}, 0}}};
  const test::TempFolder other;
  gate_testkit::write_finished_run(plan, Fragility::kUndecided, other.path());
  EXPECT_EQ(SchemaCheck("certificate.schema.json").check(read_json_file(other.path() / "certificate.json")), "");
  EXPECT_EQ(SchemaCheck("policy.schema.json").check(read_json_file(other.path() / "policy.json")), "");
  const SchemaCheck verification("verification.schema.json");
  EXPECT_EQ(verification.check(mismatches_to_json(verify_run_folder(other.path()).mismatches)), "");
  EXPECT_EQ(verification.check(mismatches_to_json({{"arms.SD", "1", "2"}})), "");
}

TEST_F(Schemas, ComparisonsObey) {
  const asymkv::Run run = read_run(folder_.path());
  const std::vector<ComparedArm> arms = {{"AD", &run, ArmId::kAD}, {"SD", &run, ArmId::kSD}};
  const CompareOptions options;
  const Json answer = comparison_to_json(compare_arms(arms, options), options);
  EXPECT_EQ(SchemaCheck("comparison.schema.json").check(answer), "");
}

TEST_F(Schemas, WrongFieldsAreRefused) {
  const auto broken = [this](const std::string& file, const char* pointer, const Json& value) {
    Json json = read(file + ".json");
    json[Json::json_pointer(pointer)] = value;
    return SchemaCheck(file + ".schema.json").check(json);
  };
  EXPECT_EQ(broken("protocol", "/class", "certified"), "$.class breaks enum");
  EXPECT_EQ(broken("protocol", "/panels/math/count", 0), "$.panels.math.count breaks minimum");
  EXPECT_EQ(broken("protocol", "/panels/speed", 1), "$.panels has the unknown speed");
  EXPECT_EQ(broken("protocol", "/alpha", 1.5), "$.alpha breaks maximum");
  EXPECT_EQ(broken("run", "/identity/model_sha256", "abc"), "$.identity.model_sha256 breaks pattern");
  EXPECT_EQ(broken("run", "/cache/page_size", 16.5), "$.cache.page_size breaks type");
  EXPECT_EQ(broken("policy", "/tier", "K4/V4"), "$.tier breaks enum");
  EXPECT_EQ(broken("certificate", "/arms/XX", read("certificate.json")["arms"]["SD"]), "$.arms has no place for XX");
  EXPECT_EQ(broken("certificate", "/arms/SD/vs/N/retrieval/1024/lost", -1),
            "$.arms.SD.vs.N.retrieval.1024.lost breaks minimum");
  EXPECT_EQ(broken("certificate", "/protocol/divisor", "40"), "$.protocol.divisor breaks type");
  EXPECT_EQ(broken("certificate", "/noise_floor", 1), "$.noise_floor breaks anyOf");
}

}  // namespace
}  // namespace asymkv
