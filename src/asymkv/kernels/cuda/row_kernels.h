#pragma once

#include <cstdint>

#include "asymkv/kernels/cuda/decode_launch.h"

// Rows of the model to and from what the attention kernels read and write. All pointers are device memory; every
// function enqueues one launch, whose errors check_launches() throws.
namespace asymkv::cuda {

// to[i] = round16(from[rows[i]]), rows of row_elems; without `rows` row i itself.
struct NarrowParams {
  const float* from = nullptr;
  void* to = nullptr;
  const int32_t* rows = nullptr;
  int64_t num_rows = 0;
  int64_t row_elems = 0;
  bool bf16 = true;
};
void launch_narrow(const NarrowParams& params, StreamHandle stream);

// Rows of 16-bit elements (row_elems a multiple of 8): row rows[i] of `from` to row i of `to`, or with `scatters` row i
// to row rows[i].
struct MoveRowsParams {
  const void* from = nullptr;
  void* to = nullptr;
  const int32_t* rows = nullptr;
  int64_t num_rows = 0;
  int64_t row_elems = 0;
  bool scatters = false;
};
void launch_move_rows(const MoveRowsParams& params, StreamHandle stream);

// 16 bits to FP32, exactly.
void launch_widen_16bit(const void* from, float* to, int64_t elems, bool bf16, StreamHandle stream);

// to = round(second type, round(first type, from)), both 16 bits wide.
void launch_round_twice(const float* from, float* to, int64_t elems, bool first_bf16, bool second_bf16,
                        StreamHandle stream);

// Fresh rows of one sequence, and the page of 16 slots that its first one goes to.
struct alignas(16) FreshPiece {
  const float* k = nullptr;  // [token][kv head][head_dim], FP32 or 16 bits
  const float* v = nullptr;
  int32_t num_tokens = 0;
  int32_t first_page = 0;
};
struct PackParams {
  const FreshPiece* pieces = nullptr;
  int32_t num_pieces = 0;
  int32_t max_tokens = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  std::byte* blocks = nullptr;  // tiled-1, both sides 16 bits wide
  bool bf16 = true;
  bool rows_are_16bit = false;  // then BF16, as the pages; else FP32
};
void launch_pack(const PackParams& params, StreamHandle stream);

// Joins partial results into rows of `out` and `lse` by the law of ops/softmax_state.h; a state with LSE -inf is empty,
// whatever its output holds.
struct JoinParams {
  const int32_t* rows = nullptr;  // [num_rows] rows of out that the part's rows belong to
  int64_t num_rows = 0;
  int32_t num_q_heads = 0;
  int32_t head_dim = 0;
  const void* part = nullptr;       // [row][q head][head_dim], 16 bits; null: sinks, states without an output
  const float* part_lse = nullptr;  // [row][q head], or the sinks' [q head] logits
  bool part_bf16 = true;
  float* out = nullptr;  // [row][q head][head_dim]
  float* lse = nullptr;  // [row][q head]
  bool first = false;    // nothing was joined before: the rows' states are written, not read
};
void launch_join(const JoinParams& params, StreamHandle stream);
// Makes the rows' states empty: zeros and -inf.
void launch_clear(const JoinParams& params, StreamHandle stream);

}  // namespace asymkv::cuda
