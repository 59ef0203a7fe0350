#include "asymkv/gate/run_folder.h"

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/base/interrupt.h"
#include "asymkv/gate/cases.h"
#include "asymkv/gate/test_support.h"

namespace asymkv {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TempFolder;

// Answers by rule: a hash of case and arm decides whether the answer is right, how long it is and what a loss is.
class FakeRunner : public CaseRunner {
 public:
  explicit FakeRunner(std::chrono::microseconds pause = {}) : pause_(pause) {}

  std::vector<RawOutcome> run_unit(const Unit& unit) override {
    units.push_back(unit.index);
    std::vector<RawOutcome> raws;
    for (const ArmSlot& slot : unit.slots) {
      for (const int64_t case_idx : slot.order) {
        raws.push_back(answer(unit.cases[static_cast<size_t>(case_idx)], case_idx, slot.arm));
      }
    }
    std::this_thread::sleep_for(pause_);
    return raws;
  }

  std::vector<int64_t> units;  // that were asked

 private:
  static RawOutcome answer(const Case& asked, int64_t case_idx, ArmId arm) {
    const std::string hash = sha256_hex(asked.id + (arm == ArmId::kN2 ? "N" : std::string(arm_name(arm))));
    const int dice = std::stoi(hash.substr(0, 4), nullptr, 16);
    RawOutcome raw;
    raw.case_idx = case_idx;
    raw.arm = arm;
    if (dice % 17 == 0) {
      raw.failure = "the dice fell off the table";
    } else if (asked.kind == PanelKind::kLoss) {
      raw.nll = 1.0 + dice / 65536.0;
      raw.scored_tokens = asked.scored_tokens;
    } else {
      raw.text = std::string(static_cast<size_t>(dice % 300), 'x') + " #### " +
                 (dice % 5 == 0 ? std::string("none") : asked.expected);
      raw.tokens = dice % 300;
      raw.truncated = dice % 7 == 0;
    }
    return raw;
  }

  std::chrono::microseconds pause_;
};

RunRequest make_request(const fs::path& folder) {
  RunRequest request;
  request.folder = folder;
  request.arms = {ArmId::kN, ArmId::kAD, ArmId::kSD};
  request.identity = {
      "fake", std::string(64, 'a'), std::string(64, 'b'), std::string(64, 'c'), "build-1", "cpu/fake", "bf16", ""};
  request.cache = {3, {.num_kv_heads = 2, .k_head_dim = 16, .v_head_dim = 16, .page_size = 16}};
  Protocol& p = request.protocol;
  p = builtin_protocol("builtin");
  p.name = "small";
  p.protocol_class = ProtocolClass::kScreening;
  p.retrieval.resize(1);
  p.retrieval[0].count = 14;
  p.retrieval[0].depths = 7;
  p.retrieval[0].cases_per_unit = 4;  // the last unit has 2
  p.math->count = 12;
  p.math->cases_per_unit = 3;
  p.loss[0].documents = 5;
  p.loss[0].cases_per_unit = 2;
  request.cases = make_cases(p, {}, {[](std::string_view text) { return std::ssize(text); }, true});
  return request;
}
constexpr int64_t kUnits = 4 + 4 + 3;

// Every file of a folder with its bytes.
std::map<std::string, std::string> snapshot(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files[fs::relative(entry.path(), folder).string()] = read_text_file(entry.path());
  }
  return files;
}

void restore(const fs::path& folder, const std::map<std::string, std::string>& files) {
  fs::remove_all(folder);
  fs::create_directories(folder / "outcomes");
  for (const auto& [name, bytes] : files) write_file_atomic(folder / name, bytes);
}

int64_t num_lines(const fs::path& path) {
  if (!fs::exists(path)) return 0;
  const std::string text = read_text_file(path);
  return std::ranges::count(text, '\n');
}

