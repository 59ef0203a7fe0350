#pragma once

#include "asymkv/kernels/cuda/fragments.cuh"

// Partial softmax states become one: warps of a CTA through shared memory, CTAs of one (sequence, KV head) over a
// cluster or by the last one to arrive. A state is (max in log2 units, sum, out); the empty one has max -inf and sum 0.
namespace asymkv::cuda {

// The max under which states are weighed: an empty state then weighs 2^-inf = 0, also when all are empty.
__device__ __forceinline__ float finite_max(float common) {
  return common == -INFINITY ? 0.0F : common;
}
// Weight of a state with max `max`; common comes from finite_max.
__device__ __forceinline__ float merge_weight(float max, float common) {
  return ptx::exp2_approx(max - common);
}

// Where the merged result of one query goes.
template <DecodeConfig C>
struct OutputWriter {
  const DecodeParams& p;
  float value_scale;  // the fixed one, else 1

  // N consecutive channels of one column. A sink joins the denominator here, once per column.
  template <int N>
  __device__ __forceinline__ void store(const Segment& segment, int column, int channel, const float (&out)[N],
                                        float max, float sum) const {
    const int row = first_row(p, segment) + row_of(p, column);
    float keep = value_scale;
    if (p.sinks != nullptr) {
      constexpr float kLog2E = 1.44269504088896F;
      const int head = segment.kv_head * p.group + column - token_of(p, column) * p.group;
      const float sink = p.sinks[head] * kLog2E, common = fmaxf(max, sink), base = finite_max(common);
      const float mine = merge_weight(max, base);
      sum = sum * mine + merge_weight(sink, base);
      keep *= mine;
      max = common;
    }
    const float factor = sum > 0.0F ? __fdividef(keep, sum) : 0.0F;
    uint32_t packed[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const float low = out[2 * i] * factor, high = out[2 * i + 1] * factor;
      packed[i] = p.q_is_bf16 ? ptx::pack_16bit<true>(low, high) : ptx::pack_16bit<false>(low, high);
    }
    auto* at = static_cast<uint16_t*>(p.out) + static_cast<size_t>(row) * C.head_dim + channel;
    if constexpr (N == 2) {
      *reinterpret_cast<uint32_t*>(at) = packed[0];
    } else {
      *reinterpret_cast<uint2*>(at) = make_uint2(packed[0], packed[1]);
    }
    constexpr float kLn2 = 0.693147180559945F;
    if (p.lse != nullptr && channel == 0) p.lse[row] = sum > 0.0F ? (max + log2f(sum)) * kLn2 : -INFINITY;
  }
};

// Shared-memory side by side of the warps' states.
struct MergeSlots {
  int count;      // a multiple of kMergeStep, at most the warps
  float2* state;  // [slot][column] {max, sum}
  float* out;     // [slot][column][head_dim + 4]
};

template <DecodeConfig C>
inline constexpr int kMergeRow = C.head_dim + 4;  // padded: lanes of a quad row hit different banks

template <DecodeConfig C>
__device__ __forceinline__ void put_state(const WarpState<C>& state, int slot, int columns, LanePlace at,
                                          const MergeSlots& slots) {
#pragma unroll
  for (int tile = 0; tile < C.column_tiles; ++tile) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = tile * kColumnsPerTile + 2 * at.quad + j;
      if (column < columns) {
        float* row = slots.out + (slot * columns + column) * kMergeRow<C> + at.row;
#pragma unroll
        for (int i = 0; i < C.head_dim / 16; ++i) {
          row[16 * i] = state.out[tile][i][j];
          row[16 * i + 8] = state.out[tile][i][j + 2];
        }
      }
      if (at.row == 0) slots.state[slot * C.columns() + column] = make_float2(state.max[tile][j], state.sum[tile][j]);
    }
  }
}

template <DecodeConfig C>
__device__ __forceinline__ void absorb_state(WarpState<C>& state, int slot, int columns, LanePlace at,
                                             const MergeSlots& slots) {
#pragma unroll
  for (int tile = 0; tile < C.column_tiles; ++tile) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = tile * kColumnsPerTile + 2 * at.quad + j;
      const float2 other = slots.state[slot * C.columns() + column];
      const float common = fmaxf(state.max[tile][j], other.x);
      const float base = finite_max(common);
      const float mine = merge_weight(state.max[tile][j], base), theirs = merge_weight(other.x, base);
      state.max[tile][j] = common;
      state.sum[tile][j] = state.sum[tile][j] * mine + other.y * theirs;
      if (column < columns) {
        const float* row = slots.out + (slot * columns + column) * kMergeRow<C> + at.row;
#pragma unroll
        for (int i = 0; i < C.head_dim / 16; ++i) {
          state.out[tile][i][j] = state.out[tile][i][j] * mine + row[16 * i] * theirs;
          state.out[tile][i][j + 2] = state.out[tile][i][j + 2] * mine + row[16 * i + 8] * theirs;
        }
      }
    }
  }
}

