#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "asymkv/base/file.h"
#include "asymkv/gate/certificate_verify.h"
#include "asymkv/gate/judgement_testkit.h"
#include "asymkv/gate/test_support.h"

// Every file of a finished run, changed in one place after the other: `gate verify` finds each and says where.
namespace asymkv {
namespace {

namespace fs = std::filesystem;

// A run of 50 cases: native, AD, SF and SD, which loses needles and answers.
gate_testkit::RunPlan tiny_plan() {
  gate_testkit::RunPlan plan = gate_testkit::fragile_plan();
  std::erase_if(plan.arms, [](const auto& entry) {
    const ArmId arm = entry.first;
    return arm != ArmId::kN && arm != ArmId::kN2 && arm != ArmId::kAD && arm != ArmId::kSF && arm != ArmId::kSD;
  });
  plan.protocol.protocol_class = ProtocolClass::kScreening;
  plan.protocol.retrieval.resize(1);
  plan.protocol.retrieval[0].count = 20;
  plan.protocol.retrieval[0].depths = 10;
  plan.protocol.math->count = 24;
  plan.protocol.loss[0].documents = 6;
  plan.native_correct.clear();
  for (const ArmId arm : {ArmId::kSF, ArmId::kSD}) {
    plan.arms[arm].panels = {{"retrieval-1024", {.lost = 12}}, {"math", {.lost = 20, .truncated = 2}}};
  }
  return plan;
}

struct Change {
  std::string file;
  std::string before;  // its first occurrence is replaced
  std::string after;
  std::string path;  // a mismatch begins with it
};

const std::vector<Change>& changes() {
  static const std::vector<Change> table = {
      {"protocol.json", R"("divisor":40)", R"("divisor":41)", "protocol.divisor"},
      {"protocol.json", R"("preservation_limit":0.02)", R"("preservation_limit":0.03)",
       "protocol.margins.preservation_limit"},
      {"protocol.json", R"("seed":20261129)", R"("seed":20261128)", "protocol.seed"},
      {"cases.jsonl", "What is it?", "What was it?", "cases_sha256"},
      {"cases.jsonl", R"("expected":"12345")", R"("expected":"00000")", "outcomes/N.jsonl:1.correct"},
      {"cases.jsonl", R"("depth":0.1)", R"("depth":0.2)", "cases_sha256"},
      {"run.json", "cpu/avx512", "cpu/avx513", "identity.worker"},
      {"run.json", R"("model":"tiny-fragile")", R"("model":"tiny-fragilf")", "identity.model"},
      {"run.json", R"("page_size":16)", R"("page_size":32)", "record.json:arms.AD.key.allocated.page_bytes"},
      {"run.json", R"("policy_mode":"knee")", R"("policy_mode":"certified")", "policy.json:mode"},
      {"run.json", R"("schema")", R"( "schema")", "run.json"},
      {"record.json", R"("worker":"cpu/avx512")", R"("worker":"cpu/avx513")", "record.json:arms.AD.worker"},
      {"progress.jsonl", R"("cases":)", R"("cases":1)", "run"},
      {"progress.jsonl", R"("end_bytes":{"AD":)", R"("end_bytes":{"AD":1)", "run"},
      {"progress.jsonl", R"("sha256":")", R"("sha256":"0)", "run"},
      {"progress.jsonl", "\n", " \n", "progress.jsonl"},
      {"outcomes/SD.jsonl", R"("alt_correct":false)", R"("alt_correct":true)", "outcomes"},
      {"outcomes/AD.jsonl", R"("alt_correct":true)", R"("alt_correct":false)", "outcomes/AD.jsonl:21.alt_correct"},
      {"outcomes/AD.jsonl", R"("alt_parsed":"7")", R"("alt_parsed":"8")", "outcomes/AD.jsonl:21.alt_parsed"},
      {"outcomes/AD.jsonl", R"("arm":"AD")", R"("arm":"SD")", "outcomes"},
      {"outcomes/AD.jsonl", R"("case_id":"retrieval-1024/0000")", R"("case_id":"retrieval-1024/9000")", "outcomes"},
      {"outcomes/AD.jsonl", R"("correct":true)", R"("correct":false)", "outcomes/AD.jsonl:1.correct"},
      {"outcomes/AD.jsonl", R"("failed":false)", R"("failed":true)", "outcomes"},
      {"outcomes/AD.jsonl", R"("failure":"")", R"("failure":"x")", "outcomes"},
      {"outcomes/AD.jsonl", R"("nll":1.5)", R"("nll":1.25)", "arms.AD.vs.N.loss.1024"},
      {"outcomes/AD.jsonl", R"("panel":"retrieval-1024")", R"("panel":"math")", "outcomes"},
      {"outcomes/AD.jsonl", R"("parsed":"12345")", R"("parsed":"54321")", "outcomes/AD.jsonl:1.parsed"},
      {"outcomes/AD.jsonl", R"("scored_tokens":512)", R"("scored_tokens":513)", "outcomes_sha256.AD"},
      {"outcomes/N2.jsonl", R"("text":"12345")", R"("text":"12344")", "outcomes/N2.jsonl:1.correct"},
      {"outcomes/SD.jsonl", R"("tokens":5)", R"("tokens":6)", "outcomes_sha256.SD"},
      {"outcomes/SD.jsonl", R"("truncated":true)", R"("truncated":false)",
       "arms.SD.vs.N.preservation.math.truncated_candidate"},
      {"record.json", R"("count":1000000)", R"("count":0)", "record.json"},
      {"record.json", R"("attested":true)", R"("attested":false)", "record.json"},
      {"record.json", R"("page_size":16)", R"("page_size":17)", "record.json:arms.AD.layout.page_size"},
      {"record.json", R"("revision":null)", R"("revision":"r9")", "record.json"},
      {"record.json", R"("repairs":[])", R"("repairs":["none"])", "record.json"},
      {"scales.json", "0.125", "0.126", "scales.json"},
      {"scales.json", R"("data_sha256":")", R"("data_sha256":"0)", "scales_file_sha256"},
      {"certificate.json", R"("lost":12)", R"("lost":1)", "arms.SD.vs.N.retrieval.1024.lost"},
      {"certificate.json", R"("candidate_correct":8)", R"("candidate_correct":9)",
       "arms.SD.vs.N.retrieval.1024.candidate_correct"},
      {"certificate.json", R"("alpha_per_bound":0)", R"("alpha_per_bound":1)", "alpha_per_bound"},
      {"certificate.json", R"("upper_pct":)", R"("upper_pct":1)", "arms.AD.vs.N.loss.1024.upper_pct"},
      {"certificate.json", R"("verdict":"degraded")", R"("verdict":"pass")", "arms.SD.vs.N.aggregate"},
      {"certificate.json", R"("most_moving_case":"loss-1024/000)", R"("most_moving_case":"loss-1024/001)",
       "arms.AD.vs.N.loss.1024.leave_one_out.most_moving_case"},
      {"certificate.json", R"("bytes_per_token":1552)", R"("bytes_per_token":1551)", "arms.AD.bytes_per_token"},
      {"certificate.json", R"("cases_sha256":")", R"("cases_sha256":"0)", "cases_sha256"},
      {"certificate.json", R"("logit_noise":)", R"("logit_noise":1)", "probe.mean_logit_noise"},
      {"certificate.json", "\n", "", "certificate.json"},
      {"policy.json", R"("mode":"knee")", R"("mode":"certified")", "policy.json:mode"},
      {"policy.json", R"("certificate_sha256":")", R"("certificate_sha256":"0)", "policy.json:certificate_sha256"},
      {"policy.json", "\n", "\n\n", "policy.json"},
      {"report.html", "<h1>", "<h1> ", "report.html"}};
  return table;
}

class Tamper : public testing::Test {
 protected:
  void SetUp() override { gate_testkit::write_finished_run(tiny_plan(), Fragility::kFragile, folder_.path()); }