// Finishes whatever lies in the folder and expects the reference's bytes.
RunSummary finish(const fs::path& folder, const std::map<std::string, std::string>& reference) {
  RunRequest request = make_request(folder);
  request.resume = true;
  const int64_t committed = num_lines(folder / "progress.jsonl");
  FakeRunner runner;
  const RunSummary summary = run_panels(request, runner);
  EXPECT_EQ(summary.units_resumed, committed);
  EXPECT_EQ(std::ssize(runner.units), kUnits - committed);
  if (!runner.units.empty()) {
    EXPECT_EQ(runner.units.front(), committed);
  }
  EXPECT_EQ(snapshot(folder), reference);
  return summary;
}

class RunFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("ASYMKV_NO_PROGRESS", "1", 1);
    FakeRunner runner;
    const auto summary = run_panels(make_request(folder()), runner);
    EXPECT_EQ(summary.units, kUnits);
    EXPECT_EQ(summary.units_resumed, 0);
    EXPECT_TRUE(summary.repairs.empty());
    reference_ = snapshot(folder());
  }
  fs::path folder() const { return temp_.path() / "run"; }

  TempFolder temp_;
  std::map<std::string, std::string> reference_;
};

TEST_F(RunFolderTest, HoldsEveryFileAndReadsBack) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : reference_) names.push_back(name);
  EXPECT_THAT(names, testing::ElementsAre("cases.jsonl", "outcomes/AD.jsonl", "outcomes/N.jsonl", "outcomes/N2.jsonl",
                                          "outcomes/SD.jsonl", "progress.jsonl", "protocol.json", "run.json"));
  const RunRequest request = make_request(folder());
  const auto run = read_run(folder());
  EXPECT_EQ(run.protocol_sha256, protocol_sha256(request.protocol));
  EXPECT_EQ(run.identity, request.identity);
  EXPECT_EQ(run.cases, request.cases);
  EXPECT_EQ(run.cache, request.cache);
  EXPECT_EQ(run.mode, PolicyMode::kKnee);
  EXPECT_THAT(run.arms, testing::ElementsAre(ArmId::kN, ArmId::kN2, ArmId::kAD, ArmId::kSD));
  ASSERT_EQ(run.outcomes.size(), 4U);
  int64_t failed = 0, correct = 0;
  for (size_t i = 0; i < run.cases.size(); ++i) {
    EXPECT_EQ(run.outcomes[2][i].case_id, run.cases[i].id);
    EXPECT_EQ(run.outcomes[0][i].correct, run.outcomes[1][i].correct);  // the fake does not look at the order
    failed += run.outcomes[2][i].failed ? 1 : 0;
    correct += run.outcomes[2][i].correct ? 1 : 0;
  }
  EXPECT_GT(failed, 0);
  EXPECT_GT(correct, 5);
}

TEST_F(RunFolderTest, RotatesTheNoiseFloorArmOnly) {
  const RunRequest request = make_request(folder());
  for (const Unit& unit : plan_units(request.protocol, request.cases, request.arms)) {
    for (const ArmSlot& slot : unit.slots) {
      ASSERT_EQ(slot.order.size(), unit.cases.size());
      for (size_t i = 0; i < slot.order.size(); ++i) {
        const auto expected = slot.arm == ArmId::kN2 ? (i + 1) % slot.order.size() : i;
        EXPECT_EQ(slot.order[i], static_cast<int64_t>(expected));
      }
    }
    EXPECT_EQ(unit.slots[0].arm, ArmId::kN);
  }
}

TEST_F(RunFolderTest, AFinishedRunResumesToItself) {
  EXPECT_TRUE(finish(folder(), reference_).repairs.empty());
}

TEST_F(RunFolderTest, RefusesAFolderThatIsNotEmpty) {
  FakeRunner runner;
  expect_error([&] { run_panels(make_request(folder()), runner); }, ErrorCode::kUsage, "is not empty: resume the run");
  temp_.write("file", "x");
  expect_error([&] { run_panels(make_request(temp_.path() / "file"), runner); }, ErrorCode::kUsage, "is not a folder");
  fs::create_directories(temp_.path() / "other");
  temp_.write("other/thesis.txt", "x");
  RunRequest request = make_request(temp_.path() / "other");
  request.resume = true;
  expect_error([&] { run_panels(request, runner); }, ErrorCode::kUsage, "holds no run to resume");
  EXPECT_TRUE(runner.units.empty());
}

