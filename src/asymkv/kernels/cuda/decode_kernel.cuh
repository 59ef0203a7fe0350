#pragma once

#include <vector>

#include "asymkv/kernels/cuda/decode_types.h"
#include "asymkv/kernels/cuda/fragments.cuh"
#include "asymkv/kernels/cuda/merge.cuh"
#include "asymkv/kernels/cuda/ptx.cuh"
#include "asymkv/kernels/cuda/window_bias.cuh"

// Paged split-KV decode attention for Hopper. Each warp owns a contiguous run of pages of its CTA's segment, a private
// ring of shared-memory stages filled by bulk copies (one page and KV head a stage) and a private online softmax; CTA
// barriers appear only where segments end. bench/hopper_notes.md says what each choice gained.
namespace asymkv::cuda {

// Walks the pages of one warp, segment after segment, ahead of the arithmetic. All members are warp-uniform but the
// block indices (page, KV head) of the next 32 pages, which lie one a lane.
template <DecodeConfig C>
class PageLoader {
 public:
  __device__ __forceinline__ PageLoader(const DecodeParams& p, uint32_t ring, uint32_t barriers, int warp, int lane)
      : p_(p), to_(ring), barrier_(barriers), warp_(warp), lane_(lane), policy_(ptx::evict_first_policy()) {}

  // First page of warp `warp` (and one past the last of the warp before it).
  static __device__ __forceinline__ int share_of(const DecodeParams& p, const Segment& s, int warp) {
    const auto pages = static_cast<uint32_t>((s.page_end - s.page_begin) * warp);
    return s.page_begin + static_cast<int>(__umulhi(pages, p.per_warp));
  }

  // Starts on the first segment: its range of pages and their first ids came with the record.
  __device__ __forceinline__ void begin_first(const Segment& s, int4 range, int id) {
    segment_idx_ = range.x;
    segment_end_ = range.y;
    begin(s, range.z, range.w);
    ids_ = block_of(id, ids_base_);
  }
  __device__ __forceinline__ void begin(const Segment& s, int page_begin, int page_end) {
    page_ = ids_base_ = page_begin;
    end_ = page_end;
    row_ = p_.page_table + s.page_row;
    kv_head_ = s.kv_head;
    next_ids_ = load_id(ids_base_ + kRecordPages);
  }

  // Loads the next page into the next stage, if any page is left.
  __device__ __forceinline__ void issue() {
    while (page_ >= end_) {
      if (segment_idx_ + 1 >= segment_end_) return;
      ++segment_idx_;
      const Segment s = load_segment(p_.segments + segment_idx_);
      begin(s, share_of(p_, s, warp_), share_of(p_, s, warp_ + 1));
      ids_ = block_of(load_id(ids_base_), ids_base_);
    }
    const size_t id = static_cast<uint32_t>(__shfl_sync(~0U, ids_, (page_ - ids_base_) & 31));
    if (lane_ == 0) {
      ptx::barrier_expect(barrier_, C.block_bytes() + C.scale_bytes());
      ptx::bulk_load(to_, p_.blocks + id * C.block_bytes(), C.block_bytes(), barrier_, policy_);
      if constexpr (C.scale_bytes() > 0)
        ptx::bulk_load(to_ + C.block_bytes(), p_.scales + id * C.scale_bytes(), C.scale_bytes(), barrier_);
    }
    to_ += C.stage_bytes();
    barrier_ += 8;
    if (++stage_ == p_.stages) {
      stage_ = 0;
      to_ -= p_.stages * C.stage_bytes();
      barrier_ -= p_.stages * 8;
    }
    if (++page_ - ids_base_ == kRecordPages) {
      ids_base_ += kRecordPages;
      ids_ = block_of(next_ids_, ids_base_);
      next_ids_ = load_id(ids_base_ + kRecordPages);
    }
  }

  static __device__ __forceinline__ Segment load_segment(const Segment* from) {
    const auto* words = reinterpret_cast<const int4*>(from);
    const int4 a = __ldg(words), b = __ldg(words + 1), c = __ldg(words + 2);
    return {
        a.x, static_cast<int16_t>(a.y), static_cast<int16_t>(a.y >> 16), a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z,
        c.w};
  }

 private:
  // Block index of this lane's page among the 32 from `first` on, from the id of the cache page that holds it.
  __device__ __forceinline__ int block_of(int id, int first) const {
    const int within = (first + lane_) & ((1 << p_.page_shift) - 1);
    return ((id << p_.page_shift) + within) * p_.num_kv_heads + kv_head_;
  }
  __device__ __forceinline__ int load_id(int first) const {
    return first + lane_ < end_ ? __ldg(row_ + ((first + lane_) >> p_.page_shift)) : 0;
  }

