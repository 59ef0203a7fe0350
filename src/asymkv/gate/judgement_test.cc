#include "asymkv/gate/judgement.h"

#include <gtest/gtest.h>

#include "asymkv/base/error.h"
#include "asymkv/gate/judgement_testkit.h"

namespace asymkv {
namespace {

using gate_testkit::fragile_plan;
using gate_testkit::make_run;
using gate_testkit::RunPlan;
using stats::Verdict;

// One arm SD beside native; math has `cases` cases of which native gets `native_correct`.
RunPlan one_arm(int64_t cases, int64_t native_correct, int64_t divisor = 40) {
  RunPlan plan;
  plan.protocol = gate_testkit::test_protocol(cases, divisor);
  plan.protocol.noise_floor = false;
  plan.identity = gate_testkit::test_identity();
  plan.native_correct = {{"math", native_correct}};
  plan.arms[ArmId::kSD] = {};
  return plan;
}

ArmJudgement judge_one(const RunPlan& plan) {
  return judge_run(make_run(plan)).arms.at(0);
}

TEST(Judgement, CountsAreThePlannedOnes) {
  RunPlan plan = one_arm(336, 300);
  plan.arms[ArmId::kSD].panels = {{"math", {.lost = 7, .gained = 4, .truncated = 5}}, {"retrieval-1024", {.lost = 3}}};
  const ArmJudgement arm = judge_one(plan);
  const PanelPairs& math = arm.math->pairs;
  EXPECT_EQ(math.cases, 336);
  EXPECT_EQ(math.counts.n, 336);
  EXPECT_EQ(math.counts.lost, 7);
  EXPECT_EQ(math.counts.gained, 4);
  EXPECT_EQ(math.control_correct, 300);
  EXPECT_EQ(math.candidate_correct, 297);
  EXPECT_EQ(math.truncated_control, 0);
  EXPECT_EQ(math.truncated_candidate, 5);
  EXPECT_EQ(math.alt_candidate_correct, 297);
  EXPECT_EQ(arm.retrieval.at(0).pairs.counts.lost, 3);
  EXPECT_EQ(arm.retrieval.at(1).pairs.counts.lost, 0);
  EXPECT_EQ(arm.loss.at(0).documents, 24);
  EXPECT_EQ(arm.loss.at(0).bound->ratio.ratio_minus_1, 0.0);
}

TEST(Judgement, NamesTheDocumentThatMovesTheLossMost) {
  asymkv::Run run = gate_testkit::make_run(one_arm(336, 330));
  const auto planted = std::ranges::find(run.cases, "loss-1024/0005", &Case::id) - run.cases.begin();
  run.outcomes.back()[static_cast<size_t>(planted)].nll += 1.0;
  const LossJudgement loss = judge_run(run).arms.at(0).loss.at(0);
  EXPECT_EQ(loss.most_moving_case, "loss-1024/0005");
  EXPECT_EQ(loss.leave_one_out->without_it, 0.0);
  EXPECT_EQ(loss.leave_one_out->lowest, 0.0);
  EXPECT_GT(loss.leave_one_out->highest, loss.bound->ratio.ratio_minus_1);
}

TEST(Judgement, PerfectArmIsCertifiedAndEverySinglePanelCanStopIt) {
  EXPECT_TRUE(judge_one(one_arm(336, 330)).certified);
  for (const std::string panel : {"retrieval-1024", "retrieval-8192", "math", "loss-1024"}) {
    RunPlan plan = one_arm(336, 330);
    plan.arms[ArmId::kSD].panels[panel] = {.failed = 1};
    const ArmJudgement arm = judge_one(plan);
    EXPECT_FALSE(arm.certified) << panel;
    EXPECT_EQ(arm.preservation, Verdict::kNotEstablished) << panel;
  }
  RunPlan plan = one_arm(336, 330);
  plan.arms[ArmId::kSD].loss_ratio = 0.05;
  EXPECT_EQ(judge_one(plan).preservation, Verdict::kDegraded);
  EXPECT_EQ(judge_one(plan).aggregate, Verdict::kDegraded);
}

TEST(Judgement, FailedCasesAreCountedApartAndAskForNoMoreCases) {
  RunPlan plan = one_arm(400, 390);
  plan.arms[ArmId::kSD].panels["math"] = {.failed = 3};
  const ArmJudgement arm = judge_one(plan);
  EXPECT_EQ(arm.math->pairs.failed_candidate, 3);
  EXPECT_EQ(arm.math->pairs.failed_control, 0);
  EXPECT_EQ(arm.math->pairs.counts.n, 397);
  EXPECT_EQ(arm.math->pairs.counts.lost, 0);
  EXPECT_EQ(arm.math->preservation_bound->verdict, Verdict::kPass);
  EXPECT_EQ(arm.math->preservation, Verdict::kNotEstablished);
  EXPECT_FALSE(arm.math->preservation_needed.has_value());
}

TEST(Judgement, AllCasesFailedGivesNoBound) {
  RunPlan plan = one_arm(336, 330);
  plan.arms[ArmId::kSD].panels = {{"math", {.failed = 336}}, {"loss-1024", {.failed = 23}}};
  const ArmJudgement arm = judge_one(plan);
  EXPECT_FALSE(arm.math->preservation_bound.has_value());
  EXPECT_FALSE(arm.loss.at(0).bound.has_value());
  EXPECT_EQ(arm.preservation, Verdict::kNotEstablished);
}

TEST(Judgement, NativeBelowItsFloorIsUninformativeAndCertifiesNothing) {
  RunPlan plan = one_arm(336, 3);
  ArmJudgement arm = judge_one(plan);
  EXPECT_EQ(arm.math->preservation, Verdict::kUninformative);
  EXPECT_EQ(arm.preservation, Verdict::kUninformative);
  EXPECT_FALSE(arm.certified);
  plan = one_arm(336, 330);
  plan.native_correct["retrieval-8192"] = 28;  // 87.5 % of 32, floor 90 %
  arm = judge_one(plan);
  EXPECT_EQ(arm.retrieval.at(1).verdict, Verdict::kUninformative);
  EXPECT_FALSE(arm.certified);
}

TEST(Judgement, ScreeningNeverCertifiesButShowsDegradation) {
  RunPlan plan = one_arm(336, 330);
  plan.protocol.protocol_class = ProtocolClass::kScreening;
  EXPECT_EQ(judge_one(plan).preservation, Verdict::kPass);
  EXPECT_FALSE(judge_one(plan).certified);
  plan.arms[ArmId::kSD].panels["math"] = {.lost = 100};
  EXPECT_EQ(judge_one(plan).preservation, Verdict::kDegraded);
}

TEST(Judgement, MissingPanelsNeverPass) {
  for (int missing = 0; missing < 3; ++missing) {
    RunPlan plan = one_arm(336, 330);
    plan.protocol.protocol_class = ProtocolClass::kScreening;
    if (missing == 0) plan.protocol.retrieval.clear();
    if (missing == 1) plan.protocol.math.reset();
    if (missing == 2) plan.protocol.loss.clear();
    EXPECT_EQ(judge_one(plan).preservation, Verdict::kNotEstablished) << missing;
    EXPECT_EQ(judge_one(plan).aggregate, Verdict::kNotEstablished) << missing;
    if (missing == 1) continue;
    EXPECT_EQ(judge_one(plan).retrieval_and_loss(), Verdict::kNotEstablished) << missing;
  }
}

TEST(Judgement, SmallRetrievalPanelSaysHowManyCasesItNeeds) {
  RunPlan plan = one_arm(336, 330);
  plan.protocol.retrieval[0].count = 20;
  plan.protocol.retrieval[0].depths = 10;
  const RetrievalJudgement panel = judge_one(plan).retrieval.at(0);
  EXPECT_EQ(panel.verdict, Verdict::kNotEstablished);
  EXPECT_EQ(panel.needed, 131);  // ln(.05 / 40) / ln(.95) = 130.3
}

TEST(Judgement, NoiseFloorIsJudgedApartAndNeverCertified) {
  RunPlan plan = fragile_plan();
  plan.arms[ArmId::kN2].panels["math"] = {.lost = 1, .gained = 1};
  const Judgement judgement = judge_run(make_run(plan));
  ASSERT_TRUE(judgement.noise_floor.has_value());
  EXPECT_EQ(judgement.noise_floor->math->pairs.counts.lost, 1);
  EXPECT_FALSE(judgement.noise_floor->certified);
  EXPECT_EQ(judgement.arms.size(), 10U);
  for (const ArmJudgement& arm : judgement.arms) {
    const bool survives = arm.arm == ArmId::kAF || arm.arm == ArmId::kAD || arm.arm == ArmId::kPF ||
                          arm.arm == ArmId::kPD || arm.arm == ArmId::kJD;
    EXPECT_EQ(arm.certified, survives) << arm_name(arm.arm);
    EXPECT_EQ(arm.preservation, survives ? Verdict::kPass : Verdict::kDegraded) << arm_name(arm.arm);
  }
}

TEST(Judgement, RunWithoutNativeOrWithMissingOutcomesIsRefused) {
  auto run = make_run(one_arm(336, 330));
  auto no_native = run;
  no_native.arms[0] = ArmId::kAD;
  EXPECT_THROW(judge_run(no_native), Error);
  run.outcomes[1].pop_back();
  EXPECT_THROW(judge_run(run), Error);
}

// Published result rows, n = 1,319: "pass" and "no" for both objectives.
struct PublishedRow {
  int64_t divisor, lost, gained;
  bool preservation, aggregate;
};

class PublishedRows : public testing::TestWithParam<PublishedRow> {};

TEST_P(PublishedRows, GiveTheirVerdicts) {
  const PublishedRow row = GetParam();
  RunPlan plan = one_arm(1319, 1250, row.divisor);
  plan.arms[ArmId::kSD].panels["math"] = {.lost = row.lost, .gained = row.gained};
  const ArmJudgement arm = judge_one(plan);
  ASSERT_EQ(arm.retrieval_and_loss(), Verdict::kPass);
  EXPECT_EQ(arm.preservation == Verdict::kPass, row.preservation);
  EXPECT_EQ(arm.aggregate == Verdict::kPass, row.aggregate);
  EXPECT_EQ(arm.certified, row.preservation);
  const bool collapsed = row.lost > 1000;
  EXPECT_EQ(arm.preservation == Verdict::kDegraded, collapsed);
  EXPECT_EQ(arm.aggregate == Verdict::kDegraded, collapsed);
}

INSTANTIATE_TEST_SUITE_P(Study, PublishedRows,
                         testing::Values(PublishedRow{24, 6, 3, true, false}, PublishedRow{24, 16, 24, false, true},
                                         PublishedRow{24, 22, 23, false, false}, PublishedRow{24, 6, 10, true, true},
                                         PublishedRow{24, 13, 21, false, true}, PublishedRow{24, 14, 22, false, true},
                                         PublishedRow{24, 20, 16, false, false}, PublishedRow{24, 15, 12, false, false},
                                         PublishedRow{24, 1199, 0, false, false},
                                         PublishedRow{24, 1200, 0, false, false},
                                         PublishedRow{24, 1210, 0, false, false},
                                         PublishedRow{24, 1205, 0, false, false}, PublishedRow{8, 7, 3, true, false},
                                         PublishedRow{8, 3, 2, true, true}, PublishedRow{8, 17, 19, false, false},
                                         PublishedRow{8, 15, 20, false, true}));

TEST(Judgement, WorseOrdersTheVerdicts) {
  const Verdict order[] = {Verdict::kPass, Verdict::kNotEstablished, Verdict::kUninformative, Verdict::kDegraded};
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < 4; ++b) EXPECT_EQ(worse(order[a], order[b]), order[std::max(a, b)]);
  }
}

}  // namespace
}  // namespace asymkv