TEST_F(RunFolderTest, ResumeRefusesAnotherRunByName) {
  const auto refuse = [&](const std::function<void(RunRequest&)>& change, std::string_view words) {
    RunRequest request = make_request(folder());
    request.resume = true;
    change(request);
    FakeRunner runner;
    SCOPED_TRACE(words);
    expect_error([&] { require_same_run(request); }, ErrorCode::kBadInput, words);
    expect_error([&] { run_panels(request, runner); }, ErrorCode::kBadInput, words);
    EXPECT_TRUE(runner.units.empty());
    EXPECT_EQ(snapshot(folder()), reference_);
  };
  refuse([](RunRequest& r) { r.protocol.divisor = 24; }, "\"divisor\" is 40 there and 24 now");
  refuse([](RunRequest& r) { r.protocol.math->generation.token_limit = 81; },
         "\"panels.math.generation.token_limit\" is 80 there and 81 now");
  refuse([](RunRequest& r) { r.identity.model_sha256 = std::string(64, 'f'); }, "\"identity.model_sha256\" is \"aaa");
  refuse([](RunRequest& r) { r.identity.build = "build-2"; },
         "\"identity.build\" is \"build-1\" there and \"build-2\"");
  refuse([](RunRequest& r) { r.identity.worker = "cuda"; }, "\"identity.worker\" is \"cpu/fake\" there");
  refuse([](RunRequest& r) { r.identity.scales_sha256 = "77"; }, "\"identity.scales_sha256\" is \"\" there");
  refuse([](RunRequest& r) { r.mode = PolicyMode::kCertified; }, "\"policy_mode\" is \"knee\" there");
  refuse([](RunRequest& r) { r.cache.num_layers = 4; }, "\"cache.num_layers\" is 3 there and 4 now");
  refuse([](RunRequest& r) { r.arms.push_back(ArmId::kJD); }, "\"arms\" is [\"N\",\"N2\",\"AD\",\"SD\"] there and");
  refuse([](RunRequest& r) { r.cases[3].expected = "12345"; }, "\"cases_sha256\" is");
}

TEST_F(RunFolderTest, BadRequestsAreRefusedBeforeAnythingIsWritten) {
  const auto refuse = [&](const std::function<void(RunRequest&)>& change, ErrorCode code, std::string_view words) {
    RunRequest request = make_request(temp_.path() / "new");
    change(request);
    FakeRunner runner;
    expect_error([&] { run_panels(request, runner); }, code, words);
    EXPECT_FALSE(fs::exists(temp_.path() / "new"));
  };
  refuse([](RunRequest& r) { r.arms = {ArmId::kAD}; }, ErrorCode::kUsage, "first arm of a run must be N");
  refuse([](RunRequest& r) { r.arms.push_back(ArmId::kAD); }, ErrorCode::kUsage, "name an arm twice");
  refuse(
      [](RunRequest& r) {
        r.cases.pop_back();
        std::swap(r.cases[0], r.cases[20]);
      },
      ErrorCode::kBadInput, "");
  refuse([](RunRequest& r) { r.cases.resize(14); }, ErrorCode::kBadInput, "no case belongs to panel math");
  refuse([](RunRequest& r) { r.cases.push_back(r.cases[0]); }, ErrorCode::kBadInput, "is not in the protocol's order");
}

class BrokenRunner : public FakeRunner {
 public:
  explicit BrokenRunner(std::function<void(std::vector<RawOutcome>&)> spoil) : spoil_(std::move(spoil)) {}
  std::vector<RawOutcome> run_unit(const Unit& unit) override {
    auto raws = FakeRunner::run_unit(unit);
    if (unit.index == 2) spoil_(raws);
    return raws;
  }

 private:
  std::function<void(std::vector<RawOutcome>&)> spoil_;
};

