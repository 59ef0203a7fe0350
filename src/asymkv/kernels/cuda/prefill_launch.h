#pragma once

#include <vector>

#include "asymkv/kernels/cuda/prefill_kernels.h"
#include "asymkv/kernels/cuda/sdpa.h"

namespace asymkv::cuda {

// What changes from layer to layer. Device pointers; rows are the new tokens of all requests in order.
struct PrefillArguments {
  const std::byte* blocks = nullptr;  // of the layer's cache, tiled-1; not read if nothing is staged
  const std::byte* scales = nullptr;
  const float* fixed_scales = nullptr;
  const float* removed = nullptr;  // of pre-bias keys, with the RoPE tables
  const float* cosines = nullptr;
  const float* sines = nullptr;
  const void* q = nullptr;        // [row][q head][head_dim], 16 bits, after RoPE
  const void* fresh_k = nullptr;  // [row][kv head][head_dim], as the writer leaves them
  const void* fresh_v = nullptr;
  void* out = nullptr;   // as q; rows of requests that go to the decode kernel stay as they are
  float* lse = nullptr;  // [row][q head]; may be null
  bool bf16 = true;      // type of q, fresh_k, fresh_v and out
  float softmax_scale = 0.0F;
};

// A plan's fresh and staged parts in device memory, with the staging buffer and the scratch of its launches. One plan
// serves all layers of a step, one after the other.
class DevicePrefill {
 public:
  // config: of the cache. Throws Error{kUsage} if a step has more than 2^31 elements of q.
  DevicePrefill(const DecodeConfig& config, const PrefillBatch& batch, const PrefillPlan& plan);

  // The type of staged rows. Two 8-bit sides are widened to FP16 even if the model is BF16, and meet queries turned to
  // FP16, as in the decode kernel: rounding codes times scales to BF16 would cost more than the whole error allowed.
  // Staged values above 65,504 do not fit.
  bool stages_bf16(bool model_is_bf16) const {
    return model_is_bf16 && !(config_.k_bytes() == 1 && config_.v_bytes() == 1);
  }

  // Enqueues attention of the fresh requests: SDPA over the new tokens, then for each round widening, SDPA over the
  // staged tokens and the merge. Throws what Sdpa::run and launch_widen throw.
  void run(Sdpa& sdpa, const PrefillArguments& arguments, StreamHandle stream) const;

 private:
  // One SDPA call: `ints` holds offsets of q and of keys, lengths of q and of keys.
  struct Call {
    DeviceBuffer ints, pieces, pages;
    int32_t num_pieces = 0;
    int32_t num_pages = 0;
    int32_t max_q = 0;
    int32_t max_kv = 0;
    bool causal = false;
  };
  struct Row;
  Call make_call(const std::vector<Row>& rows, bool causal);
  void attend(Sdpa& sdpa, const Call& call, const PrefillArguments& arguments, bool staged, StreamHandle stream) const;
  MergeParams merge_params(const Call& call, const PrefillArguments& arguments) const;

  DecodeConfig config_;
  int32_t num_q_heads_;
  int32_t num_kv_heads_;
  int64_t q_elems_ = 0;
  Call fresh_;
  std::vector<Call> rounds_;
  int64_t stats_elems_ = 0;
  DeviceBuffer staged_k_, staged_v_, staged_q_, part_, total_, stats_, lse_;
};

}  // namespace asymkv::cuda
