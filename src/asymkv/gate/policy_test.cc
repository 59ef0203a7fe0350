#include "asymkv/gate/policy.h"

#include <gtest/gtest.h>

#include <iterator>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/gate/judgement_testkit.h"
#include "asymkv/gate/policy_file.h"
#include "asymkv/gate/test_support.h"

namespace asymkv {
namespace {

using gate_testkit::make_bytes;
using gate_testkit::make_probe;
using stats::Verdict;

// A judged arm whose panels all have `verdict`; `lost` of 1,000 math answers.
ArmJudgement judged(ArmId arm, Verdict verdict, int64_t lost = 0) {
  ArmJudgement judgement;
  judgement.arm = arm;
  judgement.retrieval.resize(1);
  judgement.retrieval[0].verdict = verdict;
  judgement.loss.resize(1);
  judgement.loss[0].verdict = verdict;
  judgement.math.emplace();
  judgement.math->preservation_bound = stats::preservation_verdict({1000, lost, 0}, 0.05 / 40);
  judgement.math->aggregate_bound = stats::aggregate_verdict({1000, lost, 0}, 0.05 / 40);
  judgement.preservation = judgement.aggregate = verdict;
  judgement.certified = verdict == Verdict::kPass;
  return judgement;
}

// Retrieval and loss pass; the objective does not.
ArmJudgement unharmed(ArmId arm, Verdict objective, std::optional<int64_t> needed) {
  ArmJudgement judgement = judged(arm, Verdict::kPass);
  judgement.preservation = judgement.aggregate = objective;
  judgement.math->preservation_needed = needed;
  judgement.certified = false;
  return judgement;
}

struct Inputs {
  std::vector<ArmJudgement> arms;
  Fragility fragility = Fragility::kFragile;
  PolicyMode mode = PolicyMode::kKnee;
  ArmBytes bytes = make_bytes();
};

PolicyDecision choose(const Inputs& in) {
  Judgement judgement;
  judgement.arms = in.arms;
  return choose_policy(judgement, make_probe(in.fragility), gate_testkit::test_protocol(1000, 40), in.bytes, in.mode);
}

TEST(Policy, CertifiedSWinsOverEverything) {
  const PolicyDecision d = choose(
      {{judged(ArmId::kAF, Verdict::kPass), judged(ArmId::kSD, Verdict::kPass), judged(ArmId::kJD, Verdict::kPass)}});
  EXPECT_EQ(d.tier, Tier::kK8V8);
  EXPECT_EQ(d.arm, ArmId::kSD);
  EXPECT_TRUE(d.certified);
  EXPECT_TRUE(d.capacity_options.empty()) << "J saves no more than the S that was chosen";
}

TEST(Policy, CertifiedAWithoutSIsK16V8WithCapacityOptions) {
  for (const PolicyMode mode : {PolicyMode::kKnee, PolicyMode::kCertified}) {
    const PolicyDecision d = choose({{judged(ArmId::kAD, Verdict::kPass), judged(ArmId::kSD, Verdict::kDegraded),
                                      judged(ArmId::kPD, Verdict::kNotEstablished), judged(ArmId::kJD, Verdict::kPass)},
                                     Fragility::kRobust,
                                     mode});
    EXPECT_EQ(d.tier, Tier::kK16V8);
    EXPECT_EQ(d.arm, ArmId::kAD);
    EXPECT_TRUE(d.certified);
    EXPECT_FALSE(d.needed_cases.has_value());
    ASSERT_EQ(d.capacity_options.size(), 1U);
    EXPECT_EQ(d.capacity_options[0].arm, ArmId::kJD);
    EXPECT_DOUBLE_EQ(d.capacity_options[0].saved_pct, 100.0 * (1.0 - 1056.0 / 2048.0));
  }
}

TEST(Policy, FragileKeysWithUnharmedAAreTheKneeDefault) {
  Inputs in{{unharmed(ArmId::kAD, Verdict::kNotEstablished, 512), judged(ArmId::kSD, Verdict::kDegraded)}};
  PolicyDecision d = choose(in);
  EXPECT_EQ(d.tier, Tier::kK16V8);
  EXPECT_EQ(d.arm, ArmId::kAD);
  EXPECT_FALSE(d.certified);
  EXPECT_EQ(d.needed_cases, 512);
  EXPECT_NE(d.reason.find("not certified (needs n = 512"), std::string::npos) << d.reason;
  in.mode = PolicyMode::kCertified;
  d = choose(in);
  EXPECT_EQ(d.tier, Tier::kNative);
  EXPECT_EQ(d.arm, ArmId::kN);
  EXPECT_NE(d.reason.find("policy mode certified"), std::string::npos) << d.reason;
}

TEST(Policy, UninformativeMathStillGivesTheKneeDefaultAndSaysWhy) {
  const PolicyDecision d = choose({{unharmed(ArmId::kAF, Verdict::kUninformative, std::nullopt)}});
  EXPECT_EQ(d.tier, Tier::kK16V8);
  EXPECT_NE(d.reason.find("misses the floor"), std::string::npos) << d.reason;
}

TEST(Policy, KeysThatAreNotFragileGetNothingWithoutACertificate) {
  for (const Fragility fragility : {Fragility::kRobust, Fragility::kUndecided}) {
    const PolicyDecision d = choose({{unharmed(ArmId::kAD, Verdict::kNotEstablished, 512)}, fragility});
    EXPECT_EQ(d.tier, Tier::kNative);
    EXPECT_FALSE(d.certified);
  }
}

TEST(Policy, HarmedOrUnknownAIsNative) {
  EXPECT_EQ(choose({{judged(ArmId::kAD, Verdict::kDegraded)}}).tier, Tier::kNative);
  EXPECT_NE(choose({{judged(ArmId::kAD, Verdict::kDegraded)}}).reason.find("loss with K16/V8 was shown"),
            std::string::npos);
  EXPECT_EQ(choose({{unharmed(ArmId::kAD, Verdict::kDegraded, std::nullopt)}}).tier, Tier::kNative);
  EXPECT_EQ(choose({{}}).tier, Tier::kNative);
  ArmJudgement retrieval_open = unharmed(ArmId::kAD, Verdict::kNotEstablished, std::nullopt);
  retrieval_open.retrieval[0].verdict = Verdict::kNotEstablished;
  retrieval_open.retrieval[0].length = 1024;
  retrieval_open.retrieval[0].needed = 109;
  const PolicyDecision d = choose({{retrieval_open}});
  EXPECT_EQ(d.tier, Tier::kNative);
  EXPECT_NE(d.reason.find("AD: retrieval at 1024 not established (needs n = 109)"), std::string::npos) << d.reason;
  EXPECT_EQ(d.reason.find("loss"), std::string::npos) << d.reason;
}

TEST(Policy, NoRetrievalPanelIsNoPassedRetrieval) {
  ArmJudgement arm = unharmed(ArmId::kAD, Verdict::kNotEstablished, 512);
  arm.retrieval.clear();
  EXPECT_EQ(choose({{arm}}).tier, Tier::kNative);
}

TEST(Policy, OneScalePolicyHarmedLeavesTheOther) {
  const PolicyDecision d =
      choose({{judged(ArmId::kAF, Verdict::kDegraded), unharmed(ArmId::kAD, Verdict::kNotEstablished, 9)}});
  EXPECT_EQ(d.arm, ArmId::kAD);
}

TEST(Policy, TiesGoToFewerBytesThenToTheLargerMargin) {
  Inputs in{{judged(ArmId::kSF, Verdict::kPass, 5), judged(ArmId::kSD, Verdict::kPass, 1)}};
  EXPECT_EQ(choose(in).arm, ArmId::kSF) << "fewer bytes";
  in.bytes[ArmId::kSF] = in.bytes[ArmId::kSD];
  EXPECT_EQ(choose(in).arm, ArmId::kSD) << "larger margin";
  in.arms[0] = judged(ArmId::kSF, Verdict::kPass, 1);
  EXPECT_EQ(choose(in).arm, ArmId::kSF) << "equal: fixed scales";
  in.bytes[ArmId::kSF] = in.bytes[ArmId::kSD] + 1;
  EXPECT_EQ(choose(in).arm, ArmId::kSD);
}

TEST(Policy, BytesOfAnArmMissingIsOurOwnFault) {
  Inputs in{{judged(ArmId::kSF, Verdict::kPass), judged(ArmId::kSD, Verdict::kPass)}};
  in.bytes.erase(ArmId::kSF);
  EXPECT_THROW(choose(in), Error);
}

TEST(Policy, NamesParseAndRefuse) {
  for (const Tier tier : {Tier::kNative, Tier::kK16V8, Tier::kK8V8}) EXPECT_EQ(parse_tier(tier_name(tier)), tier);
  EXPECT_EQ(parse_tier("k8v8"), Tier::kK8V8);
  EXPECT_THROW(parse_tier("K4/V4"), Error);
  EXPECT_EQ(parse_policy_mode("certified"), PolicyMode::kCertified);
  EXPECT_THROW(parse_policy_mode("brave"), Error);
}

TEST(Policy, JsonNamesWhatAServerMustFind) {
  const auto run = gate_testkit::make_run(gate_testkit::fragile_plan());
  const Judgement judgement = judge_run(run);
  const PolicyDecision d =
      choose_policy(judgement, make_probe(Fragility::kFragile), run.protocol, make_bytes(), PolicyMode::kKnee);
  EXPECT_EQ(d.tier, Tier::kK16V8);
  EXPECT_TRUE(d.certified);
  EXPECT_EQ(d.arm, ArmId::kAF);
  const Json json = policy_to_json(d, run, gate_testkit::make_record(run), std::string(64, 'e'));
  EXPECT_EQ(json.at("key"), "bf16");
  EXPECT_EQ(json.at("value"), "e4m3");
  EXPECT_EQ(json.at("scale"), "fixed");
  EXPECT_EQ(json.at("scales_sha256"), run.identity.scales_sha256);
  EXPECT_EQ(json.at("model_weights_sha256"), run.identity.model_sha256);
  EXPECT_EQ(json.at("max_context_tokens"), 8192);
  EXPECT_EQ(json.at("capacity_options").size(), 3U);  // PF, PD, JD
}

class PolicyFile : public testing::Test {
 protected:
  PolicyFile() {
    const auto run = gate_testkit::make_run(gate_testkit::fragile_plan());
    const PolicyDecision d =
        choose_policy(judge_run(run), make_probe(Fragility::kFragile), run.protocol, make_bytes(), PolicyMode::kKnee);
    json_ = policy_to_json(d, run, gate_testkit::make_record(run), std::string(64, 'e'));
  }
  ServingPolicy read() const { return serving_policy_from_json(json_, "policy.json"); }

