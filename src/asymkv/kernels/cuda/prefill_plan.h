#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace asymkv::cuda {

// One request of a mixed step: `num_new` tokens that were just computed, after `cached_len` stored ones. Its new tokens
// are consecutive rows of q, fresh k and fresh v, in the order of the requests.
struct PrefillRequest {
  int32_t cached_len = 0;
  int32_t num_new = 0;
  int32_t page_row = 0;  // where its page ids start in the page table
};

struct PrefillBatch {
  std::vector<PrefillRequest> requests;
  std::span<const int32_t> page_table;  // ids of pages of `page_size` slots
  int32_t page_size = 16;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // of both sides
};

struct PrefillLimits {
  int64_t staging_bytes = int64_t{256} << 20;  // payload of the staging buffer: 16-bit keys and values of one layer
  // New tokens times group up to which a request takes the decode kernel, whose query tiles read the pages as they are.
  // Measured on an H200 (bench/results/writer-prefill-h200.json, 8,192 stored tokens, group 4): at 256 columns it takes
  // 0.36 to 0.51 of the time of staging, at 512 0.67 to 0.90, for one request; several share the SDPA better.
  int32_t max_decode_columns = 256;
};

// 16 stored slots that are widened into the staging buffer.
struct alignas(16) WidenPage {
  int32_t page = 0;      // id in a plane with pages of 16 slots (kv/tiled_layout.h)
  int32_t row = 0;       // of the staging buffer
  int32_t count = 0;     // slots that hold tokens: 1 to 16
  int32_t position = 0;  // of the first of them in its sequence
  bool operator==(const WidenPage&) const = default;
};

// A run of one request's stored tokens in one round.
struct StagedPiece {
  int32_t request = 0;
  int32_t token_begin = 0;  // a multiple of 16
  int32_t count = 0;
  int32_t staging_row = 0;
  bool first = false;  // of its request: the partial result so far is that of the fresh tokens
  bool last = false;
  bool operator==(const StagedPiece&) const = default;
};

// What fits into the staging buffer at once. A request has at most one piece in a round.
struct StagingRound {
  std::vector<StagedPiece> pieces;
  std::vector<WidenPage> pages;
  int32_t num_rows = 0;
};

// Which kernel serves which request, and the rounds of staging. Host only; printable.
struct PrefillPlan {
  std::vector<int32_t> decode;      // requests whose tokens are written first and then read by the decode kernel
  std::vector<int32_t> fresh;       // requests whose new tokens attend to each other, causally
  std::vector<int32_t> staged;      // of those, the ones with stored tokens before them
  std::vector<int32_t> query_rows;  // [request] first row of q
  int32_t num_rows = 0;             // rows of q
  std::vector<StagingRound> rounds;
  int32_t staging_rows = 0;   // tokens the buffer must hold: the largest round
  int64_t staging_bytes = 0;  // of its payload
  bool accumulates = false;   // a request has several rounds: partial results are kept in FP32 between them
  std::string describe() const;
};

// 16-bit K and V bytes of one token of one layer.
int64_t staging_bytes_per_token(int32_t num_kv_heads, int32_t head_dim);

// Throws Error{kUsage} for negative lengths, a page row outside the table, page sizes that are no multiple of 16, and a
// staging buffer that holds no page of 16 slots.
PrefillPlan plan_prefill(const PrefillBatch& batch, const PrefillLimits& limits = {});

}  // namespace asymkv::cuda
