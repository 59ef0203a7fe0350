#include "asymkv/gate/looks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "asymkv/base/file.h"
#include "asymkv/gate/certificate_verify.h"
#include "asymkv/gate/judgement.h"
#include "asymkv/gate/judgement_testkit.h"
#include "asymkv/gate/run_files.h"
#include "asymkv/gate/test_support.h"

namespace asymkv {
namespace {

namespace fs = std::filesystem;
using gate_testkit::ArmPlan;
using gate_testkit::RunPlan;
using test::expect_error;
using test::TempFolder;

constexpr int64_t kMathCases = 1600;

// AD loses nothing, SD loses answers everywhere, ID so many that it can neither pass nor be called degraded.
RunPlan looking_plan() {
  RunPlan plan;
  plan.protocol = gate_testkit::test_protocol(kMathCases, 4);
  plan.protocol.retrieval.resize(1);
  plan.protocol.retrieval[0].count = 800;
  plan.protocol.retrieval[0].depths = 40;
  plan.protocol.loss[0].documents = 40;
  plan.protocol.looks = {{0.25, 0.5, 0.75, 1.0}, stats::Spending::kObrienFleming};
  plan.identity = gate_testkit::test_identity();
  plan.arms[ArmId::kN2] = {};
  plan.arms[ArmId::kAD] = {};
  plan.arms[ArmId::kSD] = {{{"math", {.lost = 300}}, {"retrieval-1024", {.lost = 100}}}, 0.0};
  return plan;
}

class LooksTest : public testing::Test {
 protected:
  void SetUp() override { ::setenv("ASYMKV_NO_PROGRESS", "1", 1); }
  fs::path folder() const { return temp_.path() / "run"; }
  asymkv::Run write(const RunPlan& plan) {
    gate_testkit::write_finished_run(plan, Fragility::kFragile, folder());
    return read_run(folder());
  }
  static int64_t answered(const asymkv::Run& run, ArmId arm) {
    return std::ssize(run.outcomes[static_cast<size_t>(std::ranges::find(run.arms, arm) - run.arms.begin())]);
  }
  TempFolder temp_;
};

TEST(Looks, CutEveryPanelAndKeepTheirOrder) {
  EXPECT_EQ(panel_cases_at(10, 0.3), 3);
  EXPECT_EQ(panel_cases_at(11, 0.3), 4);
  EXPECT_EQ(panel_cases_at(3, 0.01), 1);
  EXPECT_EQ(panel_cases_at(7, 1.0), 7);
  const RunPlan plan = looking_plan();
  const std::vector<Case> cases = gate_testkit::make_test_cases(plan.protocol);
  const LookPlan looks = plan_looks(plan.protocol, cases);
  EXPECT_EQ(looks.case_ends, (std::vector<int64_t>{610, 1220, 1830, 2440}));
  EXPECT_NEAR(std::accumulate(looks.levels.begin(), looks.levels.end(), 0.0), 0.05 / 4, 1e-15);
  const auto units = plan_units(plan.protocol, cases, {ArmId::kN, ArmId::kAD});
  int64_t asked = 0, last_look = 0;
  for (const Unit& unit : units) {
    EXPECT_GE(unit.look_idx, last_look);
    last_look = unit.look_idx;
    asked += std::ssize(unit.cases);
    EXPECT_LE(asked, looks.case_ends[static_cast<size_t>(unit.look_idx)]);
  }
  EXPECT_EQ(asked, std::ssize(cases));
  EXPECT_EQ(last_look, 3);
}

TEST_F(LooksTest, AClearAndAHopelessArmStopEarlyAndTheRunWithThem) {
  const asymkv::Run run = write(looking_plan());
  // SD: 300 of the first 400 math answers lost. AD: clear as soon as its bounds pass at a look's level.
  EXPECT_EQ(answered(run, ArmId::kSD), 610);
  const Judgement judgement = judge_run(run);
  const ArmJudgement& ad = *judgement.of(ArmId::kAD).at(0);
  const ArmJudgement& sd = *judgement.of(ArmId::kSD).at(0);
  EXPECT_EQ(sd.look, 1);
  EXPECT_EQ(sd.preservation, stats::Verdict::kDegraded);
  EXPECT_TRUE(ad.certified);
  EXPECT_LT(ad.look, 4);
  // Not before its level let it: one look earlier the same answers do not pass.
  for (int64_t look = 0; look + 1 < ad.look; ++look) {
    EXPECT_NE(judge_arm(run, ArmId::kN, ArmId::kAD, look).preservation, stats::Verdict::kPass);
  }
  // Nothing is left to compare: native stops with the last candidate.
  EXPECT_EQ(answered(run, ArmId::kN), answered(run, ArmId::kAD));
  EXPECT_EQ(answered(run, ArmId::kN2), answered(run, ArmId::kAD));
  EXPECT_EQ(cases_due(run), (std::vector<int64_t>{answered(run, ArmId::kN), answered(run, ArmId::kN2),
                                                  answered(run, ArmId::kAD), 610}));
  EXPECT_TRUE(verify_run_folder(folder()).mismatches.empty());
  const Json certificate = read_json_file(folder() / "certificate.json");
  EXPECT_EQ(certificate.at("arms").at("SD").at("vs").at("N").at("look"), (Json{{"at", 1}, {"of", 4}}));
  EXPECT_EQ(certificate.at("look_levels").size(), 4U);
  EXPECT_EQ(certificate.at("arms").at("SD").at("vs").at("N").at("retrieval").at("1024").at("n"), 200);
}

TEST_F(LooksTest, AnArmThatCanNoLongerPassStops) {
  RunPlan plan = looking_plan();
  // 800 cases and .05 / 4 allow few losses in 1,600: 30 at the first look are more than that, but prove no 2 % loss.
  plan.arms[ArmId::kSD] = {{{"math", {.lost = 25}}}, 0.0};
  const asymkv::Run run = write(plan);
  EXPECT_EQ(answered(run, ArmId::kSD), 610);
  EXPECT_EQ(judge_run(run).of(ArmId::kSD).at(0)->preservation, stats::Verdict::kNotEstablished);
}

TEST_F(LooksTest, WithoutLooksEveryArmAnswersEverything) {
  RunPlan plan = looking_plan();
  plan.protocol.looks = {};
  const asymkv::Run run = write(plan);
  EXPECT_EQ(answered(run, ArmId::kSD), 2440);
  EXPECT_FALSE(read_json_file(folder() / "certificate.json").at("arms").at("SD").at("vs").at("N").contains("look"));
  EXPECT_FALSE(read_json_file(folder() / "protocol.json").contains("looks"));
}

TEST_F(LooksTest, StoppingWhereTheRuleDoesNotIsFoundOut) {
  const asymkv::Run run = write(looking_plan());
  // SD is given back the answers of native: then it would have had to go on.
  std::string native = read_text_file(run_files::outcomes_path(folder(), ArmId::kN));
  size_t end = 0;
  for (int64_t i = 0; i < 610; ++i) end = native.find('\n', end) + 1;
  native.resize(end);
  for (size_t at = native.find("\"arm\":\"N\""); at != std::string::npos; at = native.find("\"arm\":\"N\"", at)) {
    native.replace(at, 9, "\"arm\":\"SD\"");
  }
  write_file_atomic(run_files::outcomes_path(folder(), ArmId::kSD), native);
  expect_error([&] { read_evidence(folder()); }, ErrorCode::kBadInput, "SD.jsonl answers 610 of 1220 cases");
}

TEST(Looks, ExpectedSharesFollowTheLosses) {
  const Protocol protocol = looking_plan().protocol;
  const auto share = [&](double loss) { return expect_panel(protocol, kMathCases, 0.02, loss).cases_share; };
  EXPECT_DOUBLE_EQ(share(0.0), 0.5);    // not at the first look, whose level is 6e-7
  EXPECT_NEAR(share(0.5), 0.25, 1e-9);  // hopeless at the first
  EXPECT_GT(share(0.01), share(0.0));
}

TEST_F(LooksTest, ShardsAreRefused) {
  RunPlan plan = looking_plan();
  plan.shard = {1, 2};
  expect_error([&] { gate_testkit::write_run(plan, folder()); }, ErrorCode::kUsage, "has looks");
}

TEST_F(LooksTest, AProtocolRoundTripsAndRefusesBadLooks) {
  Protocol protocol = looking_plan().protocol;
  EXPECT_EQ(protocol_from_json(protocol_to_json(protocol), "p").looks, protocol.looks);
  const std::vector<std::vector<double>> bad = {{}, {0.5}, {0.5, 0.5, 1.0}, {0.0, 1.0}, {0.5, 1.0, 1.5}};
  for (const std::vector<double>& fractions : bad) {
    protocol.looks.fractions = fractions;
    expect_error([&] { validate_protocol(protocol, "p"); }, ErrorCode::kBadInput, "looks.fractions");
  }
}

}  // namespace
}  // namespace asymkv
