#pragma once

#include <vector>

#include "asymkv/kernels/cuda/device_tables.h"
#include "asymkv/kernels/cuda/write_kernel.h"
#include "asymkv/ops/attention.h"

namespace asymkv::cuda {

// write_kv with params in device memory. Counters are kept on the device until finish().
class DeviceWrite {
 public:
  explicit DeviceWrite(DeviceTables& tables);
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
  const Plan& plan(std::span<const int64_t> slots, int64_t num_slots);
  WriteParams common_params(const WriteKvParams& params, const Rows& rows, const Plan& plan);
  void store(const WriteKvParams& params, const WriteTarget& target, const Rows& rows, void* fresh_k);
  void fresh_keys(const WriteKvParams& params, const Rows& rows, void* fresh_k);
  WriteCounters* next_counters(const WriteKvParams& params, const WriteTarget& target, int64_t num_written);

  DeviceTables& tables_;
  ContentCache<Plan> plans_{64};
  DeviceBuffer counters_;  // one WriteCounters a pending launch
  std::vector<Pending> pending_;
};

}  // namespace asymkv::cuda