TEST_F(RunFolderTest, ABrokenRunnerIsCaughtAndTheRunStaysResumable) {
  const auto refuse = [&](std::function<void(std::vector<RawOutcome>&)> spoil, std::string_view words,
                          ErrorCode code = ErrorCode::kInternal) {
    const fs::path path = temp_.path() / "broken";
    fs::remove_all(path);
    BrokenRunner runner(std::move(spoil));
    expect_error([&] { run_panels(make_request(path), runner); }, code, words);
    EXPECT_EQ(num_lines(path / "progress.jsonl"), 2);
    finish(path, reference_);
  };
  refuse([](auto& raws) { raws.pop_back(); }, "did not answer case");
  refuse([](auto& raws) { raws.push_back(raws[0]); }, "answered case 0 twice");
  refuse([](auto& raws) { raws[1].arm = ArmId::kJD; }, "arm JD was not asked");
  refuse([](auto& raws) { raws[1].case_idx = 99; }, "case 99 of 4");
  refuse([](auto&) { throw_error(ErrorCode::kResourceExhausted, "no memory"); }, "no memory",
         ErrorCode::kResourceExhausted);
}

TEST_F(RunFolderTest, ASecondWriterIsRefused) {
  class Nested : public FakeRunner {
   public:
    explicit Nested(fs::path folder) : folder_(std::move(folder)) {}
    std::vector<RawOutcome> run_unit(const Unit& unit) override {
      RunRequest request = make_request(folder_);
      request.resume = true;
      FakeRunner other;
      expect_error([&] { run_panels(request, other); }, ErrorCode::kUsage, "another process is writing the run");
      return FakeRunner::run_unit(unit);
    }

   private:
    fs::path folder_;
  };
  Nested runner(temp_.path() / "twice");
  run_panels(make_request(temp_.path() / "twice"), runner);
  EXPECT_EQ(snapshot(temp_.path() / "twice"), reference_);
}

// The commit whose line begins at a byte of the journal.
Json commit_at(const std::string& progress, size_t begin) {
  return parse_json(progress.substr(begin, progress.find('\n', begin) - begin), "commit");
}

// A kill inside a write leaves any prefix of it. Cut the journal and every outcome file at many places by hand.
TEST_F(RunFolderTest, TornWritesAreRepairedAndReported) {
  std::mt19937 random(7);
  const std::string progress = reference_.at("progress.jsonl");
  for (int trial = 0; trial < 24; ++trial) {
    auto files = reference_;
    const size_t keep = trial == 0 ? 0 : random() % (progress.size() + 1);
    files["progress.jsonl"] = progress.substr(0, keep);
    const size_t last_newline = files["progress.jsonl"].rfind('\n');
    const size_t whole = last_newline == std::string::npos ? 0 : last_newline + 1;
    const Json commit =
        whole == 0
            ? Json()
            : parse_json(progress.substr(0, whole).substr(progress.substr(0, whole - 1).rfind('\n') + 1), "commit");
    for (auto& [name, bytes] : files) {
      if (!name.starts_with("outcomes/")) continue;
      const std::string arm = name.substr(9, name.size() - 9 - 6);
      const auto committed = commit.is_null() ? size_t{0} : commit["end_bytes"][arm].get<size_t>();
      // A kill leaves at most the running unit's lines; the next journal line says where they end.
      const size_t next_end =
          whole < progress.size() ? commit_at(progress, whole)["end_bytes"][arm].get<size_t>() : committed;
      bytes.resize(committed + random() % (next_end - committed + 1));
    }
    restore(folder(), files);
    const bool torn = whole != keep;
    SCOPED_TRACE(fmt::format("trial {} keeps {} bytes", trial, keep));
    const RunSummary summary = finish(folder(), reference_);
    const auto reports = std::ranges::count_if(
        summary.repairs, [](const std::string& text) { return text.find("torn last line") != std::string::npos; });
    EXPECT_EQ(reports, torn ? 1 : 0);
  }
}