// Leaves the states of all warps in the slots; ends with a CTA barrier.
template <DecodeConfig C>
__device__ __forceinline__ void gather_warps(WarpState<C>& state, int warp, int warps, int columns, LanePlace at,
                                             const MergeSlots& slots) {
#pragma unroll
  for (int tile = 0; tile < C.column_tiles; ++tile) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) state.sum[tile][j] += __shfl_xor_sync(~0U, state.sum[tile][j], step);
    }
  }
  for (int begin = (warps - 1) / slots.count * slots.count; begin > 0; begin -= slots.count) {  // more warps than slots
    if (warp >= begin && warp < begin + slots.count) put_state<C>(state, warp - begin, columns, at, slots);
    __syncthreads();
    if (warp < slots.count && warp + begin < warps) absorb_state<C>(state, warp, columns, at, slots);
    __syncthreads();
  }
  if (warp < slots.count) put_state<C>(state, warp, columns, at, slots);
  __syncthreads();
}

// Two channels of one query over all slots.
struct PairState {
  float max, sum;
  float2 out;
};

template <DecodeConfig C>
__device__ __forceinline__ PairState merge_slots(const MergeSlots& slots, int columns, int column, int channel) {
  PairState merged{-INFINITY, 0.0F, {0.0F, 0.0F}};
  for (int first = 0; first < slots.count; first += kMergeStep) {
    float2 states[kMergeStep], outs[kMergeStep];
#pragma unroll
    for (int i = 0; i < kMergeStep; ++i) {
      states[i] = slots.state[(first + i) * C.columns() + column];
      outs[i] = *reinterpret_cast<const float2*>(slots.out + ((first + i) * columns + column) * kMergeRow<C> + channel);
    }
    float top = merged.max;
#pragma unroll
    for (int i = 0; i < kMergeStep; ++i) top = fmaxf(top, states[i].x);
    const float base = finite_max(top), keep = merge_weight(merged.max, base);
    merged = {top, merged.sum * keep, {merged.out.x * keep, merged.out.y * keep}};
#pragma unroll
    for (int i = 0; i < kMergeStep; ++i) {
      const float weight = merge_weight(states[i].x, base);
      merged.sum = fmaf(states[i].y, weight, merged.sum);
      merged.out.x = fmaf(outs[i].x, weight, merged.out.x);
      merged.out.y = fmaf(outs[i].y, weight, merged.out.y);
    }
  }
  return merged;
}

// --- over a cluster: every CTA sends slice r of its result to rank r, which merges and stores it
struct PeerSlots {
  float2* state;  // [rank][column] {max, sum}
  float2* out;    // [rank][slice]
  uint32_t barrier;
};

// Slices as of the largest query tile: all ranks agree, and the columns that a smaller tile lacks are not stored.
template <DecodeConfig C>
__device__ __forceinline__ int peer_slice(const DecodeParams& p) {
  return p.columns * (C.head_dim / 2) >> p.cluster_shift;
}
// What a rank receives from all of them, itself included.
template <DecodeConfig C>
__device__ __forceinline__ uint32_t peer_bytes(const DecodeParams& p) {
  return static_cast<uint32_t>(((peer_slice<C>(p) + p.columns) << p.cluster_shift) * sizeof(float2));
}

template <DecodeConfig C>
__device__ __forceinline__ void merge_cluster(const DecodeParams& p, const Segment& segment, const MergeSlots& slots,
                                              const PeerSlots& peers, const OutputWriter<C>& writer) {
  const int ranks = 1 << p.cluster_shift, pairs = p.columns * (C.head_dim / 2), slice = peer_slice<C>(p);
  const int rank = static_cast<int>(ptx::cluster_rank());
  ptx::cluster_wait();  // the peers have started: their shared memory may be written
  // owner = e / slice without a division.
  const float per_slice = 1.0F / static_cast<float>(slice);
  for (int e = threadIdx.x; e < pairs; e += blockDim.x) {
    const int column = e / (C.head_dim / 2), pair = e % (C.head_dim / 2);
    const int owner = static_cast<int>((static_cast<float>(e) + 0.5F) * per_slice);
    const PairState merged = merge_slots<C>(slots, p.columns, column, 2 * pair);
    ptx::send_peer(ptx::shared_address(peers.out + rank * slice + (e - owner * slice)), peers.barrier, owner,
                   merged.out);
    if (pair < ranks)
      ptx::send_peer(ptx::shared_address(peers.state + rank * p.columns + column), peers.barrier, pair,
                     make_float2(merged.max, merged.sum));
  }
  ptx::barrier_wait_cluster(peers.barrier, 0);
  for (int e = threadIdx.x; e < slice; e += blockDim.x) {
    const int whole = rank * slice + e, column = whole / (C.head_dim / 2), channel = whole % (C.head_dim / 2) * 2;
    constexpr int kMostRanks = 16;
    float2 states[kMostRanks], parts[kMostRanks];  // all loads before the first use
#pragma unroll
    for (int r = 0; r < kMostRanks; ++r) {
      const bool is_there = r < ranks;
      states[r] = is_there ? peers.state[r * p.columns + column] : make_float2(-INFINITY, 0.0F);
      parts[r] = is_there ? peers.out[r * slice + e] : make_float2(0.0F, 0.0F);
    }
    float common = -INFINITY, sum = 0.0F, out[2] = {0.0F, 0.0F};
#pragma unroll
    for (int r = 0; r < kMostRanks; ++r) common = fmaxf(common, states[r].x);
    const float base = finite_max(common);
#pragma unroll
    for (int r = 0; r < kMostRanks; ++r) {
      const float weight = merge_weight(states[r].x, base);
      sum = fmaf(states[r].y, weight, sum);
      out[0] = fmaf(parts[r].x, weight, out[0]);
      out[1] = fmaf(parts[r].y, weight, out[1]);
    }
    if (column < columns_of(p, segment)) writer.template store<2>(segment, column, channel, out, common, sum);
  }
}

