#pragma once

#include <cstdint>

#include "asymkv/kernels/cuda/decode_launch.h"

namespace asymkv::cuda {

// Attention in double precision on the device, written from the definition, for checks at sizes where the host oracle
// would take minutes. Decodes the stored tiled-1 bytes first. Never optimised; tests compare it with kernels/ref.
struct ReferenceArguments {
  DecodeConfig config;
  const std::byte* blocks = nullptr;
  const std::byte* scales = nullptr;
  const float* fixed_scales = nullptr;
  const void* q = nullptr;  // [sequence][q head][head_dim]
  bool q_is_bf16 = true;
  const int32_t* page_table = nullptr;
  const int32_t* page_rows = nullptr;   // [sequence]
  const int32_t* seq_lens = nullptr;    // [sequence]
  const float* removed = nullptr;       // [kv head][head_dim]; null: keys are whole
  const double* frequencies = nullptr;  // [head_dim / 2] radians per position
  int32_t num_sequences = 0;
  int32_t num_kv_heads = 0;
  int32_t group = 0;
  int32_t max_len = 0;
  double softmax_scale = 0.0;
  double* logits = nullptr;  // scratch [sequence][q head][max_len]; holds the weights afterwards
  double* out = nullptr;     // [sequence][q head][head_dim]
  double* lse = nullptr;     // [sequence][q head]
};
void launch_reference(const ReferenceArguments& arguments, StreamHandle stream);

}  // namespace asymkv::cuda
