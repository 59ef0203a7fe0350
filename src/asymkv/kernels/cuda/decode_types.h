#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "asymkv/tensor/dtype.h"

// Types shared by host code and device code of the decode kernel. No CUDA header is needed to read them.
namespace asymkv::cuda {

// The kernel's page: 16 slots. A cache page of 64 slots is four of them one after the other (kv/tiled_layout.h).
inline constexpr int32_t kPageSize = 16;
inline constexpr int32_t kColumnsPerTile = 8;     // queries side by side in one mma: its N
inline constexpr int32_t kRecordPages = 32;       // page ids that travel inside a warp's record
inline constexpr int32_t kWindowPages = 32;       // pages of one pre-bias window: 512 keys
inline constexpr int32_t kBiasTerms = 5;          // coefficients of the degree-4 window polynomial
inline constexpr int32_t kBiasStepPairs = 8;      // fast pairs of one k-step: eight cosines and eight sines
inline constexpr int32_t kRegisterBiasSteps = 4;  // k-steps whose query side stays in registers; more are allowed
inline constexpr double kBiasUnit = 256.0;        // of the bias tables, so that their FP16 remainders stay normal
inline constexpr int32_t kWindowTableBytes = kWindowPages * 512;
inline constexpr int32_t kMaxFastTableBytes = 32 * 1024;
inline constexpr int32_t kMergeStep = 4;  // states of warps that are merged side by side come in fours
inline constexpr int32_t kMaxSharedBytes = 227 * 1024;
inline constexpr int32_t kMaxSharedBytesOfTwo = 113 * 1024;  // where two CTAs share an SM

// Everything a kernel instance fixes at compile time. All else is run time.
struct DecodeConfig {
  DType key = DType::kBF16;    // bf16, f16, e4m3, i8
  DType value = DType::kBF16;  // bf16, f16, e4m3
  bool k_dynamic = false;      // one FP32 scale per stored row, else the layer's fixed scale (8-bit sides)
  bool v_dynamic = false;
  bool prebias = false;      // keys lack a constant vector on their slow RoPE pairs; its score is added here
  bool fast_bias = false;    // only with prebias: on fast pairs too
  int32_t head_dim = 128;    // of both sides
  int32_t column_tiles = 1;  // 1: groups 1 to 8, 2: groups 9 to 16
  bool operator==(const DecodeConfig&) const = default;

