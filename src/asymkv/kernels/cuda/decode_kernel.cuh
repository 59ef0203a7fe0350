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
// page ids, which lie one a lane.
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
  __device__ __forceinline__ void begin_first(const Segment& s, int4 range, int ids) {
    segment_idx_ = range.x;
    segment_end_ = range.y;
    begin(s, range.z, range.w);
    ids_ = ids;
  }
  __device__ __forceinline__ void begin(const Segment& s, int page_begin, int page_end) {
    page_ = ids_base_ = page_begin;
    end_ = page_end;
    row_ = p_.page_table + s.page_row;
    blocks_ = p_.blocks + static_cast<size_t>(s.kv_head) * C.block_bytes();
    if constexpr (C.scale_bytes() > 0) scales_ = p_.scales + static_cast<size_t>(s.kv_head) * C.scale_bytes();
    next_ids_ = load_id(ids_base_ + kRecordPages);
  }

  // Loads the next page into the next stage, if any page is left.
  __device__ __forceinline__ void issue() {
    while (page_ >= end_) {
      if (segment_idx_ + 1 >= segment_end_) return;
      ++segment_idx_;
      const Segment s = load_segment(p_.segments + segment_idx_);
      begin(s, share_of(p_, s, warp_), share_of(p_, s, warp_ + 1));
      ids_ = load_id(ids_base_);
    }
    const size_t id = static_cast<size_t>(__shfl_sync(~0U, ids_, (page_ - ids_base_) & 31)) * p_.num_kv_heads;
    if (lane_ == 0) {
      ptx::barrier_expect(barrier_, C.block_bytes() + C.scale_bytes());
      ptx::bulk_load(to_, blocks_ + id * C.block_bytes(), C.block_bytes(), barrier_, policy_);
      if constexpr (C.scale_bytes() > 0)
        ptx::bulk_load(to_ + C.block_bytes(), scales_ + id * C.scale_bytes(), C.scale_bytes(), barrier_);
    }
    to_ += C.stage_bytes();
    barrier_ += 8;
    if (++stage_ == p_.stages) {
      stage_ = 0;
      to_ -= p_.stages * C.stage_bytes();
      barrier_ -= p_.stages * 8;
    }
    if (++page_ - ids_base_ == kRecordPages) {
      ids_ = next_ids_;
      ids_base_ += kRecordPages;
      next_ids_ = load_id(ids_base_ + kRecordPages);
    }
  }

  static __device__ __forceinline__ Segment load_segment(const Segment* from) {
    const int4 a = __ldg(reinterpret_cast<const int4*>(from)), b = __ldg(reinterpret_cast<const int4*>(from) + 1);
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  }

 private:
  __device__ __forceinline__ int load_id(int first) const {
    return first + lane_ < end_ ? __ldg(row_ + first + lane_) : 0;
  }

  const DecodeParams& p_;
  uint32_t to_, barrier_;  // of the next stage, in shared memory
  int warp_, lane_;
  int segment_idx_ = 0, segment_end_ = 0;
  uint64_t policy_;
  int page_ = 0, end_ = 0, ids_base_ = 0, stage_ = 0;
  int ids_ = 0, next_ids_ = 0;
  const int32_t* row_ = nullptr;
  const std::byte* blocks_ = nullptr;
  const std::byte* scales_ = nullptr;
};

// Scales, bias and penalty of one page: raw products become logits in log2 units.
template <DecodeConfig C>
__device__ __forceinline__ void finish_scores(const float* key_scales, float factor, RowPenalty penalty,
                                              const WindowBias<C>& bias, int slot_in_window, LanePlace at,
                                              Scores<C>& scores) {
  float upper = factor, lower = factor;
  if constexpr (C.k_dynamic) {
    upper *= key_scales[at.row];
    lower *= key_scales[at.row + 8];
  }
#pragma unroll
  for (int tile = 0; tile < C.column_tiles; ++tile) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      scores[tile][j] = fmaf(scores[tile][j], upper, penalty.upper);
      scores[tile][j + 2] = fmaf(scores[tile][j + 2], lower, penalty.lower);
      if constexpr (C.prebias) {
        constexpr float kHalfWindow = kWindowPages * kPageSize / 2;
        const float x = static_cast<float>(slot_in_window + at.row) * (1.0F / kHalfWindow) - 1.0F;
        scores[tile][j] += bias.at(tile, j, x);
        scores[tile][j + 2] += bias.at(tile, j, x + 8.0F / kHalfWindow);
      }
    }
  }
}