TEST_F(RunFolderTest, AKillDuringTheStartIsFinished) {
  for (const std::vector<std::string>& kept :
       {std::vector<std::string>{}, {"protocol.json"}, {"protocol.json", "run.json"}}) {
    std::map<std::string, std::string> files;
    for (const std::string& name : kept) files[name] = reference_.at(name);
    files["cases.jsonl.tmp4711"] = "half";
    restore(folder(), files);
    fs::remove(folder() / "outcomes");  // made after the last of these files
    const RunSummary summary = finish(folder(), reference_);
    EXPECT_THAT(summary.repairs, testing::Contains(testing::HasSubstr("left half-written: removed")));
  }
  fs::remove_all(folder());
  EXPECT_THAT(finish(folder(), reference_).repairs, testing::ElementsAre(testing::HasSubstr("nothing to resume")));
}

TEST_F(RunFolderTest, LostOrChangedOutcomesAreRefused) {
  RunRequest request = make_request(folder());
  request.resume = true;
  const auto refuse = [&](const std::string& name, const std::string& bytes, std::string_view words) {
    auto files = reference_;
    files[name] = bytes;
    restore(folder(), files);
    FakeRunner runner;
    SCOPED_TRACE(name + ": " + std::string(words));
    expect_error([&] { run_panels(request, runner); }, ErrorCode::kBadInput, words);
    expect_error([&] { read_run(folder()); }, ErrorCode::kBadInput, "");
  };
  const std::string& outcomes = reference_.at("outcomes/SD.jsonl");
  refuse("outcomes/SD.jsonl", outcomes.substr(0, outcomes.size() - 1), "finished outcomes were lost");
  std::string changed = outcomes;
  changed[changed.find("\"correct\":true") + 11] = 'T';
  refuse("outcomes/SD.jsonl", changed, "were changed after they were written");
  std::string progress = reference_.at("progress.jsonl");
  refuse("progress.jsonl", progress.substr(progress.find('\n') + 1), "progress.jsonl:1: unit 1 of");
  refuse("progress.jsonl", "{}\n" + progress, "progress.jsonl:1: field \"unit\" is missing");
  refuse("progress.jsonl", progress + progress.substr(0, progress.find('\n') + 1), "the run has only 11 units");
  refuse("progress.jsonl", "", "lines of it were lost");
  refuse("progress.jsonl", progress.substr(0, progress.find('\n') + 1), "names 1 finished units, but");
  refuse("run.json", "{}", "\"arms\" is null there and");
  refuse("cases.jsonl", reference_.at("cases.jsonl").substr(100), "cases.jsonl:1 differs from the case");
}

// Answers with no journal at all: not a torn run, but one whose journal was lost.
TEST_F(RunFolderTest, AMissingJournalIsRefusedAndNothingIsCut) {
  auto files = reference_;
  files.erase("progress.jsonl");
  restore(folder(), files);
  RunRequest request = make_request(folder());
  request.resume = true;
  FakeRunner runner;
  expect_error([&] { run_panels(request, runner); }, ErrorCode::kBadInput, "names 0 finished units, but");
  EXPECT_EQ(snapshot(folder()), files);
}

TEST_F(RunFolderTest, TheFolderIsTakenBeforeTheRunAndGivenBackEmpty) {
  const fs::path other = temp_.path() / "other";
  {
    const FolderLock lock(other, false);
    EXPECT_TRUE(fs::is_directory(other));
    expect_error([&] { FolderLock(other, false); }, ErrorCode::kUsage, "another process is writing");
  }
  EXPECT_FALSE(fs::exists(other));
  { const FolderLock lock(temp_.path() / "outer" / "inner", false); }
  EXPECT_FALSE(fs::exists(temp_.path() / "outer")) << "a folder that it made on the way";
  expect_error([&] { FolderLock(folder(), false); }, ErrorCode::kUsage, "is not empty: resume the run");
  temp_.write("file", "x");
  expect_error([&] { FolderLock(temp_.path() / "file", true); }, ErrorCode::kUsage, "is not a folder");
  expect_error([&] { FolderLock(temp_.path(), true); }, ErrorCode::kUsage, "holds no run to resume");
  RunRequest request = make_request(other);
  request.lock = std::make_shared<FolderLock>(other, false);
  FakeRunner runner;
  run_panels(request, runner);
  EXPECT_EQ(snapshot(other), reference_);
}

