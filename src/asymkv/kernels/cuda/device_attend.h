#pragma once

#include <list>
#include <map>
#include <memory>
#include <vector>

#include "asymkv/kernels/cuda/decode_launch.h"
#include "asymkv/kernels/cuda/device_tables.h"
#include "asymkv/kernels/cuda/prefill_launch.h"
#include "asymkv/ops/attention.h"

namespace asymkv::cuda {

// attend with params in device memory: one launch of the decode kernel for each cache of the batch, one for the fresh
// rows of all sequences (packed into pages of their own), joined in FP32. Sequences of many fresh rows take cuDNN's
// attention instead, one after the other, where the build has it and serves the call.
class DeviceAttend {
 public:
  explicit DeviceAttend(DeviceTables& tables) : tables_(tables) {}
  // Params were checked.
  void run(const AttendParams& params);

 private:
  struct Launch;
  // A plan and what it was made from: found again by comparing.
  struct KnownPlan {
    uint32_t config = 0;
    BiasShape bias;
    DecodeBatch batch;
    std::vector<int32_t> table;
    std::unique_ptr<DevicePlan> plan;
  };
  Launch make_launch(const AttendParams& params, const KvGeometry& geometry, const KvFormat& format) const;
  void attend_stored(const AttendParams& params, const std::vector<size_t>& sequences, float* lse);
  void attend_fresh(const AttendParams& params, float* lse);
  void attend_prompt(const AttendParams& params, const AttendSequence& sequence, float* lse);
  const DevicePrefill& prefill(const AttendParams& params, int64_t num_tokens);
  void run(const AttendParams& params, Launch& launch, float* lse);
  const DevicePlan& plan(const Launch& launch, const DecodeConfig& config, const DeviceKeyBias* bias);
  const DeviceKeyBias& key_bias(const KeyTransform& transform, const RopeTable& rope);

  DeviceTables& tables_;
  std::list<KnownPlan> plans_;  // the last one used first
  ContentCache<std::unique_ptr<DeviceKeyBias>> biases_{512};
  std::map<uint32_t, DeviceLimits> limits_;  // by DecodeConfig::code()
  std::unique_ptr<Sdpa> sdpa_;               // made when it is first needed
  ContentCache<std::unique_ptr<DevicePrefill>> prefills_{64};
  bool single_parts_ = false;  // of the call: each row's state has one part
};

}  // namespace asymkv::cuda