// One page that lies in shared memory.
template <DecodeConfig C>
__device__ __forceinline__ void attend_page(std::byte* stage, int valid, int slot_in_window, float factor, LanePlace at,
                                            const QueryFragments<C>& queries, const WindowBias<C>& bias,
                                            WarpState<C>& state) {
  RowPenalty penalty;
  if (valid < kPageSize) penalty = clear_unused_slots<C>(stage, valid, at);
  const float* key_scales = reinterpret_cast<const float*>(stage + C.block_bytes());
  const float* value_scales = key_scales + (C.k_dynamic ? kPageSize : 0);
  Scores<C> scores;
  score_page<C>(stage, at, queries, scores);
  finish_scores<C>(key_scales, factor, penalty, bias, slot_in_window, at, scores);
  weigh_page<C>(value_scales, at, scores, state);
  add_values<C>(stage + C.k_block_bytes(), at, scores, state);
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
  const BiasTables tables{
      reinterpret_cast<float*>(smem + p.shared.bias_coeffs), reinterpret_cast<float2*>(smem + p.shared.bias_products),
      reinterpret_cast<float2*>(smem + p.shared.bias_turns), reinterpret_cast<float*>(smem + p.shared.bias_half_step)};

  // Stage 1: the first segment, barriers, the first pages on their way.
  const WarpRecord& record = p.records[blockIdx.x * warps + warp];
  const int4 range = __ldg(reinterpret_cast<const int4*>(&record));  // segment_begin, segment_end, page_begin, page_end
  Segment segment = PageLoader<C>::load_segment(&record.first);
  const int first_ids = __ldg(&record.page_ids[at.lane]);
  if (p.cluster_shift > 0) ptx::cluster_arrive_relaxed();
  if (at.lane < p.stages) ptx::barrier_init(barriers + at.lane * 8, 1);
  ptx::barrier_init_visible();
  __syncwarp();
  const int segment_begin = range.x, segment_end = range.y;
  PageLoader<C> loader(p, ptx::shared_address(ring), barriers, warp, at.lane);
  loader.begin_first(segment, range, first_ids);
#pragma unroll 1
  for (int i = 0; i < p.stages; ++i) loader.issue();

  float factor = p.softmax_scale_log2, value_scale = 1.0F;
  if constexpr (C.k_bytes() == 1 && !C.k_dynamic) factor *= __ldg(p.fixed_scales);
  if constexpr (C.v_bytes() == 1 && !C.v_dynamic) value_scale = __ldg(p.fixed_scales + 1);
  if constexpr (C.key != DType::kBF16) factor *= p.q_is_bf16 ? kQueryUnit : 1.0F;
  const OutputWriter<C> writer{p, value_scale};
  const auto* q = static_cast<const uint16_t*>(p.q);
  auto queries_of = [&](const Segment& s) {
    return q + static_cast<size_t>(s.sequence * p.num_kv_heads + s.kv_head) * p.group * C.head_dim;
  };
  if constexpr (C.prebias) {
    if (segment.page_end > segment.page_begin) prepare_bias<C>(p, segment, queries_of(segment), tables);
    __syncthreads();
    if (segment.page_end > segment.page_begin) finish_bias<C>(p, segment, tables);
    __syncthreads();
  }

  int stage = 0;
  uint32_t parity = 0, stage_at = ptx::keep_in_register(ptx::shared_address(ring)),
           barrier = ptx::keep_in_register(barriers);
#pragma unroll 1
  for (int segment_idx = segment_begin; segment_idx < segment_end; ++segment_idx) {
    const bool is_last = segment_idx + 1 == segment_end;
    if (!is_last) {  // the next segment's queries into L1, while this one is attended to
      const Segment next = PageLoader<C>::load_segment(p.segments + segment_idx + 1);
      const int lines = p.group * C.head_dim * 2 / 128;
      if (static_cast<int>(threadIdx.x) < lines) ptx::touch_l1(queries_of(next) + threadIdx.x * 64);
    }
    // Stage 2: this warp's pages.
    QueryFragments<C> queries;
    load_queries<C>(queries_of(segment), p.group, p.q_is_bf16, at, queries);
    WarpState<C> state;
    state.clear();
    WindowBias<C> bias;
    int window = -1;
    const int page_end =
        static_cast<int>(ptx::keep_in_register(static_cast<uint32_t>(PageLoader<C>::share_of(p, segment, warp + 1))));
#pragma unroll 1
    for (int page = PageLoader<C>::share_of(p, segment, warp); page < page_end; ++page) {
      if constexpr (C.prebias) {
        if (page / kWindowPages != window) {
          window = page / kWindowPages;
          bias.load(tables.coeffs, window - segment.page_begin / kWindowPages, p.group, at);
        }
      }
      ptx::barrier_wait(barrier, parity);
      attend_page<C>(static_cast<std::byte*>(__cvta_shared_to_generic(stage_at)), segment.seq_len - page * kPageSize,
                     (page % kWindowPages) * kPageSize, factor, at, queries, bias, state);
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
    // Stage 3: the warps become one result; the next segment's bias is made beside it.
    if constexpr (C.prebias) {  // writes nothing that the page loop reads: the coefficients come after the barrier
      if (!is_last && next.page_end > next.page_begin) prepare_bias<C>(p, next, queries_of(next), tables);
    }
    gather_warps<C>(state, warp, warps, p.group, at, slots);
    if constexpr (C.prebias) {
      if (!is_last && next.page_end > next.page_begin) finish_bias<C>(p, next, tables);
    }
    // Stage 4: out, or partial results and the last arriver.
    if (p.cluster_shift > 0) {
      const PeerSlots peers{reinterpret_cast<float2*>(smem + p.shared.peer_state),
                            reinterpret_cast<float2*>(smem + p.shared.peer_out)};
      merge_cluster<C>(p, segment, slots, peers, writer);
      return;  // a cluster's CTAs have one segment each
    }
    for (int e = threadIdx.x; e < p.group * (C.head_dim / 2); e += blockDim.x) {
      const int column = e / (C.head_dim / 2), channel = e % (C.head_dim / 2) * 2;
      const PairState merged = merge_slots<C>(slots, p.group, column, channel);
      if (segment.num_partials == 1) {
        const float out[2] = {merged.out.x, merged.out.y};
        writer.template store<2>(segment.sequence, segment.kv_head * p.group + column, channel, out, merged.max,
                                 merged.sum);
      } else {
        const size_t row = static_cast<size_t>(segment_idx) * p.group + column;
        __stcg(reinterpret_cast<float2*>(p.partial_out + row * C.head_dim + channel), merged.out);
        if (channel == 0) __stcg(reinterpret_cast<float2*>(p.partial_state) + row, make_float2(merged.max, merged.sum));
      }
    }
    __syncthreads();
    if (segment.num_partials > 1) {
      if (is_last) {
        finish_by_cta<C>(p, segment, slots.out, reinterpret_cast<int*>(smem + p.shared.flag), writer);
      } else if (warp == segment_idx % warps) {
        finish_by_warp<C>(p, segment, at.lane, writer);
      }
    }
    segment = next;
  }
}

// The instances of one (key, value, head dim): the scale policies and the two column counts of every format there is.
template <DecodeConfig C>
DecodeInstance decode_instance() {
  return {C, reinterpret_cast<const void*>(&decode_kernel<C.code()>)};
}

// {k_dynamic, v_dynamic, prebias} of one instance.
struct ScalePolicy {
  bool k_dynamic, v_dynamic, prebias;
};

template <DType key, DType value, int32_t head_dim, ScalePolicy... policies>
std::vector<DecodeInstance> decode_instances() {
  return {decode_instance<DecodeConfig{key, value, policies.k_dynamic, policies.v_dynamic, policies.prebias, head_dim,
                                       1}>()...,
          decode_instance<DecodeConfig{key, value, policies.k_dynamic, policies.v_dynamic, policies.prebias, head_dim,
                                       2}>()...};
}

template <DType key, DType value, int32_t head_dim>
std::vector<DecodeInstance> decode_family() {
  constexpr ScalePolicy kNoneDynamic{false, false, false}, kAllDynamic{true, true, false};
  if constexpr (dtype_bytes(key) == 2 && dtype_bytes(value) == 2) {
    return decode_instances<key, value, head_dim, kNoneDynamic>();
  } else if constexpr (dtype_bytes(key) == 2) {
    return decode_instances<key, value, head_dim, kNoneDynamic, ScalePolicy{false, true, false}>();
  } else if constexpr (dtype_bytes(value) == 2) {
    return decode_instances<key, value, head_dim, kNoneDynamic, ScalePolicy{true, false, false}>();
  } else if constexpr (key == DType::kE4M3) {
    return decode_instances<key, value, head_dim, kNoneDynamic, kAllDynamic, ScalePolicy{false, false, true},
                            ScalePolicy{true, true, true}>();
  } else {  // INT8 keys have dynamic scales only
    return decode_instances<key, value, head_dim, ScalePolicy{true, false, false}, kAllDynamic,
                            ScalePolicy{true, false, true}, ScalePolicy{true, true, true}>();
  }
}

}  // namespace asymkv::cuda