// --- through global memory: the last CTA to arrive reads all partial results of its (sequence, KV head)

// Four channels of one query over the partials first, first + step, ...
template <DecodeConfig C>
struct QuadState {
  float max = -INFINITY, sum = 0.0F;
  float out[4] = {0.0F, 0.0F, 0.0F, 0.0F};

  // States one after the other; the maxes first, so that there is one rescale for all of them.
  template <int kCount>
  __device__ __forceinline__ void add(const float2 (&states)[kCount], const float4 (&outs)[kCount]) {
    const float before = max;
#pragma unroll
    for (int i = 0; i < kCount; ++i) max = fmaxf(max, states[i].x);
    const float base = finite_max(max), mine = merge_weight(before, base);
    sum *= mine;
#pragma unroll
    for (int c = 0; c < 4; ++c) out[c] *= mine;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float weight = merge_weight(states[i].x, base);
      sum = fmaf(states[i].y, weight, sum);
      out[0] = fmaf(outs[i].x, weight, out[0]);
      out[1] = fmaf(outs[i].y, weight, out[1]);
      out[2] = fmaf(outs[i].z, weight, out[2]);
      out[3] = fmaf(outs[i].w, weight, out[3]);
    }
  }

  // Reads kInFlight partials at a time, all loads before the first use.
  template <int kInFlight>
  __device__ __forceinline__ void add_partials(const DecodeParams& p, const Segment& segment, int column, int channel,
                                               int begin, int step) {
    for (int k = begin; k < segment.num_partials; k += step * kInFlight) {
      float2 states[kInFlight];
      float4 outs[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        states[i] = make_float2(-INFINITY, 0.0F);
        outs[i] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
        const int partial = k + i * step;
        if (partial < segment.num_partials) {
          const size_t row = static_cast<size_t>(segment.first_partial + partial) * p.columns + column;
          states[i] = __ldcg(reinterpret_cast<const float2*>(p.partial_state) + row);
          outs[i] = __ldcg(reinterpret_cast<const float4*>(p.partial_out + row * C.head_dim + channel));
        }
      }
      add(states, outs);
    }
  }
};

// Counts a segment whose partial results all threads of the CTA have stored before a barrier. True for the last of its
// head. One thread.
__device__ __forceinline__ bool arrive_last(const DecodeParams& p, const Segment& segment) {
  int32_t* counter = p.arrivals + segment.first_partial;
  if (ptx::arrive(counter) != segment.num_partials - 1) return false;
  *counter = 0;
  return true;
}

// Output of a head from its partial results, after a barrier behind arrive_last(). The whole CTA: up to four thread
// groups share the partials of each element. Ends with a barrier, so that `scratch` is free.
template <DecodeConfig C>
__device__ __forceinline__ void finish_head(const DecodeParams& p, const Segment& segment, float* scratch,
                                            const OutputWriter<C>& writer) {
  const int elems = columns_of(p, segment) * (C.head_dim / 4), warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int shift = (warps & 3) != 0                            ? 0
                    : elems * 4 <= static_cast<int>(blockDim.x) ? 2
                    : elems * 2 <= static_cast<int>(blockDim.x) ? 1
                                                                : 0;
  const int shares = 1 << shift, threads = (warps >> shift) * 32;  // a share has whole warps
  for (int begin = 0; begin < elems; begin += threads) {
    const int share = warp & (shares - 1), e = begin + (warp >> shift) * 32 + threadIdx.x % 32;
    const int column = e / (C.head_dim / 4), channel = e % (C.head_dim / 4) * 4;
    const bool active = e < elems;
    QuadState<C> total;
    if (active) total.template add_partials<8>(p, segment, column, channel, share, shares);
    if (active && share > 0) {
      float* to = scratch + ((share - 1) * elems + e) * 6;
      to[0] = total.max, to[1] = total.sum;
#pragma unroll
      for (int i = 0; i < 4; ++i) to[2 + i] = total.out[i];
    }
    __syncthreads();
    if (active && share == 0) {
      for (int s = 1; s < shares; ++s) {
        const float* from = scratch + ((s - 1) * elems + e) * 6;
        const float2 state[1] = {{from[0], from[1]}};
        const float4 part[1] = {make_float4(from[2], from[3], from[4], from[5])};
        total.add(state, part);
      }
      writer.template store<4>(segment, column, channel, total.out, total.max, total.sum);
    }
    __syncthreads();
  }
}

}  // namespace asymkv::cuda
