#include "asymkv/gate/merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "asymkv/base/file.h"
#include "asymkv/gate/certificate_verify.h"
#include "asymkv/gate/judgement_testkit.h"
#include "asymkv/gate/test_support.h"

namespace asymkv {
namespace {

namespace fs = std::filesystem;
using gate_testkit::fragile_plan;
using gate_testkit::RunPlan;
using gate_testkit::write_finished_run;
using test::expect_error;
using test::TempFolder;

constexpr int64_t kShards = 7;

class MergeTest : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("ASYMKV_NO_PROGRESS", "1", 1);
    for (int64_t i = 1; i <= kShards; ++i) shards_.push_back(write_shard({i, kShards}, "shard-" + std::to_string(i)));
  }

  fs::path write_shard(const Shard& shard, const std::string& name, const std::string& build = "") {
    RunPlan plan = fragile_plan();
    plan.shard = shard;
    if (!build.empty()) plan.identity.build = build;
    write_finished_run(plan, Fragility::kFragile, temp_.path() / name);
    return temp_.path() / name;
  }
  fs::path out() const { return temp_.path() / "merged"; }
  // The merge is refused for this reason, and nothing was written.
  void expect_refused(const std::vector<fs::path>& shards, const std::string& words) {
    expect_error([&] { merge_shards(out(), shards); }, ErrorCode::kBadInput, words);
    EXPECT_FALSE(fs::exists(out()));
  }

  TempFolder temp_;
  std::vector<fs::path> shards_;
};

TEST_F(MergeTest, ShardsInAnyOrderGiveTheUnshardedRun) {
  const fs::path whole = temp_.path() / "whole";
  write_finished_run(fragile_plan(), Fragility::kFragile, whole);
  std::mt19937 random(7);
  std::ranges::shuffle(shards_, random);
  const FinishedRun finished = merge_shards(out(), shards_);
  write_certificate(finished, out());
  write_policy_and_report(finished, out());
  for (const auto& entry : fs::recursive_directory_iterator(whole)) {
    const fs::path name = fs::relative(entry.path(), whole);
    // The record adds up the launches of seven processes, and the report prints them.
    if (!entry.is_regular_file() || name == "record.json" || name == "report.html") continue;
    EXPECT_EQ(read_text_file(out() / name), read_text_file(entry.path())) << name;
  }
  EXPECT_TRUE(verify_run_folder(out()).mismatches.empty());
  const int64_t launches = finished.record.arms.at(ArmId::kSD).key.launched.at(0).count;
  EXPECT_EQ(launches, kShards * read_admission_record(whole).arms.at(ArmId::kSD).key.launched.at(0).count);
}

TEST_F(MergeTest, AMissingShardIsNamed) {
  std::vector<fs::path> shards = shards_;
  shards.erase(shards.begin() + 2);
  expect_refused(shards, "shard 3/7 is missing");
}

TEST_F(MergeTest, ADoubledShardIsNamedWithBothFolders) {
  std::vector<fs::path> shards = shards_;
  shards.push_back(write_shard({4, kShards}, "again"));
  expect_refused(shards, shards_[3].string() + " and " + shards.back().string() + " are both shard 4/7");
}

TEST_F(MergeTest, AnotherBuildIsNamedByFolderFieldAndValues) {
  std::vector<fs::path> shards = shards_;
  shards[5] = write_shard({6, kShards}, "other-build", "build-of-tuesday");
  expect_refused(shards,
                 shards[5].string() + " is of another run than " + shards[0].string() + ": \"identity.build\" is");
  expect_refused(shards, "\"build-of-tuesday\" here");
}

TEST_F(MergeTest, AnotherNumberOfShardsIsRefused) {
  std::vector<fs::path> shards = shards_;
  shards[1] = write_shard({2, 6}, "of-six");
  expect_refused(shards, "\"shard.count\" is 7 there and 6 here");
}

TEST_F(MergeTest, UnfinishedChangedAndWholeFoldersAreRefused) {
  const fs::path progress = shards_[4] / "progress.jsonl";
  const std::string lines = read_text_file(progress);
  write_file_atomic(progress, lines.substr(0, lines.find('\n') + 1));
  expect_refused(shards_, shards_[4].string() + " (shard 5/7) has finished 1 of");
  write_file_atomic(progress, lines);

  const fs::path outcomes = shards_[4] / "outcomes/SD.jsonl";
  std::string changed = read_text_file(outcomes);
  changed[changed.find("\"correct\":") + 10] = 'x';
  write_file_atomic(outcomes, changed);
  expect_refused(shards_, "were changed after they were written");

  const fs::path whole = temp_.path() / "whole";
  write_finished_run(fragile_plan(), Fragility::kFragile, whole);
  expect_refused({whole}, "is a whole run, no shard of one");
}

TEST_F(MergeTest, AShardIsNoRun) {
  expect_error([&] { read_run(shards_[1]); }, ErrorCode::kBadInput, "is shard 2/7 of a run: merge all 7 of them");
}

TEST(Shard, IsReadStrictly) {
  EXPECT_EQ(parse_shard("2/7"), (Shard{2, 7}));
  for (const char* text : {"", "2", "0/7", "8/7", "/7", "2/", "-1/7", "2/7 ", "02/7", "1/0", "2/7/9"}) {
    expect_error([&] { parse_shard(text); }, ErrorCode::kUsage, "must be i/n");
  }
}

}  // namespace
}  // namespace asymkv
