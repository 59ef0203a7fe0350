// Runs the built `asymkv gate ...` on a synthetic run: protocol, report and verify, with exit codes.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/base/json.h"
#include "asymkv/gate/judgement_testkit.h"

namespace asymkv {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

struct Answer {
  int exit_code = -1;
  std::string out;
  std::string err;
};

class GateCli : public testing::Test {
 protected:
  void SetUp() override {
    scratch_ = fs::path(testing::TempDir()) / fmt::format("gate_cli_test_{}", ::getpid());
    fs::remove_all(scratch_);
    fs::create_directories(scratch_);
    folder_ = scratch_ / "run";
    gate_testkit::write_finished_run(gate_testkit::robust_plan(), Fragility::kRobust, folder_);
  }
  void TearDown() override { fs::remove_all(scratch_); }

  // `arguments` is shell text.
  Answer run(const std::string& arguments) const {
    const fs::path out = scratch_ / "out", err = scratch_ / "err";
    const std::string line =
        fmt::format("'{}' {} >'{}' 2>'{}' </dev/null", ASYMKV_PROGRAM, arguments, out.string(), err.string());
    const int status = std::system(line.c_str());
    EXPECT_TRUE(WIFEXITED(status)) << arguments;
    return {WEXITSTATUS(status), read_text_file(out), read_text_file(err)};
  }

  fs::path scratch_;
  fs::path folder_;
};

TEST_F(GateCli, ProtocolPrintsTheFileThatIsHashed) {
  const Answer answer = run("gate protocol builtin --json");
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  const Json json = parse_json(answer.out, "stdout");
  EXPECT_EQ(json, protocol_to_json(builtin_protocol("builtin")));
  const Answer words = run("gate protocol builtin");
  EXPECT_THAT(words.out, HasSubstr("SHA-256 " + sha256_hex(canonical_json(json))));
}

TEST_F(GateCli, UnknownProtocolIsBadUsage) {
  const Answer answer = run("gate protocol nonsense");
  EXPECT_EQ(answer.exit_code, 2);
  EXPECT_THAT(answer.err, HasSubstr("known: builtin quick"));
}

TEST_F(GateCli, ReportIsWrittenAndTheTablePrinted) {
  const Answer answer = run(fmt::format("gate report '{}'", folder_.string()));
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("policy (knee): K8/V8"));
  EXPECT_THAT(read_text_file(folder_ / "report.html"), HasSubstr("K8/V8 is admitted"));
}

TEST_F(GateCli, VerifyAcceptsAndNamesAChange) {
  Answer answer = run(fmt::format("gate verify '{}' --json", folder_.string()));
  EXPECT_EQ(answer.exit_code, 0) << answer.out;
  EXPECT_THAT(answer.err, IsEmpty());
  EXPECT_EQ(parse_json(answer.out, "stdout"), (Json{{"ok", true}, {"mismatches", Json::array()}}));

  Json certificate = read_json_file(folder_ / "certificate.json");
  certificate["arms"]["SD"]["vs"]["N"]["retrieval"]["8192"]["lost"] = 31;
  write_file_atomic(folder_ / "certificate.json", certificate_bytes(certificate));
  answer = run(fmt::format("gate verify '{}' --json", folder_.string()));
  EXPECT_EQ(answer.exit_code, 1);
  const Json json = parse_json(answer.out, "stdout");
  EXPECT_EQ(json.at("ok"), false);
  ASSERT_GE(json.at("mismatches").size(), 1U) << answer.out;
  EXPECT_EQ(json["mismatches"][0]["path"], "arms.SD.vs.N.retrieval.8192.lost");
  EXPECT_EQ(json["mismatches"][0]["recorded"], "31");
  EXPECT_EQ(json["mismatches"][0]["recomputed"], "0");
  const Answer words = run(fmt::format("gate verify '{}'", folder_.string()));
  EXPECT_THAT(words.out, HasSubstr("recorded 31, recomputed: 0"));
  EXPECT_THAT(words.err,
              testing::ContainsRegex(json["mismatches"].size() == 1 ? "1 mismatch in" : "[0-9] mismatches in"));
}

TEST_F(GateCli, ReportRefusesAForgedCertificateAndRestoresThePolicy) {
  const std::string policy = read_text_file(folder_ / "policy.json");
  write_file_atomic(folder_ / "policy.json", "{}");
  fs::remove(folder_ / "report.html");
  EXPECT_EQ(run(fmt::format("gate report '{}'", folder_.string())).exit_code, 0);
  EXPECT_EQ(read_text_file(folder_ / "policy.json"), policy);

  Json certificate = read_json_file(folder_ / "certificate.json");
  certificate["arms"]["SD"]["bytes_per_token"] = 1;
  write_file_atomic(folder_ / "certificate.json", certificate_bytes(certificate));
  fs::remove(folder_ / "policy.json");
  EXPECT_EQ(run(fmt::format("gate verify '{}'", folder_.string())).exit_code, 1);
  const Answer answer = run(fmt::format("gate report '{}'", folder_.string()));
  EXPECT_EQ(answer.exit_code, 3);
  EXPECT_THAT(answer.err, HasSubstr("does not verify (arms.SD.bytes_per_token"));
  EXPECT_FALSE(fs::exists(folder_ / "policy.json"));
}

TEST_F(GateCli, FolderWithoutARunIsBadInput) {
  const Answer answer = run(fmt::format("gate verify '{}'", scratch_.string()));
  EXPECT_EQ(answer.exit_code, 3);
  EXPECT_THAT(answer.err, HasSubstr("certificate.json"));
}

TEST_F(GateCli, CompareTestsArmsOfOneRunAndOfTwo) {
  Answer answer = run(fmt::format("gate compare '{0}:SD' '{0}:AD' --json", folder_.string()));
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  const Json json = parse_json(answer.out, "stdout");
  ASSERT_EQ(json.at("rows").size(), 4U);
  const Json& row = json["rows"][2];
  EXPECT_EQ(row.at("a"), "SD");
  EXPECT_EQ(row.at("b"), "AD");
  EXPECT_EQ(row.at("panel"), "math");
  EXPECT_EQ(row.at("p"), 1.0);
  EXPECT_EQ(row.at("verdict"), "no_difference_shown");

  // DIR alone: the seven candidates of the run, the first against each of the others.
  answer = run(fmt::format("gate compare '{}' --family math --json", folder_.string()));
  EXPECT_EQ(parse_json(answer.out, "stdout").at("rows").size(), 6U) << answer.err;

  const fs::path other = scratch_ / "other";
  gate_testkit::RunPlan plan = gate_testkit::fragile_plan();
  gate_testkit::write_finished_run(plan, Fragility::kFragile, other);
  answer = run(fmt::format("gate compare '{}:SD' '{}:SD'", folder_.string(), other.string()));
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("tiny-fragile, K8/V8, dynamic scales"));
  EXPECT_THAT(answer.out, HasSubstr("different"));

  answer = run(fmt::format("gate compare '{}:SD'", folder_.string()));
  EXPECT_EQ(answer.exit_code, 2);
  EXPECT_THAT(answer.err, HasSubstr("needs two arms or more"));
  answer = run(fmt::format("gate compare '{}' --family speed", folder_.string()));
  EXPECT_EQ(answer.exit_code, 2);
  EXPECT_THAT(answer.err, HasSubstr("--family must be all, math, retrieval or loss"));
}

}  // namespace
}  // namespace asymkv
