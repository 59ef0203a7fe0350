#pragma once

#include <list>
#include <map>
#include <memory>
#include <vector>

#include "asymkv/kernels/cuda/decode_launch.h"
#include "asymkv/kernels/cuda/device_tables.h"
#include "asymkv/kernels/cuda/prefill_launch.h"
#include "asymkv/kernels/cuda/row_kernels.h"
#include "asymkv/ops/attention.h"

namespace asymkv::cuda {

// attend with params in device memory: one launch of the decode kernel for each cache of the batch, one for the fresh
// rows of all sequences (packed into pages of their own), joined in FP32. Sequences of many fresh rows take cuDNN's
// attention instead, one after the other, where the build has it and serves the call. BF16 rows are read and written
// where they lie if each row has one part; parts are joined in FP32.
class DeviceAttend {
 public:
  explicit DeviceAttend(DeviceTables& tables) : tables_(tables) {}
  // Params were checked.
  void run(const AttendParams& params);

 private:
  struct Launch;
  // What attend was asked for, and where rows' states are gathered.
  struct Call {
    const AttendParams& params;
    bool narrow = false;   // BF16 rows
    bool single = false;   // each row's state has one part
    bool direct = false;   // which needs no joining: it is written where it belongs
    float* out = nullptr;  // FP32 rows; null where direct
    float* lse = nullptr;
    std::shared_ptr<void> own_out = nullptr, own_lse = nullptr;
  };
  // A plan and what it was made from: found again by comparing.
  struct KnownPlan {
    uint32_t config = 0;
    BiasShape bias;
    DecodeBatch batch;
    std::vector<int32_t> table;
    std::unique_ptr<DevicePlan> plan;
  };
  static Call make_call(const AttendParams& params, int64_t num_rows);
  static JoinParams join_params(const Call& call, const int32_t* rows, int64_t num_rows);
  Launch make_launch(const AttendParams& params, const KvGeometry& geometry, const KvFormat& format) const;
  void attend_stored(const Call& call, const std::vector<size_t>& sequences);
  void attend_fresh(const Call& call);
  void attend_prompt(const Call& call, const AttendSequence& sequence);
  const DevicePrefill& prefill(const AttendParams& params, int64_t num_tokens);
  void run(const Call& call, Launch& launch);
  void launch_attention(const Call& call, const Launch& launch, const DevicePlan& on_device, DecodeArguments arguments);
  const DevicePlan& plan(const Launch& launch, const DecodeConfig& config, const DeviceKeyBias* bias);
  const DeviceKeyBias& key_bias(const KeyTransform& transform, const RopeTable& rope);

  DeviceTables& tables_;
  std::list<KnownPlan> plans_;  // the last one used first
  ContentCache<std::unique_ptr<DeviceKeyBias>> biases_{512};
  std::map<uint32_t, DeviceLimits> limits_;  // by DecodeConfig::code()
  std::unique_ptr<Sdpa> sdpa_;               // made when it is first needed
  ContentCache<std::unique_ptr<DevicePrefill>> prefills_{64};
};

}  // namespace asymkv::cuda