  // What verify says about the folder while `file` holds `text`.
  std::vector<Mismatch> verify_with(const std::string& file, const std::string& text) {
    const fs::path path = folder_.path() / file;
    const std::string whole = read_text_file(path);
    write_file_atomic(path, text);
    std::vector<Mismatch> found = verify_run_folder(folder_.path()).mismatches;
    write_file_atomic(path, whole);
    return found;
  }

  test::TempFolder folder_;
};

TEST_F(Tamper, EachChangedFieldIsNamed) {
  ASSERT_TRUE(verify_run_folder(folder_.path()).mismatches.empty());
  for (const Change& change : changes()) {
    SCOPED_TRACE(change.file + ": " + change.after);
    std::string text = read_text_file(folder_.path() / change.file);
    const size_t at = text.find(change.before);
    EXPECT_NE(at, std::string::npos);
    if (at == std::string::npos) continue;
    text.replace(at, change.before.size(), change.after);
    const std::vector<Mismatch> found = verify_with(change.file, text);
    const bool named = std::ranges::any_of(found, [&](const Mismatch& m) { return m.path.starts_with(change.path); });
    EXPECT_TRUE(named) << change.path << " is not among " << mismatches_to_json(found).dump(1);
  }
}

TEST_F(Tamper, TheTableCoversEveryFile) {
  std::set<std::string> files;
  for (const Change& change : changes()) files.insert(change.file.substr(0, change.file.find('/')));
  for (const auto& entry : fs::directory_iterator(folder_.path())) {
    EXPECT_TRUE(files.contains(entry.path().filename().string())) << entry.path();
  }
  EXPECT_GE(changes().size(), 30);
}

// Whatever the byte says, and wherever it lies.
TEST_F(Tamper, AnyChangedByteIsFound) {
  for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
    if (!entry.is_regular_file()) continue;
    const std::string file = fs::relative(entry.path(), folder_.path()).string();
    const std::string whole = read_text_file(entry.path());
    for (const double place : {0.0, 0.37, 0.71, 1.0}) {
      std::string text = whole;
      const auto at = static_cast<size_t>(place * static_cast<double>(text.size() - 1));
      text[at] = text[at] == '7' ? '8' : '7';
      bool found = true;
      try {
        found = !verify_with(file, text).empty();
      } catch (const Error& e) {  // a certificate that is no JSON
        write_file_atomic(entry.path(), whole);
        EXPECT_NE(std::string(e.what()).find(file), std::string::npos) << e.what();
      }
      EXPECT_TRUE(found) << file << ", byte " << at;
    }
  }
}

}  // namespace
}  // namespace asymkv
