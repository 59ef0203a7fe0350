#pragma once

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
  bool knows(const WriteKvParams& params) const;
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
    SideCounters* k;
    SideCounters* v;
    int64_t k_elems;
    int64_t v_elems;
  };
  // What the calls of a pass have in common.
  struct Pass {
    uint64_t number = 0;
    int64_t num_tokens = 0;
    std::vector<const int64_t*> slots;  // of each target: what later calls are held against
    std::vector<Plan> targets;
    std::shared_ptr<void> positions;
  };
  void plan_pass(const WriteKvParams& params);
  static Plan plan(std::span<const int64_t> slots, int64_t num_slots);
  WriteParams common_params(const WriteKvParams& params, const Rows& rows, const Plan& plan);
  void store(const WriteKvParams& params, size_t target_idx, const Rows& rows, void* fresh_k);
  void fresh_keys(const WriteKvParams& params, const Rows& rows, void* fresh_k);
  WriteCounters* next_counters(const WriteKvParams& params, const WriteTarget& target, int64_t num_written);

  DeviceTables& tables_;
  Pass pass_;
  DeviceBuffer counters_;  // one WriteCounters a pending launch
  std::vector<Pending> pending_;
};

}  // namespace asymkv::cuda
