#pragma once

#include <cstdint>

#include "asymkv/device/device.h"
#include "asymkv/kernels/cuda/decode_launch.h"
#include "asymkv/kernels/cuda/write_plan.h"

namespace asymkv::cuda {

// What a writer saw, per side; added to by launches. The number of elements is known from the plan.
struct WriteCounters {
  unsigned long long k_saturated = 0;
  unsigned long long k_non_finite = 0;
  unsigned long long v_saturated = 0;
  unsigned long long v_non_finite = 0;
};

// One fused launch after the QKV projection: bias, RoPE, rounding, quantisation and the move to tiled-1 pages, with the
// arithmetic of ops/attention.h (WriteKvParams) and kv/codec.h, byte for byte. All pointers are device memory.
struct WriteParams {
  const void* k = nullptr;         // [token][kv head][head_dim], native 16-bit type, before bias and RoPE
  const void* v = nullptr;         // [token][kv head][head_dim], native 16-bit type
  const float* k_bias = nullptr;   // [kv head][head_dim]; may be null
  const float* removed = nullptr;  // [kv head][head_dim]: taken out of pre-bias keys; may be null
  const float* cosines = nullptr;  // [position][head_dim / 2], FP32 as RopeTable stores them
  const float* sines = nullptr;
  const int32_t* positions = nullptr;  // [token]
  const WriteRun* runs = nullptr;
  int32_t num_runs = 0;
  int32_t num_kv_heads = 0;
  std::byte* blocks = nullptr;
  std::byte* scales = nullptr;
  const float* fixed_scales = nullptr;  // {key, value}
  void* fresh_k = nullptr;              // [token][kv head][head_dim], 16 bits: whole keys as attention reads them now
  WriteCounters* counters = nullptr;    // may be null
  bool native_is_bf16 = true;
};

// Enqueues one launch; capturable. The configuration is the decode kernel's (column tiles do not matter).
// Throws Error{kUnsupported} for a head dim other than 64, 128, 256, Error{kUsage} for a missing array.
void launch_write(const DecodeConfig& config, const WriteParams& params, StreamHandle stream);

namespace internal {
// In write_kernel.cu: false if no kernel has this configuration.
bool enqueue_write(const DecodeConfig& config, const WriteParams& params, StreamHandle stream);
}  // namespace internal

}  // namespace asymkv::cuda
