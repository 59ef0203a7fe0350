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

// One fused launch after the QKV projection: key norm, bias, RoPE, rounding, quantisation and the move to tiled-1
// pages, with the arithmetic of ops/attention.h (WriteKvParams), key_norm.h and kv/codec.h, byte for byte. All pointers
// are device memory, aligned to 16 bytes.
struct WriteParams {
  const void* k = nullptr;        // [token][kv head][head_dim], native 16-bit type, before norm, bias and RoPE
  const void* v = nullptr;        // [token][kv head][head_dim], native 16-bit type
  int64_t k_token_stride = 0;     // elements from token to token, a multiple of 8; 0: dense
  int64_t v_token_stride = 0;     // so that both may lie inside one QKV row
  const float* k_norm = nullptr;  // [head_dim]: weights of the RMS norm of each key head; may be null
  float k_norm_eps = 0.0F;
  const float* k_bias = nullptr;   // [kv head][head_dim]; may be null
  const float* removed = nullptr;  // [kv head][head_dim]: taken out of pre-bias keys; may be null
  const float* cosines = nullptr;  // [position][head_dim / 2], FP32 as RopeTable stores them
  const float* sines = nullptr;
  const int32_t* positions = nullptr;  // [token]
  const WriteRun* runs = nullptr;      // WritePlan::launch_order()
  int32_t num_runs = 0;
  int32_t num_whole = 0;  // of them, the first ones, fill a page
  int32_t num_kv_heads = 0;
  std::byte* blocks = nullptr;
  std::byte* scales = nullptr;
  const float* fixed_scales = nullptr;  // {key, value}
  void* fresh_k = nullptr;              // [token][kv head][head_dim], 16 bits: whole keys as attention reads them now
  WriteCounters* counters = nullptr;    // may be null
  bool native_is_bf16 = true;
  bool k_dynamic = false;  // launch_write sets these two from the configuration
  bool v_dynamic = false;
};

// Enqueues one launch; capturable. The configuration is the decode kernel's (column tiles do not matter).
// Throws Error{kUnsupported} for a head dim other than 64, 80, 96, 128, 192, 256, Error{kUsage} for a missing array or
// one that is not aligned.
void launch_write(const DecodeConfig& config, const WriteParams& params, StreamHandle stream);

namespace internal {
// In write_dHEADDIM.cu: false if no kernel has this configuration. Whole pages go through the page path only if the
// 16-bit sides have the native type and half the head dim is a multiple of 16 (not 80); else all runs take the row
// path.
bool enqueue_write_d64(const DecodeConfig& config, const WriteParams& params, StreamHandle stream);
bool enqueue_write_d80(const DecodeConfig& config, const WriteParams& params, StreamHandle stream);
bool enqueue_write_d96(const DecodeConfig& config, const WriteParams& params, StreamHandle stream);
bool enqueue_write_d128(const DecodeConfig& config, const WriteParams& params, StreamHandle stream);
bool enqueue_write_d192(const DecodeConfig& config, const WriteParams& params, StreamHandle stream);
bool enqueue_write_d256(const DecodeConfig& config, const WriteParams& params, StreamHandle stream);
}  // namespace internal

}  // namespace asymkv::cuda