  const DecodeParams& p_;
  uint32_t to_, barrier_;  // of the next stage, in shared memory
  int warp_, lane_;
  int segment_idx_ = 0, segment_end_ = 0;
  uint64_t policy_;
  int page_ = 0, end_ = 0, ids_base_ = 0, stage_ = 0;
  int ids_ = 0, next_ids_ = 0;  // block indices, and ids of cache pages that become some when they are needed
  int kv_head_ = 0;
  const int32_t* row_ = nullptr;
};

// cap * tanh(score / cap) in log2 units, with the exact exponential: tanh.approx would be off by cap / 2048.
__device__ __forceinline__ float soft_capped(const DecodeParams& p, float score) {
  const float doubled = ptx::exp2_approx(fminf(score * p.soft_cap_slope, 126.0F));
  return p.soft_cap_log2 - __fdividef(2.0F * p.soft_cap_log2, doubled + 1.0F);
}

// The queries of a segment and the fixed scales {key, value}.
template <DecodeConfig C>
__device__ __forceinline__ void load_inputs(const DecodeParams& p, const Segment& segment, LanePlace at,
                                            QueryWords<C>& words, float2& scales) {
  load_query_words<C>(p, segment, at, words);
  if constexpr (C.k_bytes() == 1 && !C.k_dynamic) scales.x = __ldg(p.fixed_scales);
  if constexpr (C.v_bytes() == 1 && !C.v_dynamic) scales.y = __ldg(p.fixed_scales + 1);
}

// Raw products become logits in log2 units: scales, the score of the removed vector, the cap.
template <DecodeConfig C>
__device__ __forceinline__ void finish_scores(const DecodeParams& p, const float* key_scales, float factor,
                                              const Scores<C>& bias, LanePlace at, Scores<C>& scores) {
  float upper = factor, lower = factor;
  if constexpr (C.k_dynamic) {
    upper *= key_scales[at.row];
    lower *= key_scales[at.row + 8];
  }
#pragma unroll
  for (int tile = 0; tile < C.column_tiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = i < 2 ? upper : lower;
      scores[tile][i] = C.prebias ? fmaf(scores[tile][i], scale, bias[tile][i]) : scores[tile][i] * scale;
    }
  }
  if (p.soft_cap_log2 <= 0.0F) return;
#pragma unroll
  for (int tile = 0; tile < C.column_tiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[tile][i] = soft_capped(p, scores[tile][i]);
  }
}

// What a warp keeps of the removed vector's score while it walks through a segment.
template <DecodeConfig C>
struct BiasState {
  int window = -1, run = -1;
  WindowBias<C> slow;
  FastBias<C> fast;

  // Score of the removed vector on the keys of one page.
  __device__ __forceinline__ void score(const DecodeParams& p, const BiasTables& tables, const std::byte* table,
                                        const Segment& segment, const QueryFragments<C>& queries, int page,
                                        LanePlace at, Scores<C>& scores) {
    if (page / kWindowPages != window) {
      window = page / kWindowPages;
      slow.make(p, tables, segment, queries, window, at);
    }
#pragma unroll
    for (int tile = 0; tile < C.column_tiles; ++tile)
      scores[tile][0] = scores[tile][1] = scores[tile][2] = scores[tile][3] = 0.0F;
    slow.add(table, page, at, scores);
    if constexpr (C.fast_bias) {
      const int columns = columns_of(p, segment);
      if (page >> p.bias_shape.table_shift != run) {
        run = page >> p.bias_shape.table_shift;
        fast.turn(p, tables, run << p.bias_shape.table_shift, columns, at);
      }
      fast.add(p, tables, table, page, columns, at, scores);
    }
  }
};

// What the bias of all segments is made from: powers and cosines, the vectors of all heads, frequencies. One thread.
__device__ __forceinline__ void load_bias_tables(const DecodeParams& p, std::byte* smem, uint32_t barrier) {
  const auto slow = static_cast<uint32_t>(p.bias_shape.slow_pairs());
  const auto table = static_cast<uint32_t>(p.bias_shape.table_bytes());
  const auto pairs = static_cast<uint32_t>(p.num_kv_heads * slow * sizeof(BiasPair));
  const auto freqs = static_cast<uint32_t>(slow * sizeof(BiasFrequency));
  ptx::barrier_expect(barrier, table + pairs + freqs);
  if (slow > 0) {
    ptx::bulk_load(ptx::shared_address(smem + p.shared.bias_pairs), p.bias, pairs, barrier);
    ptx::bulk_load(ptx::shared_address(smem + p.shared.bias_freqs), p.bias_freq, freqs, barrier);
  }
  ptx::bulk_load(ptx::shared_address(smem + p.shared.bias_table), p.bias_table, table, barrier);
}