  Json json_;
};

TEST_F(PolicyFile, ServesWhatItWasMadeFor) {
  const ServingPolicy policy = read();
  EXPECT_EQ(policy.key, "bf16");
  EXPECT_EQ(policy.value, "e4m3");
  require_policy_terms(policy, policy.terms, "policy.json");
  require_policy_use(policy, "worker", 8192, "policy.json");
}

TEST_F(PolicyFile, RefusesEveryTermThatDiffersByName) {
  using Terms = ServingPolicy::Terms;
  const std::pair<std::string Terms::*, const char*> fields[] = {{&Terms::model_weights_sha256, "model_weights_sha256"},
                                                                 {&Terms::config_sha256, "config_sha256"},
                                                                 {&Terms::tokenizer_sha256, "tokenizer_sha256"},
                                                                 {&Terms::worker, "worker"},
                                                                 {&Terms::build, "build"},
                                                                 {&Terms::scales_sha256, "scales_sha256"},
                                                                 {&Terms::transform_sha256, "transform_sha256"}};
  EXPECT_EQ(json_.at("expires").at("with").size(), std::size(fields));
  for (const auto& [member, name] : fields) {
    const ServingPolicy policy = read();
    Terms served = policy.terms;
    served.*member = "another";
    test::expect_error([&] { require_policy_terms(policy, served, "policy.json"); }, ErrorCode::kBadInput,
                       fmt::format("field \"{}\": the policy was made for", name));
  }
  test::expect_error([&] { require_policy_use(read(), "reference", 100, "policy.json"); }, ErrorCode::kBadInput,
                     "field \"path\"");
  test::expect_error([&] { require_policy_use(read(), "worker", 8193, "policy.json"); }, ErrorCode::kBadInput,
                     "\"max_context_tokens\" is 8192, but 8193");
}

TEST_F(PolicyFile, RefusesWhatItsArmDoesNotStore) {
  const Json whole = json_;
  const std::pair<const char*, const char*> changes[] = {{"key", "e4m3"},   {"value", "bf16"}, {"scale", "dynamic"},
                                                         {"tier", "K8/V8"}, {"arm", "SF"},     {"arm", "ID"}};
  for (const auto& [field, value] : changes) {
    json_[field] = value;
    const std::string named = value == std::string_view("SF") ? "tier" : field;
    test::expect_error([&] { read(); }, ErrorCode::kBadInput, fmt::format("field \"{}\"", named));
    json_ = whole;
  }
  json_["key"] = "f16";  // another model's native type
  EXPECT_EQ(read().key, "f16");
}

TEST_F(PolicyFile, RefusesAnotherCertificateBesideIt) {
  const test::TempFolder folder;
  const std::filesystem::path file = folder.write("policy.json", canonical_json(json_));
  EXPECT_EQ(read_serving_policy(file).arm, ArmId::kAF);
  folder.write("certificate.json", "{}");
  test::expect_error([&] { read_serving_policy(file); }, ErrorCode::kBadInput, "field \"certificate_sha256\"");
}

TEST_F(PolicyFile, IsReadStrictly) {
  const Json whole = json_;
  for (const auto& [key, value] : whole.items()) {
    json_.erase(key);
    test::expect_error([&] { read(); }, ErrorCode::kBadInput, key);
    json_[key] = value;
  }
  json_["comment"] = "trust me";
  test::expect_error([&] { read(); }, ErrorCode::kBadInput, "comment");
}

}  // namespace
}  // namespace asymkv
