#include "asymkv/gate/certificate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/gate/certificate_verify.h"
#include "asymkv/gate/judgement_testkit.h"

namespace asymkv {
namespace {

namespace fs = std::filesystem;
using gate_testkit::make_bytes;
using gate_testkit::make_probe;

// A certified run of native, AD, RD, SF and SD in a folder of its own.
class CertificateFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = make("run");
    certificate_ = read_json_file(folder_ / "certificate.json");
  }
  void TearDown() override {
    for (const fs::path& path : made_) fs::remove_all(path);
  }

  fs::path make(const std::string& name) {
    const fs::path folder = fs::path(testing::TempDir()) / fmt::format("asymkv-certificate-{}-{}", name, ::getpid());
    fs::remove_all(folder);
    made_.push_back(folder);
    gate_testkit::RunPlan plan = gate_testkit::fragile_plan();
    for (const ArmId arm : all_arms()) {
      if (arm != ArmId::kN && arm != ArmId::kAD && arm != ArmId::kRD && arm != ArmId::kSD && arm != ArmId::kSF) {
        plan.arms.erase(arm);
      }
    }
    gate_testkit::write_finished_run(plan, Fragility::kFragile, folder);
    return folder;
  }

  // Writes a changed certificate and expects a mismatch whose path begins with `path`.
  void expect_found(const std::function<void(Json&)>& change, const std::string& path) {
    Json changed = certificate_;
    change(changed);
    ASSERT_NE(changed, certificate_) << path;
    write_file_atomic(folder_ / "certificate.json", certificate_bytes(changed));
    expect_mismatch(path);
    write_file_atomic(folder_ / "certificate.json", certificate_bytes(certificate_));
  }

  void expect_file_change_found(const std::string& file, const std::string& before, const std::string& after,
                                const std::string& path) {
    const std::string text = read_text_file(folder_ / file);
    const size_t at = text.find(before);
    ASSERT_NE(at, std::string::npos) << file << " lacks " << before;
    std::string changed = text;
    changed.replace(at, before.size(), after);
    write_file_atomic(folder_ / file, changed);
    expect_mismatch(path);
    write_file_atomic(folder_ / file, text);
  }

  void expect_mismatch(const std::string& path) {
    const std::vector<Mismatch> found = verify_run_folder(folder_).mismatches;
    const bool named = std::ranges::any_of(found, [&](const Mismatch& m) { return m.path.starts_with(path); });
    EXPECT_TRUE(named) << path << " is not among " << mismatches_to_json(found).dump(1);
  }

  fs::path folder_;
  Json certificate_;
  std::vector<fs::path> made_;
};

TEST_F(CertificateFolder, UntouchedFolderVerifies) {
  const std::vector<Mismatch> found = verify_run_folder(folder_).mismatches;
  EXPECT_TRUE(found.empty()) << mismatches_to_json(found).dump(1);
  EXPECT_EQ(mismatches_to_json(found), (Json{{"ok", true}, {"mismatches", Json::array()}}));
}

TEST_F(CertificateFolder, EqualRunsGiveEqualBytes) {
  EXPECT_EQ(read_text_file(make("again") / "certificate.json"), read_text_file(folder_ / "certificate.json"));
}

TEST_F(CertificateFolder, HoldsWhatTheVerdictsNeed) {
  const Json& sd = certificate_["arms"]["SD"]["vs"]["N"];
  EXPECT_EQ(sd["preservation"]["verdict"], "degraded");
  EXPECT_EQ(sd["retrieval"]["1024"]["lost"], 122);
  EXPECT_EQ(sd["retrieval"]["1024"]["limit_pct"], 5.0);
  EXPECT_EQ(certificate_["arms"]["AD"]["vs"]["N"]["certified"], true);
  EXPECT_EQ(certificate_["arms"]["AD"]["format"]["value"], "e4m3");
  EXPECT_DOUBLE_EQ(certificate_["alpha_per_bound"].get<double>(), 0.05 / 40);
  EXPECT_EQ(certificate_["noise_floor"]["preservation"]["math"]["lost"], 0);
}