// Two channels of one column of a segment: the output if the segment is all there is, else its part of it.
template <DecodeConfig C>
__device__ __forceinline__ void store_merged(const DecodeParams& p, const Segment& segment, int segment_idx, int column,
                                             int channel, const PairState& merged, const OutputWriter<C>& writer) {
  if (segment.num_partials == 1) {
    const float out[2] = {merged.out.x, merged.out.y};
    writer.template store<2>(segment, column, channel, out, merged.max, merged.sum);
    return;
  }
  const size_t row = static_cast<size_t>(segment_idx) * p.columns + column;
  __stcg(reinterpret_cast<float2*>(p.partial_out + row * C.head_dim + channel), merged.out);
  if (channel == 0) __stcg(reinterpret_cast<float2*>(p.partial_state) + row, make_float2(merged.max, merged.sum));
}

// Barriers of the warp's stages, of the bias tables and of the peers' results.
template <DecodeConfig C>
__device__ __forceinline__ void init_barriers(const DecodeParams& p, std::byte* smem, uint32_t stages, int lane) {
  const uint32_t peer_barrier = ptx::shared_address(smem + p.shared.peer_barrier);
  if (p.cluster_shift > 0 && threadIdx.x == 0) {
    ptx::barrier_init(peer_barrier, 1);
    ptx::barrier_expect(peer_barrier, peer_bytes<C>(p));
  }
  if (lane < p.stages) ptx::barrier_init(stages + lane * 8, 1);
  if (C.prebias && threadIdx.x == 0) ptx::barrier_init(ptx::shared_address(smem + p.shared.bias_barrier), 1);
  ptx::barrier_init_visible();
  __syncwarp();
}

// One page in shared memory: scores, weights, values.
template <DecodeConfig C>
__device__ __forceinline__ void attend_page(const DecodeParams& p, const Segment& segment, int page, std::byte* page_at,
                                            const QueryFragments<C>& queries, float factor,
                                            const Scores<C>& bias_scores, LanePlace at, WarpState<C>& state) {
  Scores<C> scores;
  const bool at_edge =
      static_cast<uint32_t>(page - segment.full_begin) >= static_cast<uint32_t>(segment.full_end - segment.full_begin);
  if (at_edge) {
    const int valid = segment.seq_len - page * kPageSize;
    if (valid < kPageSize) clear_unused_slots<C>(page_at, valid, at);
  }
  const float* key_scales = reinterpret_cast<const float*>(page_at + C.block_bytes());
  score_page<C>(page_at, at, queries, scores);
  finish_scores<C>(p, key_scales, factor, bias_scores, at, scores);
  if (at_edge) mask_scores<C>(p, segment, page * kPageSize, at, scores, state);
  weigh_page<C>(key_scales + (C.k_dynamic ? kPageSize : 0), at, scores, state);
  add_values<C>(page_at + C.k_block_bytes(), at, scores, state);
}

// After gather_warps: the segment's output, or its partial results and the heads that are then complete. late_slot: a
// segment whose head this CTA was the last to arrive at, and has yet to finish; -1: none.
template <DecodeConfig C>
__device__ __forceinline__ void end_segment(const DecodeParams& p, Segment segment, int segment_idx, bool is_last,
                                            const MergeSlots& slots, int& late_slot, const OutputWriter<C>& writer) {
  const int late = late_slot;
  for (int e = threadIdx.x; e < columns_of(p, segment) * (C.head_dim / 2); e += blockDim.x) {
    const int column = e / (C.head_dim / 2), channel = e % (C.head_dim / 2) * 2;
    const PairState merged = merge_slots<C>(slots, p.columns, column, channel);
    store_merged<C>(p, segment, segment_idx, column, channel, merged, writer);
  }
  __syncthreads();
  if (threadIdx.x == (segment_idx & (kMergeStep - 1)) * 32) {  // not always the same warp
    const bool arrived_last = segment.num_partials > 1 && arrive_last(p, segment);
    late_slot = arrived_last ? segment_idx : -1;
  }
  int last = -1;
  if (is_last && segment.num_partials > 1) {
    __syncthreads();
    last = late_slot;
  }
  // Stage 5: heads that this CTA has to finish: at its end the present one, and one that it was the last to arrive at
  // a segment ago, so that no warp waited for the count.
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    if ((round == 0 ? last : late) < 0) continue;
    if (round == 1) segment = PageLoader<C>::load_segment(p.segments + late);
    finish_head<C>(p, segment, slots.out, writer);
  }
}

