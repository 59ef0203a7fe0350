#include "asymkv/gate/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "asymkv/gate/judgement_testkit.h"
#include "asymkv/gate/test_support.h"

namespace asymkv {
namespace {

using test::expect_error;

// Arms AD, SD, JD with planned counts; native is right everywhere.
gate_testkit::RunPlan three_plan() {
  gate_testkit::RunPlan plan;
  plan.protocol = gate_testkit::test_protocol(1319, 24);
  plan.protocol.noise_floor = false;
  plan.identity = gate_testkit::test_identity();
  plan.arms[ArmId::kAD] = {{{"math", {.lost = 6}}}, 0.001};
  plan.arms[ArmId::kSD] = {{{"math", {.lost = 1205}}, {"retrieval-8192", {.lost = 20}}}, 0.2};
  plan.arms[ArmId::kJD] = {{{"math", {.lost = 7}}}, 0.001};
  return plan;
}

ComparisonRow row_of(const std::vector<ComparisonRow>& rows, const std::string& panel, const std::string& b = "SD") {
  for (const ComparisonRow& row : rows) {
    if (row.panel == panel && row.b == b) return row;
  }
  ADD_FAILURE() << "no row of " << panel;
  return {};
}

TEST(Compare, CountsAndTestsEachPanel) {
  const asymkv::Run run = gate_testkit::make_run(three_plan());
  const std::vector<ComparedArm> arms = {{"AD", &run, ArmId::kAD}, {"SD", &run, ArmId::kSD}};
  const std::vector<ComparisonRow> rows = compare_arms(arms, {});
  ASSERT_EQ(rows.size(), 4U);
  const ComparisonRow math = row_of(rows, "math");
  EXPECT_EQ(math.n, 1319);
  EXPECT_EQ(math.lost, 1199);  // the first 6 are wrong in both
  EXPECT_EQ(math.gained, 0);
  EXPECT_EQ(math.p.p, 0.0);
  EXPECT_NEAR(math.p.log10_p, -360.634, 1e-3);
  EXPECT_NEAR(math.p_holm.log10_p, -360.634 + std::log10(4.0), 1e-3);
  EXPECT_TRUE(math.different);
  const ComparisonRow near = row_of(rows, "retrieval-1024");
  EXPECT_EQ(near.n, 132);
  EXPECT_EQ(near.p.p, 1.0);
  EXPECT_FALSE(near.different);
  EXPECT_EQ(row_of(rows, "retrieval-8192").lost, 20);
  const ComparisonRow loss = row_of(rows, "loss-1024");
  EXPECT_EQ(loss.test, PairTest::kSignFlipDrawn);
  EXPECT_EQ(loss.n, 24);
  EXPECT_EQ(loss.lost, 24);
  EXPECT_GT(loss.mean_delta, 0.2);
  EXPECT_TRUE(loss.different);
}

TEST(Compare, FirstAgainstEachOrAllPairsAndOneFamily) {
  const asymkv::Run run = gate_testkit::make_run(three_plan());
  const std::vector<ComparedArm> arms = {{"AD", &run, ArmId::kAD}, {"SD", &run, ArmId::kSD}, {"JD", &run, ArmId::kJD}};
  EXPECT_EQ(compare_arms(arms, {}).size(), 2U * 4U);
  EXPECT_EQ(compare_arms(arms, {.all_pairs = true}).size(), 3U * 4U);
  const std::vector<ComparisonRow> math = compare_arms(arms, {.all_pairs = true, .family = PanelKind::kMath});
  ASSERT_EQ(math.size(), 3U);
  // Holm over the three rows of the family alone.
  EXPECT_NEAR(math[0].p_holm.log10_p, math[0].p.log10_p + std::log10(2.0), 0.2);
  EXPECT_EQ(row_of(math, "math", "JD").lost, 1);
  EXPECT_EQ(row_of(math, "math", "JD").p_holm.p, 1.0);
  EXPECT_FALSE(row_of(math, "math", "JD").different);
  EXPECT_EQ(math[2].a, "SD");
  EXPECT_EQ(math[2].gained, 1198);  // JD gets back what SD lost
}

TEST(Compare, FailedCasesAreLeftOutAndCounted) {
  gate_testkit::RunPlan plan = three_plan();
  plan.arms[ArmId::kAD].panels["math"].failed = 19;
  plan.arms[ArmId::kAD].panels["loss-1024"].failed = 10;
  asymkv::Run run = gate_testkit::make_run(plan);
  run.outcomes[2].resize(run.outcomes[2].size() - 4);  // SD was stopped before its last documents
  const std::vector<ComparedArm> arms = {{"AD", &run, ArmId::kAD}, {"SD", &run, ArmId::kSD}};
  const std::vector<ComparisonRow> rows = compare_arms(arms, {});
  EXPECT_EQ(row_of(rows, "math").n, 1300);
  EXPECT_EQ(row_of(rows, "math").left_out, 19);
  const ComparisonRow loss = row_of(rows, "loss-1024");
  EXPECT_EQ(loss.n, 14);
  EXPECT_EQ(loss.left_out, 10);  // the four missing ones failed in the other arm
  EXPECT_EQ(loss.test, PairTest::kSignFlipExact);
  EXPECT_EQ(loss.p.p, std::ldexp(1.0, -13));
  EXPECT_THAT(render_comparison(rows), testing::HasSubstr("29 pairs of answers were left out"));
}

TEST(Compare, AcrossRunsAndTokenizers) {
  const asymkv::Run one = gate_testkit::make_run(three_plan());
  asymkv::Run other = gate_testkit::make_run(three_plan());
  const std::vector<ComparedArm> arms = {{"a:AD", &one, ArmId::kAD}, {"b:SD", &other, ArmId::kSD}};
  EXPECT_EQ(row_of(compare_arms(arms, {}), "math", "b:SD").lost, 1199);

  // The same cases in another order, as a run with looks asks them.
  std::swap(other.cases[0], other.cases[1]);
  for (std::vector<Outcome>& outcomes : other.outcomes) std::swap(outcomes[0], outcomes[1]);
  EXPECT_EQ(row_of(compare_arms(arms, {}), "retrieval-1024", "b:SD").n, 132);

  other.identity.tokenizer_sha256 = std::string(64, 'd');
  expect_error([&] { compare_arms(arms, {}); }, ErrorCode::kBadInput,
               "a:AD and b:SD cannot be compared in panel loss-1024: their tokenizers differ");
  for (Case& asked : other.cases) {
    if (asked.kind == PanelKind::kMath) asked.context += " As a chat.";
  }
  EXPECT_EQ(compare_arms(arms, {.family = PanelKind::kMath}).size(), 1U);
  other.identity.tokenizer_sha256 = one.identity.tokenizer_sha256;
  expect_error([&] { compare_arms(arms, {.family = PanelKind::kMath}); }, ErrorCode::kBadInput,
               "panel math: case math/0000 has another text");
}

TEST(Compare, OtherQuestionsAreRefusedByName) {
  const asymkv::Run one = gate_testkit::make_run(three_plan());
  const auto refused = [&](const std::function<void(asymkv::Run&)>& change, std::string_view words) {
    asymkv::Run other = gate_testkit::make_run(three_plan());
    change(other);
    const std::vector<ComparedArm> arms = {{"a:AD", &one, ArmId::kAD}, {"b:AD", &other, ArmId::kAD}};
    expect_error([&] { compare_arms(arms, {}); }, ErrorCode::kBadInput, words);
  };
  refused([](asymkv::Run& run) { run.cases[3].expected = "54321"; },
          "retrieval-1024: case retrieval-1024/0003 expects another");
  refused([](asymkv::Run& run) { run.cases[3].context = "another text"; },
          "retrieval-1024: case retrieval-1024/0003 has another text");
  refused([](asymkv::Run& run) { run.cases[0].id = "retrieval-1024/none"; },
          "case retrieval-1024/0000 is asked in a:AD alone");
  refused([](asymkv::Run& run) { run.cases.erase(run.cases.begin()); }, "132 and 131 cases");
  refused([](asymkv::Run& run) { run.protocol.math->parser = AnswerParser::kFlexible; },
          "panel math: their protocols differ in the parser");
  refused([](asymkv::Run& run) { run.protocol.math->generation.token_limit = 7; }, "token_limit (80, 7)");
  refused([](asymkv::Run& run) { run.protocol.retrieval[1].generation.stops = {"stop here"}; },
          "retrieval-8192: their protocols differ in stops");
  refused([](asymkv::Run& run) { run.protocol.retrieval.pop_back(); }, "b:AD has no panel retrieval-8192; --family");
}

TEST(Compare, OddArms) {
  gate_testkit::RunPlan plan = three_plan();
  plan.protocol.loss.clear();
  const asymkv::Run run = gate_testkit::make_run(plan);
  const std::vector<ComparedArm> one = {{"AD", &run, ArmId::kAD}};
  expect_error([&] { compare_arms(one, {}); }, ErrorCode::kUsage, "needs two arms or more, but there is 1");
  const std::vector<ComparedArm> twice = {one[0], one[0]};
  expect_error([&] { compare_arms(twice, {}); }, ErrorCode::kUsage, "AD is given twice");
  const std::vector<ComparedArm> missing = {one[0], {"RD", &run, ArmId::kRD}};
  expect_error([&] { compare_arms(missing, {}); }, ErrorCode::kUsage, "RD: the run has no arm RD; it has N,AD,SD,JD");
  const std::vector<ComparedArm> two = {one[0], {"SD", &run, ArmId::kSD}};
  expect_error([&] { compare_arms(two, {.family = PanelKind::kLoss}); }, ErrorCode::kUsage, "has no loss panel");
}

TEST(Compare, JsonAndTable) {
  const asymkv::Run run = gate_testkit::make_run(three_plan());
  const std::vector<ComparedArm> arms = {{"AD", &run, ArmId::kAD}, {"SD", &run, ArmId::kSD}};
  const std::vector<ComparisonRow> rows = compare_arms(arms, {});
  const Json json = comparison_to_json(rows, {});
  EXPECT_EQ(json.at("family"), "all");
  const Json& math = json.at("rows").at(2);
  EXPECT_EQ(math.at("panel"), "math");
  EXPECT_TRUE(math.at("p").is_null());
  EXPECT_TRUE(math.at("p_holm").is_null());
  EXPECT_LT(math.at("log10_p"), -360.0);
  EXPECT_EQ(math.at("verdict"), "different");
  EXPECT_FALSE(math.contains("mean_delta"));
  EXPECT_EQ(json.at("rows").at(0).at("verdict"), "no_difference_shown");
  EXPECT_TRUE(json.at("rows").at(3).contains("mean_delta"));
  const std::string table = render_comparison(rows);
  EXPECT_THAT(table, testing::HasSubstr("2.32e-361"));
  EXPECT_THAT(table, testing::HasSubstr("no difference shown"));
  EXPECT_THAT(table, testing::Not(testing::HasSubstr("worse\n")));
}

}  // namespace
}  // namespace asymkv
