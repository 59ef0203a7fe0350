#pragma once

#include <cstdint>

#include "asymkv/kernels/cuda/decode_launch.h"
#include "asymkv/kernels/cuda/prefill_plan.h"

namespace asymkv::cuda {

// Widens stored pages into 16-bit rows, as attention over fresh tokens reads them:
//   key   = round16(decode(code) * scale + R(position) removed),   value = round16(decode(code) * scale)
// each operation rounded to FP32; 16-bit sides of the same type are copied. All pointers are device memory.
struct WidenParams {
  const std::byte* blocks = nullptr;  // tiled-1, as the decode kernel reads them
  const std::byte* scales = nullptr;
  const float* fixed_scales = nullptr;  // {key, value}
  const float* removed = nullptr;       // [kv head][head_dim] of pre-bias keys, else null
  const float* cosines = nullptr;       // [position][head_dim / 2]; with `removed` only
  const float* sines = nullptr;
  const WidenPage* pages = nullptr;
  int32_t num_pages = 0;
  int32_t num_kv_heads = 0;
  void* k = nullptr;  // [row][kv head][head_dim], 16 bits
  void* v = nullptr;
  bool to_bf16 = true;
};

// Enqueues one launch; capturable. Throws Error{kUnsupported} for a configuration without a kernel, Error{kUsage} for a
// missing array.
void launch_widen(const DecodeConfig& config, const WidenParams& params, StreamHandle stream);

// A piece of a round on the device: rows [query_row, query_row + num_queries) get the attention over its keys.
struct alignas(16) MergePiece {
  int32_t query_row = 0;
  int32_t num_queries = 0;
  int32_t first = 0;
  int32_t last = 0;
};

// Joins normalised partial results (a row's output and the natural logarithm of its softmax denominator) by the law of
// ops/softmax_state.h; a row with LSE -inf is the empty state. Rows whose request has more pieces to come stay in
// `total` in FP32, the others are rounded into `out`.
struct MergeParams {
  const MergePiece* pieces = nullptr;
  int32_t num_pieces = 0;
  int32_t max_queries = 0;  // largest num_queries
  int32_t num_q_heads = 0;
  int32_t head_dim = 0;
  const void* part = nullptr;         // [row][q head][head_dim], 16 bits: over the piece's keys
  const float* part_stats = nullptr;  // [piece][q head][stats_stride]: LSE of the piece's queries
  int32_t stats_stride = 0;
  void* out = nullptr;     // [row][q head][head_dim], 16 bits: read where first, written where last
  float* lse = nullptr;    // [row][q head]: read and written
  float* total = nullptr;  // [row][q head][head_dim]; null if every piece is first and last
  bool bf16 = true;        // type of out
  bool part_bf16 = true;   // type of part; FP16 where out is
};
void launch_merge(const MergeParams& params, StreamHandle stream);

// [piece][q head][stats_stride] to [row][q head], for the rows of the pieces.
void launch_take_stats(const MergeParams& params, StreamHandle stream);

// BF16 to FP16, clipped to its range; elems is even.
void launch_to_f16(const void* bf16, void* f16, int64_t elems, StreamHandle stream);

namespace internal {
// In widen_kernel.cu: false if no kernel has this configuration.
bool enqueue_widen(const DecodeConfig& config, const WidenParams& params, StreamHandle stream);
}  // namespace internal

}  // namespace asymkv::cuda