template <uint32_t kCode>
__global__ void __launch_bounds__(DecodeConfig::from_code(kCode).max_warps() * 32, 1)
    decode_kernel(const __grid_constant__ DecodeParams p) {
  constexpr DecodeConfig C = DecodeConfig::from_code(kCode);
  extern __shared__ __align__(1024) std::byte smem[];
  const int warp = static_cast<int>(ptx::keep_in_register(threadIdx.x / 32)), warps = blockDim.x / 32;
  const LanePlace at(static_cast<int>(ptx::keep_in_register(threadIdx.x % 32)));
  std::byte* ring = smem + p.shared.ring + warp * p.stages * C.stage_bytes();
  const uint32_t barriers = ptx::shared_address(smem + p.shared.barriers) + warp * p.stages * 8;
  const MergeSlots slots{p.shared.merge_slots, reinterpret_cast<float2*>(smem + p.shared.merge_state),
                         reinterpret_cast<float*>(smem + p.shared.merge_out)};
  auto& late_slot = *reinterpret_cast<int*>(smem + p.shared.late);
  const BiasTables tables(smem, p.shared);
  const uint32_t table_barrier = ptx::shared_address(smem + p.shared.bias_barrier);
  const uint32_t peer_barrier = ptx::shared_address(smem + p.shared.peer_barrier);

  // Stage 1: the first segment, barriers, the first pages on their way. Pages that hold keys of this step wait for the
  // kernels before this one; older pages, the plan and the cosine table do not change under them.
  const WarpRecord& record = p.records[blockIdx.x * warps + warp];
  const int4 range = __ldg(reinterpret_cast<const int4*>(&record));  // segment_begin, segment_end, page_begin, page_end
  Segment segment = PageLoader<C>::load_segment(&record.first);
  const int first_ids = __ldg(&record.page_ids[at.lane]);
  if (threadIdx.x == 0) late_slot = -1;
  init_barriers<C>(p, smem, barriers, at.lane);
  if (p.cluster_shift > 0) ptx::cluster_arrive_relaxed();
  if constexpr (C.prebias) __syncthreads();  // before a warp waits for the tables
  const int segment_begin = range.x, segment_end = range.y;
  if (segment_begin == segment_end) return;
  PageLoader<C> loader(p, ptx::shared_address(ring), barriers, warp, at.lane);
  loader.begin_first(segment, range, first_ids);
  const int early = min(min(range.w, segment.query_pos / kPageSize) - range.z, p.stages);
  if (C.prebias && threadIdx.x == 0) load_bias_tables(p, smem, table_barrier);
  // Queries and scales ahead of the pages: answers come in order, and behind the pages they would take microseconds.
  QueryWords<C> words;
  float2 scales = {1.0F, 1.0F};
  if (!p.overlaps) load_inputs<C>(p, segment, at, words, scales);
#pragma unroll 1
  for (int i = 0; i < p.stages; ++i) {
    if (p.overlaps && i >= early) ptx::wait_for_previous_kernel();
    loader.issue();
  }
  if (p.overlaps) {
    ptx::wait_for_previous_kernel();
    ptx::allow_next_kernel();
    load_inputs<C>(p, segment, at, words, scales);
  }

  QueryFragments<C> queries;
  convert_queries<C>(p, segment, at, words, queries);
  const float factor = scales.x * p.softmax_scale_log2 * (C.key != DType::kBF16 && p.q_is_bf16 ? kQueryUnit : 1.0F);
  const OutputWriter<C> writer{p, scales.y};
  if constexpr (C.fast_bias) {
    prepare_fast_bias<C>(p, segment, tables);
    __syncthreads();
  }
  if constexpr (C.prebias) ptx::barrier_wait(table_barrier, 0);

  int stage = 0;
  uint32_t parity = 0, stage_at = ptx::keep_in_register(ptx::shared_address(ring)),
           barrier = ptx::keep_in_register(barriers);
#pragma unroll 1
  for (int segment_idx = segment_begin; segment_idx < segment_end; ++segment_idx) {
    const bool is_last = segment_idx + 1 == segment_end;
    // Stage 2: this warp's pages.
    WarpState<C> state;
    state.clear();
    BiasState<C> bias;
    const int page_end =
        static_cast<int>(ptx::keep_in_register(static_cast<uint32_t>(PageLoader<C>::share_of(p, segment, warp + 1))));
#pragma unroll 1
    for (int page = PageLoader<C>::share_of(p, segment, warp); page < page_end; ++page) {
      Scores<C> bias_scores;
      if constexpr (C.prebias)
        bias.score(p, tables, smem + p.shared.bias_table, segment, queries, page, at, bias_scores);
      ptx::barrier_wait(barrier, parity);
      attend_page<C>(p, segment, page, static_cast<std::byte*>(__cvta_shared_to_generic(stage_at)), queries, factor,
                     bias_scores, at, state);
      __syncwarp();
      stage_at += C.stage_bytes();
      barrier += 8;
      if (++stage == p.stages) {
        stage = 0;
        parity ^= 1;
        stage_at -= p.stages * C.stage_bytes();
        barrier -= p.stages * 8;
      }
      loader.issue();
    }
    const Segment next = is_last ? segment : PageLoader<C>::load_segment(p.segments + segment_idx + 1);
    // Stage 3: the warps become one result; products of the next segment's fast pairs are made beside it.
    gather_warps<C>(state, warp, warps, p.columns, at, slots);
    if constexpr (C.fast_bias) {
      if (!is_last) prepare_fast_bias<C>(p, next, tables);
    }
    // Stage 4: out, or partial results and the last arriver.
    if (p.cluster_shift > 0) {
      const PeerSlots peers{reinterpret_cast<float2*>(smem + p.shared.peer_state),
                            reinterpret_cast<float2*>(smem + p.shared.peer_out), peer_barrier};
      merge_cluster<C>(p, segment, slots, peers, writer);
      return;  // a cluster's CTAs have one segment each
    }
    end_segment<C>(p, segment, segment_idx, is_last, slots, late_slot, writer);
    if (!is_last) {
      load_query_words<C>(p, next, at, words);
      convert_queries<C>(p, next, at, words, queries);
    }
    segment = next;
  }
}

