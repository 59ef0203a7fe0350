#pragma once

#include <cstdint>

#include "asymkv/device/device.h"
#include "asymkv/kernels/cuda/decode_plan.h"
#include "asymkv/kernels/cuda/instance_table.h"
#include "asymkv/kernels/cuda/key_bias.h"

namespace asymkv::cuda {

// Opaque cudaStream_t, so that callers above need no CUDA header.
using StreamHandle = void*;

// A plan in device memory with the scratch its launches need. Its addresses stay until it is reset, so that launches
// may be captured in a graph; launches that share one must run one after the other. The plan of a range has room for
// any batch of it: update() puts another batch under launches captured before, replace() one that happens to fit.
class DevicePlan {
 public:
  DevicePlan() = default;  // until it is reset
  // page_table: the ids the plan was made from.
  DevicePlan(const DecodePlan& plan, std::span<const int32_t> page_table);
  // Room for every batch of `range`; `plan` is plan_range() of it.
  DevicePlan(const DecodePlan& plan, const PlanRange& range, const DeviceLimits& device);

  const DecodePlan& host() const { return plan_; }
  // Becomes the plan of another batch, as the first constructor makes it, in the same memory where it has the room:
  // launches enqueued on the default stream after it see that plan.
  // spare: times the segments and page ids that there is room for beside those, so that replace() takes later batches.
  void reset(const DecodePlan& plan, std::span<const int32_t> page_table, int64_t spare = 0);
  // The same for a plan that launches captured before can follow: one of the same launch, which has the room. False,
  // and nothing is changed, for others.
  bool replace(DecodePlan&& plan, std::span<const int32_t> page_table);
  // Enqueues the copy of a batch planned by plan_in_range(); launches enqueued or replayed after it on `stream` see the
  // batch. Throws Error{kUsage} for a plan of another shape or one that needs more room.
  void update(const DecodePlan& plan, std::span<const int32_t> page_table, StreamHandle stream);
  // Fills the plan's part of a launch's parameters.
  void fill(DecodeParams& params) const;

 private:
  struct Room {
    int64_t segments = 0;
    int64_t page_ids = 0;
  };
  void allocate(const Room& room);
  bool has_launch_of(const DecodePlan& plan) const;
  bool has_room(const DecodePlan& plan, std::span<const int32_t> page_table) const;
  void upload(const DecodePlan& plan, std::span<const int32_t> page_table, StreamHandle stream);

  DecodePlan plan_;
  Room room_;
  DeviceBuffer contents_;           // records, segments, page table
  std::vector<std::byte> staging_;  // the same on the host
  DeviceBuffer partial_out_, partial_state_, arrivals_;
};

// A layer's removed vector in device memory.
class DeviceKeyBias {
 public:
  explicit DeviceKeyBias(const KeyBias& bias);
  const BiasShape& shape() const { return shape_; }
  void fill(DecodeParams& params) const;

 private:
  BiasShape shape_;
  DeviceBuffer slow_pairs_, slow_freqs_, fast_pairs_, fast_freqs_, table_;
};

// What changes from layer to layer. Device pointers; see DecodeParams.
struct DecodeArguments {
  const std::byte* blocks = nullptr;
  const std::byte* scales = nullptr;
  const float* fixed_scales = nullptr;
  const void* q = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  const DeviceKeyBias* bias = nullptr;  // of pre-bias keys; its shape is the plan's
  bool q_is_bf16 = true;
  float softmax_scale = 0.0F;
  float logit_soft_cap = 0.0F;   // cap * tanh(logit / cap); 0: none
  const float* sinks = nullptr;  // [q head]; may be null
  // Programmatic dependent launch: this launch may start while the kernel before it in the stream still runs, and read
  // pages before the one of its first query; with more query tokens than a tile has columns, before that of each tile's
  // first. Allowed if the kernel before writes none of these.
  bool overlap_previous = false;
};

// Limits of the current device for the planner, with `config` loaded at the shared memory of one CTA an SM.
DeviceLimits query_limits(const DecodeConfig& config);

// Enqueues one launch; asynchronous and capturable. Throws Error{kUnsupported} if this build lacks the instance,
// Error{kUsage} if an argument that the format needs is missing or queries and keys have different 16-bit types.
void launch_decode(const DevicePlan& plan, const DecodeArguments& arguments, StreamHandle stream);

}  // namespace asymkv::cuda