TEST_F(CertificateFolder, EveryChangedCertificateFieldIsNamed) {
  expect_found([](Json& c) { c["arms"]["SD"]["vs"]["N"]["retrieval"]["1024"]["lost"] = 0; },
               "arms.SD.vs.N.retrieval.1024.lost");
  expect_found([](Json& c) { c["arms"]["AD"]["vs"]["N"]["preservation"]["math"]["upper_pct"] = 1.0; },
               "arms.AD.vs.N.preservation.math.upper_pct");
  expect_found([](Json& c) { c["arms"]["SD"]["vs"]["N"]["preservation"]["verdict"] = "pass"; },
               "arms.SD.vs.N.preservation.verdict");
  expect_found([](Json& c) { c["arms"]["SD"]["vs"]["N"]["certified"] = true; }, "arms.SD.vs.N.certified");
  expect_found([](Json& c) { c["alpha_per_bound"] = 0.05; }, "alpha_per_bound");
  expect_found([](Json& c) { c["protocol"]["margins"]["preservation_limit"] = 0.5; },
               "protocol.margins.preservation_limit");
  expect_found([](Json& c) { c["identity"]["worker"] = "cuda/sm90"; }, "identity.worker");
  expect_found([](Json& c) { c["probe"]["verdict"] = "robust"; }, "probe.verdict");
  expect_found([](Json& c) { c["arms"]["AD"]["bytes_per_token"] = 1; }, "arms.AD.bytes_per_token");
  expect_found([](Json& c) { c["arms"]["AD"]["format"]["key"] = "e4m3"; }, "arms.AD.format.key");
  expect_found([](Json& c) { c["outcomes_sha256"]["SD"] = std::string(64, '0'); }, "outcomes_sha256.SD");
  expect_found([](Json& c) { c["arms"]["SD"]["vs"]["N"]["loss"]["1024"]["document_deltas"][3] = 0.0; },
               "arms.SD.vs.N.loss.1024.document_deltas[3]");
  expect_found([](Json& c) { c["noise_floor"] = Json(); }, "noise_floor");
  expect_found([](Json& c) { c["approved_by"] = "me"; }, "approved_by");
  expect_found([](Json& c) { c["arms"].erase("SD"); }, "arms.SD");
}

TEST_F(CertificateFolder, EveryChangedEvidenceFileIsNamed) {
  expect_file_change_found("protocol.json", "\"divisor\":40", "\"divisor\":41", "protocol_sha256");
  expect_file_change_found("cases.jsonl", "The code is 12345.", "The code is 12346.", "cases_sha256");
  expect_file_change_found("outcomes/SD.jsonl", "\"correct\":false", "\"correct\":true ", "outcomes_sha256.SD");
  expect_file_change_found("outcomes/N.jsonl", "\"text\":\"12345\"", "\"text\":\"12344\"",
                           "outcomes/N.jsonl:1.correct");
  expect_file_change_found("outcomes/AD.jsonl", "\"nll\":1.5", "\"nll\":1.4", "arms.AD.vs.N.loss.1024");
  expect_file_change_found("outcomes/AD.jsonl", "\n", "\n\n", "outcomes_sha256.AD");
  expect_file_change_found("run.json", "cpu/avx512", "cpu/avx513", "identity.worker");
  expect_file_change_found("progress.jsonl", "\"unit\":0", "\"unit\":9", "run");
  expect_file_change_found("policy.json", "\"tier\":\"K16/V8\"", "\"tier\":\"K8/V8\"", "policy.json:tier");
  expect_file_change_found("policy.json", "\"mode\":\"knee\"", "\"mode\":\"certified\"", "policy.json:mode");
  expect_file_change_found("certificate.json", "{\"", "{ \"", "certificate.json");
  expect_file_change_found("run.json", "\"num_layers\":2", "\"num_layers\":3", "arms.N.bytes_per_token");
  expect_file_change_found("scales.json", "0.125", "0.126", "scales.json");
  expect_file_change_found("scales.json", "aaaa", "aaab", "scales.json:model_weights_sha256");
  expect_file_change_found("record.json", "\"count\":1000000", "\"count\":12", "record.json:arms.AD.key.launched");
  expect_file_change_found("record.json", "0123abcd", "0123abce", "record.json:arms.AD.build.hash");
  expect_file_change_found("record.json", "\"page_bytes\":8192", "\"page_bytes\":4096",
                           "record.json:arms.AD.key.allocated.page_bytes");
  expect_file_change_found("record.json", "\"repairs\":[]", "\"repairs\":[7]", "record.json");
  expect_file_change_found("report.html", "K16/V8", "K8/V8", "report.html");
}

TEST_F(CertificateFolder, EveryMissingFileIsNamed) {
  for (const std::string file : {"scales.json", "record.json", "policy.json", "report.html", "progress.jsonl"}) {
    const std::string text = read_text_file(folder_ / file);
    fs::remove(folder_ / file);
    expect_mismatch(file == "progress.jsonl" ? "run" : file);
    write_file_atomic(folder_ / file, text);
  }
  write_file_atomic(folder_ / "record.json", "[[1]]");
  expect_mismatch("record.json");
}