TEST_F(RunFolderTest, TheRunnerHearsWhatWasFoundBeforeTheFirstUnit) {
  class Listener : public FakeRunner {
   public:
    void begin(const RunSummary& opened) override { resumed = opened.units_resumed - 100 * std::ssize(units); }
    int64_t resumed = -1;
  };
  Listener runner;
  RunRequest request = make_request(folder());
  request.resume = true;
  run_panels(request, runner);
  EXPECT_EQ(runner.resumed, kUnits);
}

TEST_F(RunFolderTest, AnUnfinishedRunIsNotRead) {
  auto files = reference_;
  std::string& progress = files["progress.jsonl"];
  progress.resize(progress.rfind('\n', progress.size() - 2) + 1);
  restore(folder(), files);
  expect_error([&] { read_run(folder()); }, ErrorCode::kBadInput, "has finished 10 of 11 units: resume the run");
  files = reference_;
  files["outcomes/N.jsonl"] += "{\"torn";
  restore(folder(), files);
  expect_error([&] { read_run(folder()); }, ErrorCode::kBadInput, "N.jsonl:32: the last line has no newline");
}

// Ctrl-C in the middle of the fourth unit: a runner that looks at the flag drops the unit, another finishes it. In a
// child, since the flag stays set.
TEST_F(RunFolderTest, AnInterruptLeavesWholeUnits) {
  class Interrupted : public FakeRunner {
   public:
    explicit Interrupted(bool looks) : looks_(looks) {}
    std::vector<RawOutcome> run_unit(const Unit& unit) override {
      if (unit.index == 3) ::raise(SIGINT);
      if (looks_) throw_if_interrupted();
      return FakeRunner::run_unit(unit);
    }

   private:
    bool looks_;
  };
  for (const bool looks : {false, true}) {
    fs::remove_all(folder());
    const pid_t child = ::fork();
    if (child == 0) {
      install_interrupt_handler();
      Interrupted runner(looks);
      try {
        run_panels(make_request(folder()), runner);
      } catch (const Error& e) {
        const bool says_how = std::string_view(e.what()).ends_with("run the same command with --resume");
        ::_exit(says_how ? exit_code(e.code()) : 1);
      }
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), exit_code(ErrorCode::kInterrupted));
    EXPECT_EQ(num_lines(folder() / "progress.jsonl"), looks ? 3 : 4);
    finish(folder(), reference_);
  }
}

// Starts or resumes the run in a child process, which asks the fake slowly.
pid_t run_in_child(const fs::path& folder) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    RunRequest request = make_request(folder);
    request.resume = true;
    FakeRunner runner(std::chrono::milliseconds(3));
    run_panels(request, runner);
  } catch (...) {
    ::_exit(3);
  }
  ::_exit(0);
}

TEST_F(RunFolderTest, SurvivesKillNineAtTwentyRandomMoments) {
  fs::remove_all(folder());
  const auto begin = std::chrono::steady_clock::now();
  int status = 0;
  ASSERT_EQ(::waitpid(run_in_child(folder()), &status, 0) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0, true);
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(snapshot(folder()), reference_);

  std::mt19937 random(11);
  int kills = 0;
  std::map<int64_t, int> units_at_kill;
  for (int trial = 0; kills < 20 && trial < 200; ++trial) {
    fs::remove_all(folder());
    // Twice in a row: a resumed run may be killed as well.
    for (int round = 0; round < 2; ++round) {
      const pid_t child = run_in_child(folder());
      std::this_thread::sleep_for(whole * (static_cast<double>(random() % 1000) / 1000.0));
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << "the child failed with " << WEXITSTATUS(status);
      if (!WIFSIGNALED(status)) break;
      ++kills;
      ++units_at_kill[num_lines(folder() / "progress.jsonl")];
    }
    finish(folder(), reference_);
  }
  EXPECT_GE(kills, 20);
  EXPECT_GT(units_at_kill.size(), 2U) << "the kills all fell on the same place";
}

}  // namespace
}  // namespace asymkv