  constexpr int32_t columns() const { return column_tiles * kColumnsPerTile; }
  constexpr int32_t k_bytes() const { return static_cast<int32_t>(dtype_bytes(key)); }
  constexpr int32_t v_bytes() const { return static_cast<int32_t>(dtype_bytes(value)); }
  // As in tiled_channels(): an 8-bit side has room for a multiple of 32 channels.
  constexpr int32_t k_block_bytes() const { return kPageSize * channels(k_bytes()) * k_bytes(); }
  constexpr int32_t v_block_bytes() const { return kPageSize * channels(v_bytes()) * v_bytes(); }
  constexpr int32_t channels(int32_t bytes) const { return bytes == 1 ? (head_dim + 31) / 32 * 32 : head_dim; }
  constexpr int32_t block_bytes() const { return k_block_bytes() + v_block_bytes(); }
  constexpr int32_t scale_bytes() const { return kPageSize * 4 * ((k_dynamic ? 1 : 0) + (v_dynamic ? 1 : 0)); }
  // One page of one KV head in shared memory.
  constexpr int32_t stage_bytes() const { return (block_bytes() + scale_bytes() + 127) / 128 * 128; }
  // Register budget: 65,536 registers over the warps. Accumulators and queries grow with head_dim * column_tiles.
  constexpr int32_t max_warps() const {
    if (column_tiles == 2 || (fast_bias && head_dim > 128)) return 8;
    const bool heavy = head_dim > 128 || fast_bias || k_bytes() + v_bytes() > 2;
    return heavy ? 12 : 16;
  }
  // The configuration as one integer: kernels take it as their template argument (nvcc 13.0 writes host stubs that do
  // not compile for kernels with a class-type argument).
  constexpr uint32_t code() const {
    return static_cast<uint32_t>(key) | static_cast<uint32_t>(value) << 3 | (k_dynamic ? 1U : 0U) << 6 |
           (v_dynamic ? 1U : 0U) << 7 | (prebias ? 1U : 0U) << 8 | static_cast<uint32_t>(column_tiles) << 9 |
           (fast_bias ? 1U : 0U) << 11 | static_cast<uint32_t>(head_dim) << 12;
  }
  static constexpr DecodeConfig from_code(uint32_t code) {
    return {.key = static_cast<DType>(code & 7U),
            .value = static_cast<DType>(code >> 3 & 7U),
            .k_dynamic = (code >> 6 & 1U) != 0,
            .v_dynamic = (code >> 7 & 1U) != 0,
            .prebias = (code >> 8 & 1U) != 0,
            .fast_bias = (code >> 11 & 1U) != 0,
            .head_dim = static_cast<int32_t>(code >> 12),
            .column_tiles = static_cast<int32_t>(code >> 9 & 3U)};
  }
  std::string name() const;  // "decode_bf16_e4m3_d128_c1", with "_kd", "_vd", "_pb", "_fb" where those are set
};

// A run of pages of one (query tile, KV head) that one CTA attends to. A query tile is some consecutive query tokens of
// one sequence whose columns (tokens times group) fit the kernel's.
struct alignas(16) Segment {
  int32_t query_row = 0;  // row of q and out of the first query token
  int16_t kv_head = 0;
  int16_t num_queries = 1;  // query tokens of the tile
  int32_t page_begin = 0;   // in the sequence
  int32_t page_end = 0;
  int32_t first_partial = 0;  // partial results of one (query tile, KV head) are consecutive
  int32_t num_partials = 1;   // 1: this segment is the whole of it
  int32_t seq_len = 0;        // keys that the tile's last token sees, from 0 on
  int32_t page_row = 0;       // where the sequence's page ids start in the page table
  int32_t query_pos = 0;      // position of the first query token
  int32_t full_begin = 0;     // pages full_begin to full_end - 1: every token sees every slot
  int32_t full_end = 0;
  int32_t sequence = 0;
  bool operator==(const Segment&) const = default;
};

// What a warp reads first: its CTA's segments, the first of them, and the first pages it will load from it.
struct alignas(16) WarpRecord {
  int32_t segment_begin = 0;
  int32_t segment_end = 0;
  int32_t page_begin = 0;  // this warp's pages of the first segment
  int32_t page_end = 0;
  Segment first;
  int32_t page_ids[kRecordPages] = {};
};

// One slow RoPE pair of one KV head: the vector taken out of the keys, channels p and p + head_dim / 2.
struct alignas(8) BiasPair {
  float low = 0.0F;
  float high = 0.0F;
};
// A fast pair: which one it is as well.
struct alignas(16) FastBiasPair {
  float low = 0.0F;
  float high = 0.0F;
  int32_t pair = 0;
  int32_t unused = 0;
};
// Frequency of a pair: turns per position as a sum of two FP32 (so that position times frequency keeps its fraction),
// and radians per half window.
struct alignas(16) BiasFrequency {
  float turns = 0.0F;
  float turns_rest = 0.0F;
  float radians_per_half_window = 0.0F;
  float unused = 0.0F;
};

// Sizes of a layer's bias arrays.
struct BiasShape {
  int32_t slow_chunks = 0;  // groups of 32 pairs that hold every slow pair; 0 without pre-bias
  int32_t fast_steps = 0;   // k-steps of eight fast pairs; 0: none
  int32_t table_shift = 0;  // log2 of the pages that the cosine table covers
  constexpr int32_t slow_pairs() const { return 32 * slow_chunks; }  // with padding ahead of the first
  constexpr int32_t table_pages() const { return 1 << table_shift; }
  constexpr int32_t fast_table_bytes() const { return fast_steps * table_pages() * 2 * 512; }
  constexpr int32_t table_bytes() const { return kWindowTableBytes + fast_table_bytes(); }
  bool operator==(const BiasShape&) const = default;
};

// Byte offsets into dynamic shared memory of one launch.
struct DecodeShared {
  int32_t ring = 0;           // [warp][stage][stage_bytes]
  int32_t barriers = 0;       // [warp][stage] 8 bytes
  int32_t merge_state = 0;    // [merge slot][column] float2 {max, sum}
  int32_t merge_out = 0;      // [merge slot][column][head_dim + 4] float, or the shares of the last arriver
  int32_t peer_state = 0;     // [cluster rank][column] float2
  int32_t peer_out = 0;       // [cluster rank][slice] float2
  int32_t peer_barrier = 0;   // the peers' results have arrived
  int32_t bias_pairs = 0;     // [kv head][slow pair], as in global memory
  int32_t bias_freqs = 0;     // [slow pair], likewise
  int32_t fast_products = 0;  // [column][fast pair] float2 {c, d}, over kBiasUnit
  int32_t fast_freqs = 0;     // [fast pair] float2: turns per position and their rest
  int32_t bias_table = 0;     // [page of a window][lane], [fast step][page of the table][high, low][lane] 16 bytes
  int32_t bias_barrier = 0;   // pairs, frequencies and table have arrived
  int32_t late = 0;           // a segment whose head this CTA has yet to finish; -1: none
  int32_t merge_slots = 0;    // a multiple of four, at most the warps
  int32_t total = 0;
  bool operator==(const DecodeShared&) const = default;
};

// One launch. Pointers are device memory; all arrays outlive it.
struct DecodeParams {
  const std::byte* blocks = nullptr;    // tiled-1 block plane of one layer
  const std::byte* scales = nullptr;    // tiled-1 scale plane; null without dynamic scales
  const float* fixed_scales = nullptr;  // {key, value}: read on the device, so that a graph sees new values
  const void* q = nullptr;              // [row][q head][head_dim], 16 bits, after RoPE
  void* out = nullptr;                  // same shape and type as q
  float* lse = nullptr;                 // [row][q head] natural log of the softmax denominator; may be null
  const float* sinks = nullptr;         // [q head] logits that take part in the softmax without a value; may be null
  const int32_t* page_table = nullptr;  // page ids, a row a sequence
  const Segment* segments = nullptr;    // of the plan
  const WarpRecord* records = nullptr;  // [CTA][warp]
  float* partial_out = nullptr;         // [segment][column][head_dim]
  float* partial_state = nullptr;       // [segment][column] {max, sum}
  int32_t* arrivals = nullptr;          // [segment], zero before and after each launch
  const BiasPair* bias = nullptr;       // [kv head][32 * slow_chunks], slowest pair last; only with prebias
  const BiasFrequency* bias_freq = nullptr;  // [32 * slow_chunks]
  const FastBiasPair* fast_bias = nullptr;   // [kv head][8 * fast_steps]; only with fast_bias
  const BiasFrequency* fast_freq = nullptr;  // [8 * fast_steps]
  const std::byte* bias_table = nullptr;     // as in shared memory
  BiasShape bias_shape;
  int32_t num_kv_heads = 0;
  int32_t group = 0;       // q heads per KV head
  int32_t columns = 0;     // of the largest query tile: query tokens times group
  uint32_t per_group = 0;  // 65536 / group, rounded up: column * per_group >> 16 is the column's query token
  int32_t row_skip = 0;    // group * (num_kv_heads - 1): what a query token adds to a column's row
  int32_t window = 0;      // keys that a query sees, itself included; 0: all
  int32_t page_shift = 0;  // log2 of a cache page over kPageSize
  int32_t stages = 0;
  uint32_t per_warp = 0;      // 2^32 / warps, rounded up: a division by the warps is a multiplication by it
  int32_t cluster_shift = 0;  // log2 of the cluster size
  bool q_is_bf16 = true;
  bool overlaps = false;            // launched while the kernel before it in the stream may still run
  float softmax_scale_log2 = 0.0F;  // softmax scale times log2(e)
  float soft_cap_log2 = 0.0F;       // logit soft cap times log2(e); 0: none
  float soft_cap_slope = 0.0F;      // 2 log2(e) / soft_cap_log2: exp2(slope * score) = exp(2 score / cap)
  DecodeShared shared;
};

// What the shared memory of a launch depends on beside its configuration.
struct SharedNeeds {
  int32_t warps = 0;
  int32_t stages = 0;  // pages per warp in flight
  int32_t cluster_size = 1;
  int32_t columns = 0;  // of the largest query tile
  BiasShape bias;
  int32_t num_kv_heads = 0;
  int32_t max_bytes = kMaxSharedBytes;
};

// Places the arrays of one launch; merge slots as many as fit, else four.
DecodeShared place_shared(const DecodeConfig& config, const SharedNeeds& needs);

// A compiled kernel. `kernel` is the address that the CUDA runtime knows it by.
struct DecodeInstance {
  DecodeConfig config;
  const void* kernel = nullptr;
};

}  // namespace asymkv::cuda