// Nothing in the folder contradicts the forged bytes but the shape of the cache.
TEST_F(CertificateFolder, ForgedBytesAreFoundWithoutThePolicy) {
  fs::remove(folder_ / "policy.json");
  expect_found([](Json& c) { c["arms"]["SD"]["bytes_per_token"] = 1; }, "arms.SD.bytes_per_token");
}

TEST_F(CertificateFolder, ARecordOfAnotherArmOrNoneIsNamed) {
  Json record = read_json_file(folder_ / "record.json");
  Json changed = record;
  changed["arms"].erase("N2");
  write_file_atomic(folder_ / "record.json", canonical_json(changed));
  expect_mismatch("record.json:arms.N2");
  for (const std::string side : {"key", "value"}) {
    changed = record;
    changed["arms"]["SD"][side]["launched"] = "unknown";
    changed["arms"]["SD"][side]["attested"] = false;
    write_file_atomic(folder_ / "record.json", canonical_json(changed));
    expect_mismatch("record.json:arms.SD." + side + ".attested");
  }
}

TEST_F(CertificateFolder, AFolderOfAnEarlierVersionIsRefusedInWords) {
  Json run = read_json_file(folder_ / "run.json");
  run["schema"] = "asymkv.run/1";
  run.erase("cache");
  run.erase("policy_mode");
  write_file_atomic(folder_ / "run.json", canonical_json(run));
  const std::vector<Mismatch> found = verify_run_folder(folder_).mismatches;
  ASSERT_FALSE(found.empty());
  EXPECT_NE(found[0].recomputed.find("a run of an earlier version"), std::string::npos) << found[0].recomputed;
}

TEST_F(CertificateFolder, OnlyPolicyAndReportAreDerived) {
  EXPECT_TRUE(is_derived({"policy.json:tier", "", ""}));
  EXPECT_TRUE(is_derived({"policy.json", "", ""}));
  EXPECT_TRUE(is_derived({"report.html", "", ""}));
  EXPECT_FALSE(is_derived({"record.json", "", ""}));
  EXPECT_FALSE(is_derived({"arms.SD.bytes_per_token", "", ""}));
}

// Both the mark and every hash are forged; the text still gives the right answer.
TEST_F(CertificateFolder, ForgedMarkIsFoundByJudgingTheTextAgain) {
  const fs::path path = folder_ / "outcomes/SD.jsonl";
  std::string text = read_text_file(path);
  const std::string wrong = "\"correct\":false";
  const size_t at = text.find(wrong);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, wrong.size(), "\"correct\":true");
  write_file_atomic(path, text);
  expect_found([&](Json& c) { c["outcomes_sha256"]["SD"] = sha256_hex(text); }, "outcomes/SD.jsonl:1.correct");
}

TEST_F(CertificateFolder, FolderWithoutCertificateIsBadInput) {
  fs::remove(folder_ / "certificate.json");
  EXPECT_THROW(verify_run_folder(folder_), Error);
  write_file_atomic(folder_ / "certificate.json", "[1]\n");
  EXPECT_FALSE(verify_run_folder(folder_).mismatches.empty());
}

TEST_F(CertificateFolder, UnequalBytesOfAAndRAreOurOwnFault) {
  const auto run = read_run(folder_);
  const Judgement judgement = judge_run(run);
  const ProbeResult probe = make_probe(Fragility::kFragile);
  ArmBytes bytes = make_bytes();
  bytes[ArmId::kRD] += 16;
  EXPECT_THROW(make_certificate({run, judgement, probe, bytes, folder_}), Error);
}

TEST_F(CertificateFolder, TableNamesEveryArmAndThePolicy) {
  const auto run = read_run(folder_);
  const Judgement judgement = judge_run(run);
  const ArmBytes bytes = make_bytes();
  const PolicyDecision policy =
      choose_policy(judgement, make_probe(Fragility::kFragile), run.protocol, bytes, PolicyMode::kKnee);
  const std::string table = render_table(run, judgement, bytes, policy);
  for (const std::string part : {"N2", "AD", "RD", "SD", "degraded", "policy (knee): K16/V8", "122/132", "24.2%"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  }
}

TEST(JsonDifferences, NamesPathsAndToleratesLastDigits) {
  const Json a = {{"x", {{"y", {1, 2.0, "z"}}}}, {"only", 1}};
  Json b = a;
  EXPECT_TRUE(json_differences(a, b).empty());
  b["x"]["y"][1] = 2.0 * (1 + 1e-12);
  EXPECT_TRUE(json_differences(a, b).empty());
  b["x"]["y"][0] = 2;
  b["x"]["y"][2] = "w";
  b.erase("only");
  std::vector<std::string> paths;
  for (const Mismatch& m : json_differences(a, b)) paths.push_back(m.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"only", "x.y[0]", "x.y[2]"}));
}

}  // namespace
}  // namespace asymkv
