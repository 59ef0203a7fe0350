#pragma once

#include <cstdint>

#include "asymkv/device/device.h"
#include "asymkv/kernels/cuda/decode_plan.h"
#include "asymkv/kernels/cuda/instance_table.h"

namespace asymkv::cuda {

// Opaque cudaStream_t, so that callers above need no CUDA header.
using StreamHandle = void*;

// A plan in device memory with the scratch its launches need. Immutable after construction but for the contents of the
// scratch, so that launches may be captured in a graph; launches that share one must run one after the other.
class DevicePlan {
 public:
  // page_table: the ids the plan was made from.
  DevicePlan(const DecodePlan& plan, std::span<const int32_t> page_table);

  const DecodePlan& host() const { return plan_; }
  // Fills the plan's part of a launch's parameters.
  void fill(DecodeParams& params) const;

 private:
  DecodePlan plan_;
  DeviceBuffer page_table_, segments_, records_, partial_out_, partial_state_, arrivals_;
};

// What changes from layer to layer. Device pointers; see DecodeParams.
struct DecodeArguments {
  const std::byte* blocks = nullptr;
  const std::byte* scales = nullptr;
  const float* fixed_scales = nullptr;
  const void* q = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  const BiasPair* bias = nullptr;
  const BiasFrequency* bias_freq = nullptr;
  bool q_is_bf16 = true;
  float softmax_scale = 0.0F;
};

// Limits of the current device for the planner, with `config` loaded at the shared memory of one CTA an SM.
DeviceLimits query_limits(const DecodeConfig& config);

// Enqueues one launch; asynchronous and capturable. Throws Error{kUnsupported} if this build lacks the instance,
// Error{kUsage} if an argument that the format needs is missing or queries and keys have different 16-bit types.
void launch_decode(const DevicePlan& plan, const DecodeArguments& arguments, StreamHandle stream);

}  // namespace asymkv::cuda