// The instances of one (key, value, head dim): the scale policies and the two column counts of every format there is.
template <DecodeConfig C>
DecodeInstance decode_instance() {
  return {C, reinterpret_cast<const void*>(&decode_kernel<C.code()>)};
}

// {k_dynamic, v_dynamic, prebias, fast_bias} of one instance.
struct InstancePolicy {
  bool k_dynamic, v_dynamic, prebias, fast_bias;
};

template <DType key, DType value, int32_t head_dim, InstancePolicy... policies>
std::vector<DecodeInstance> decode_instances() {
  return {decode_instance<DecodeConfig{key, value, policies.k_dynamic, policies.v_dynamic, policies.prebias,
                                       policies.fast_bias, head_dim, 1}>()...,
          decode_instance<DecodeConfig{key, value, policies.k_dynamic, policies.v_dynamic, policies.prebias,
                                       policies.fast_bias, head_dim, 2}>()...};
}

template <DType key, DType value, int32_t head_dim>
std::vector<DecodeInstance> decode_family() {
  using Policy = InstancePolicy;
  constexpr Policy kNoneDynamic{false, false, false, false}, kAllDynamic{true, true, false, false};
  if constexpr (dtype_bytes(key) == 2 && dtype_bytes(value) == 2) {
    return decode_instances<key, value, head_dim, kNoneDynamic>();
  } else if constexpr (dtype_bytes(key) == 2) {
    return decode_instances<key, value, head_dim, kNoneDynamic, Policy{false, true, false, false}>();
  } else if constexpr (dtype_bytes(value) == 2) {
    return decode_instances<key, value, head_dim, kNoneDynamic, Policy{true, false, false, false}>();
  } else {  // INT8 keys have dynamic scales only
    constexpr bool kDynamicKeys = key == DType::kI8;
    return decode_instances<key, value, head_dim, Policy{kDynamicKeys, false, false, false}, kAllDynamic,
                            Policy{kDynamicKeys, false, true, false}, Policy{true, true, true, false},
                            Policy{kDynamicKeys, false, true, true}, Policy{true, true, true, true}>();
  }
}

}  // namespace asymkv::cuda
