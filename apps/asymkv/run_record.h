#pragma once

#include <chrono>
#include <map>
#include <string>

#include "asymkv/engine/loaded_model.h"
#include "asymkv/gate/run_folder.h"
#include "asymkv/kv/cache.h"
#include "asymkv/record/record.h"
#include "asymkv/runtime/launch_log.h"

namespace asymkv::app {

// "cpu-avx2+cpu-avx2-a32": attention and model kernels, as policy.json names the worker.
std::string worker_name(const Backends& backends);

// When a command began, for records and tokens per second.
class RunClock {
 public:
  RunClock() : wall_(std::chrono::system_clock::now()), steady_(std::chrono::steady_clock::now()) {}
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - steady_).count(); }
  std::chrono::system_clock::time_point start() const { return wall_; }

 private:
  std::chrono::system_clock::time_point wall_;
  std::chrono::steady_clock::time_point steady_;
};

// Tokens per second; 0 where no time passed.
double token_rate(int64_t tokens, double seconds);

// What the user asked for, as typed; "unset" where an option was left alone.
struct RequestedKv {
  std::string kv;
  std::string scale;
};

// Identity of this program: version, compiler and the SHA-256 of its own executable.
std::string build_id();
// Kept for records: the process's argument vector, fingerprinted without secrets.
void remember_argv(int argc, char** argv);
std::string argv_sha256();

// The provenance record of one cache that served a command (record/record.h).
Json make_run_record(const LoadedModel& model, const KvCache& cache, const RequestedKv& requested,
                     const RunClock& clock);

// That of a command that read keys and values before any cache stored them (probe, calibrate): nobody asked for a
// format and nothing was allocated, so both sides are unknown.
Json make_model_record(const LoadedModel& model, const RunClock& clock);

// How often each kernel has run in this process.
using LaunchCounts = std::map<Launch, int64_t>;
LaunchCounts launches_so_far(const LoadedModel& model);

// Where a record's work began: its start, and what had run before it.
struct RecordStart {
  const RunClock& clock;
  const LaunchCounts& before;
};
// The record of each arm of an admission run since `start`.
std::map<ArmId, Record> make_arm_records(const LoadedModel& model, const std::map<ArmId, KvCache*>& caches,
                                         const RunRequest& run, const RecordStart& start);

}  // namespace asymkv::app
