#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "asymkv/kernels/cuda/attend_pass.h"
#include "asymkv/kernels/cuda/device_tables.h"
#include "asymkv/kernels/cuda/prefill_launch.h"
#include "asymkv/kernels/cuda/row_kernels.h"
#include "asymkv/ops/attention.h"

namespace asymkv::cuda {

// attend with params in device memory: one launch of the decode kernel for each cache of the batch, one for the fresh
// rows of all sequences (packed into pages of their own), joined in FP32. Sequences of many fresh rows take cuDNN's
// attention instead, one after the other, where the build has it and serves the call. BF16 rows are read and written
// where they lie if each row has one part; parts are joined in FP32. Batches are planned once for all layers of a pass.
class DeviceAttend {
 public:
  explicit DeviceAttend(DeviceTables& tables) : tables_(tables) {}
  // Whether this pass was planned: of params only what differs between layers is to be checked.
  bool knows(const AttendParams& params) const;
  // See AttentionBackend.
  void keep_pass(uint64_t pass) { kept_[pass]; }
  void forget_pass(uint64_t pass);
  bool replan(const AttendParams& params);
  // Params were checked.
  void run(const AttendParams& params);

 private:
  // What attend was asked for, and where rows' states are gathered.
  struct Call {
    const AttendParams& params;
    const AttendPass& pass;
    bool direct = false;   // needs no joining: results are written where they belong
    float* out = nullptr;  // FP32 rows; null where direct
    float* lse = nullptr;
    std::shared_ptr<void> own_out = nullptr, own_lse = nullptr;
  };
  // Where the launches of a part read queries and leave results: packed, or null where they use the call's own rows.
  struct PartRows {
    std::shared_ptr<void> q = nullptr, out = nullptr, lse = nullptr;
  };
  static AttendPass* find_pass(std::list<AttendPass>& passes, const AttendParams& params);
  AttendPass& pass_of(const AttendParams& params);
  void recycle(std::list<AttendPass>& passes);
  static Call make_call(const AttendParams& params, const AttendPass& pass);
  static JoinParams join_params(const Call& call, const int32_t* rows, int64_t num_rows);
  void run_part(const Call& call, AttendPart& part);
  static PartRows read_queries(const Call& call, const AttendPart& part);
  void run_group(const Call& call, AttendGroup& group, bool bf16, const PartRows& rows);
  std::shared_ptr<void> pack_fresh(const Call& call, const AttendGroup& group);
  void attend_prompt(const Call& call, const AttendSequence& sequence);
  const DevicePrefill& prefill(const AttendParams& params, int64_t num_tokens);
  const DevicePlan& plan(AttendGroup& group, const DeviceKeyBias* bias, bool kept);
  const DeviceLimits& limits_of(const DecodeConfig& config);
  DecodePlan plan_group(const AttendGroup& group, const BiasShape& shape);
  const DeviceKeyBias& key_bias(const KeyTransform& transform, const RopeTable& rope);

  DeviceTables& tables_;
  std::list<AttendPass> passes_;                    // of one number, by window
  std::map<uint64_t, std::list<AttendPass>> kept_;  // by number
  std::vector<std::unique_ptr<DevicePlan>> spare_plans_;
  ContentCache<std::shared_ptr<const DeviceKeyBias>> biases_{512};
  std::mutex limits_mutex_;
  std::map<uint32_t, DeviceLimits> limits_;  // by DecodeConfig::code()
  std::unique_ptr<Sdpa> sdpa_;               // made when it is first needed
  ContentCache<std::unique_ptr<DevicePrefill>> prefills_{64};
};

}  // namespace asymkv::cuda
