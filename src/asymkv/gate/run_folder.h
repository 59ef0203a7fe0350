#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/gate/arm.h"
#include "asymkv/gate/case.h"
#include "asymkv/gate/outcome.h"
#include "asymkv/gate/policy_mode.h"
#include "asymkv/gate/protocol.h"
#include "asymkv/gate/runner.h"
#include "asymkv/kv/layout.h"

namespace asymkv {

// Before the name of the kernels that arm NR ran on, at the end of RunIdentity::worker.
inline constexpr std::string_view kControlMark = "; NR: ";

// Who answered: what a resumed run has to match, name by name. Hashes are lower-case SHA-256.
struct RunIdentity {
  std::string model;          // id or folder name, for people
  std::string model_sha256;   // weights
  std::string config_sha256;  // model configuration
  std::string tokenizer_sha256;
  std::string build;          // build hash of the program
  std::string worker;         // "cpu-avx512+cpu": attention and model kernels; with an arm NR "...; NR: ref"
  std::string native_dtype;   // "bf16", "f16", "f32"
  std::string scales_sha256;  // of the fixed scales file; empty if no arm needs one
  bool operator==(const RunIdentity&) const = default;
};

// Shape of the model's cache: with a format it gives the bytes of a token.
struct CacheShape {
  int64_t num_layers = 0;
  KvGeometry layer;
  bool operator==(const CacheShape&) const = default;
};

// Keeps other processes out of a run folder. The lock goes with the process, so a killed run leaves none behind. A
// folder that it made, or one above it, is removed if it is still empty at the end.
class FolderLock {
 public:
  // Makes the folder if it is missing. Throws Error{kUsage} for a path that is no folder, for one that is not empty
  // unless `resume`, for one that holds no run with it, and where another process holds the lock;
  // Error{kResourceExhausted} where nothing can be written.
  FolderLock(const std::filesystem::path& folder, bool resume);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::vector<std::filesystem::path> made_;  // folders that were not there, the innermost first
  int fd_ = -1;
};

// One of `count` parts of a run: every count-th unit, beginning at the index-th. Parts run anywhere, in any order, and
// are merged (merge.h) into the folder that one run would have written.
struct Shard {
  int64_t index = 1;  // 1 to count
  int64_t count = 1;
  bool operator==(const Shard&) const = default;
  bool is_whole() const { return count == 1; }
};
std::string shard_name(const Shard& shard);  // "2/7"
// "2/7". Throws Error{kUsage} naming the text.
Shard parse_shard(std::string_view text);

struct RunRequest {
  std::filesystem::path folder;
  Protocol protocol;        // resolved (cases.h)
  std::vector<Case> cases;  // in the order in which they are asked (order_by_looks)
  std::vector<ArmId> arms;  // N first; N2 is added where the protocol asks for a noise floor
  Shard shard;
  RunIdentity identity;
  PolicyMode mode = PolicyMode::kKnee;
  CacheShape cache;
  bool resume = false;
  std::shared_ptr<FolderLock> lock;  // of `folder`, where the caller holds it already; null: held while the run goes on
};

struct RunSummary {
  int64_t units = 0;                 // of the whole run, or of this shard
  int64_t units_resumed = 0;         // found finished
  std::vector<std::string> repairs;  // one sentence for each torn or uncommitted piece that was cut off
};

// A run on disk:
//   protocol.json, cases.jsonl, run.json   written once, before the first case
//   outcomes/ARM.jsonl                     one line a case, in case order; an arm that stopped at a look ends there
//   progress.jsonl                         one line a finished unit; a unit without its line never happened
// Every unit appends its outcomes (fsync), then its progress line (fsync), so that a kill loses at most the unit that
// was running. Nothing in these files depends on time or on the number of restarts: a resumed run ends with the same
// bytes as an uninterrupted one. Outcomes beyond the unit that was running mean that progress.jsonl was lost: refused.
//
// `resume` on an empty or missing folder starts from the first case and says so in `repairs`.
//
// A protocol with looks stops arms between units (looks.h), and the run with the last of them; it cannot be sharded,
// since a look needs every answer before it.
//
// Throws Error{kUsage} for a folder that is not empty unless `resume`, for one that holds other files than a run with
// it, and for one that another process is writing; Error{kBadInput} where a resumed folder's protocol, cases, identity
// or arms differ, naming the field and both values, and where committed outcomes were changed or lost;
// Error{kInterrupted} on Ctrl-C, between units or where the runner throws it; and whatever else the runner throws.
RunSummary run_panels(const RunRequest& request, CaseRunner& runner);

// For a caller with long work to do before: throws what run_panels() will where a folder's protocol, cases, identity or
// arms differ. What is not there yet is not missed.
void require_same_run(const RunRequest& request);

// The plan: cases cut into units, look by look, panel by panel. `cases` stand in that order.
std::vector<Unit> plan_units(const Protocol& protocol, const std::vector<Case>& cases, const std::vector<ArmId>& arms);

// The units of one shard.
std::vector<Unit> plan_shard(std::vector<Unit> units, const Shard& shard);

// A run as it lies on disk, for verdicts, reports and `gate verify`.
struct Run {
  Protocol protocol;
  std::string protocol_sha256;
  RunIdentity identity;
  PolicyMode mode = PolicyMode::kKnee;
  CacheShape cache;
  std::vector<ArmId> arms;  // as run, N2 included
  std::vector<Case> cases;
  // [arm][case], in the order of `arms` and `cases`; shorter for an arm that stopped at an early look.
  std::vector<std::vector<Outcome>> outcomes;
};
// Throws Error{kBadInput} naming file and line for anything malformed, missing, repeated or unfinished, for a shard,
// and for the folder of an earlier version, which lacks the cache shape and the policy mode.
Run read_run(const std::filesystem::path& folder);
// The same without progress.jsonl and without the hashes in run.json, for checks that name what was changed.
Run read_evidence(const std::filesystem::path& folder);

}  // namespace asymkv
