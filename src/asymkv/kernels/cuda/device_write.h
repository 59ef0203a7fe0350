#pragma once

#include <map>
#include <utility>
#include <vector>

#include "asymkv/kernels/cuda/device_tables.h"
#include "asymkv/kernels/cuda/write_kernel.h"
#include "asymkv/ops/attention.h"

namespace asymkv::cuda {

// write_kv with params in device memory. Counters are kept on the device until finish(). Slots are planned once for all
// layers of a pass.
class DeviceWrite {
 public:
  explicit DeviceWrite(DeviceTables& tables);
  // Whether this pass was planned: of params only what differs between layers is to be checked.
  bool knows(const WriteKvParams& params) { return find(params) != nullptr; }
  // See AttentionBackend.
  void keep_pass(uint64_t pass) { kept_[pass].number = pass; }
  void forget_pass(uint64_t pass) { kept_.erase(pass); }
  bool replan(const WriteKvParams& params);
  void replayed(const WriteKvParams& params);
  // Params were checked.
  void run(const WriteKvParams& params);
  void finish();

 private:
  struct Plan {
    std::shared_ptr<void> runs;
    int64_t num_runs = 0;
    int64_t num_whole = 0;
    int64_t num_written = 0;
  };
  struct Rows;
  struct Pending {
    SideCounters* k = nullptr;
    SideCounters* v = nullptr;
    int64_t k_elems = 0;
    int64_t v_elems = 0;
  };
  static std::vector<WriteRun> list_runs(std::span<const int64_t> slots, int64_t num_slots, int64_t room, Plan& plan);
  static Plan make_plan(std::span<const int64_t> slots, int64_t num_slots, int64_t room);
  static Pending pending_of(const WriteKvParams& params, size_t target_idx, const Plan& plan);
  // What the calls of a pass have in common.
  struct Pass {
    uint64_t number = 0;
    int64_t num_tokens = 0;
    std::vector<const int64_t*> slots;  // of each target: what later calls are held against
    std::vector<Plan> targets;
    Plan every_token;  // to slots of its own index; empty until it is needed
    std::shared_ptr<void> own_positions;
    bool kept = false;
    std::vector<std::pair<Pending, size_t>> recorded;  // counters of recorded launches, and their targets
  };
  Pass* find(const WriteKvParams& params);
  Pass& pass_of(const WriteKvParams& params);
  WriteParams common_params(const WriteKvParams& params, const Pass& pass, const Rows& rows, const Plan& plan);
  void store(const WriteKvParams& params, Pass& pass, size_t target_idx, const Rows& rows, void* fresh_k);
  void fresh_keys(const WriteKvParams& params, Pass& pass, const Rows& rows, void* fresh_k);
  WriteCounters* next_counters(const Pending& pending);
  WriteCounters* recorded_counters(const Pass& pass) const;

  DeviceTables& tables_;
  Pass last_;                      // of no kept pass
  std::map<uint64_t, Pass> kept_;  // by number
  DeviceBuffer counters_;          // one WriteCounters a pending launch
  std::vector<Pending> pending_;
};

}  // namespace asymkv::cuda
