#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "asymkv/kernels/cuda/decode_launch.h"

namespace asymkv::cuda {

// Attention of 16-bit rows to 16-bit rows through cuDNN's graph interface (its SDPA node), several requests of any
// lengths a call. Built where cuDNN and its header-only front end were found (sdpa_cudnn.cc), else every call refuses
// with a sentence (sdpa_none.cc).
struct SdpaShape {
  int64_t batch = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_q = 0;    // at least the longest request's queries: a graph is built for each shape and kept
  int64_t max_kv = 0;   // at least the longest request's keys
  bool causal = false;  // query i sees keys 0 to i (then both have the same lengths)
  bool bf16 = true;
  float softmax_scale = 0.0F;
  auto operator<=>(const SdpaShape&) const = default;
};

// Device pointers. Offsets are in elements of the arrays below, [batch + 1]; lengths in tokens, [batch].
struct SdpaArguments {
  const void* q = nullptr;  // rows of [q head][head_dim]
  const void* k = nullptr;  // rows of [kv head][head_dim]
  const void* v = nullptr;
  void* out = nullptr;     // as q
  float* stats = nullptr;  // [batch][q head][max_q] natural log of the softmax denominators
  const int32_t* q_offsets = nullptr;
  const int32_t* kv_offsets = nullptr;
  const int32_t* q_lens = nullptr;
  const int32_t* kv_lens = nullptr;
};

// Why this build has no SDPA; empty if it has one.
std::string sdpa_refusal();

class Sdpa {
 public:
  // Throws Error{kUnsupported} with sdpa_refusal(), or if cuDNN cannot be started.
  Sdpa();
  ~Sdpa();
  Sdpa(const Sdpa&) = delete;
  Sdpa& operator=(const Sdpa&) = delete;

  // Enqueues one call. The first call of a shape builds its graph (tens of milliseconds) and may allocate workspace, so
  // that only later ones may be captured. Throws Error{kUnsupported} with cuDNN's reason for a shape it does not serve.
  void run(const SdpaShape& shape, const SdpaArguments& arguments, StreamHandle stream);
  std::string version() const;  // "cudnn 9.19.0, front end 1.32.0"

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace asymkv::cuda
