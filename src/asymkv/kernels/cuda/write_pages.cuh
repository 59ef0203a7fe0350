#pragma once

#include <type_traits>

#include "asymkv/kernels/cuda/ptx.cuh"
#include "asymkv/kernels/cuda/quotient.h"
#include "asymkv/kernels/cuda/write_rows.cuh"

// The writer's page path. One CTA writes one whole page of a few KV heads: the 16 rows of keys, values and angles come
// in by bulk copies, one warp turns and encodes one side of one head, and every lane holds exactly the elements of its
// own 16-byte pieces of the tiled order, so that no byte goes through shared memory on its way out.
namespace asymkv::cuda {

template <DType native_, DType key_, DType value_, int kHeadDim_>
struct PageShape {
  static constexpr DType native = native_, key = key_, value = value_;
  static constexpr int kHeadDim = kHeadDim_, kHalf = kHeadDim / 2;
  static constexpr int kSteps = kHeadDim / 16, kHalfSteps = kHalf / 16;
  static constexpr bool kBf16 = native == DType::kBF16, kWideKey = !kIs8Bit<key>, kWideValue = !kIs8Bit<value>;
  static constexpr bool kPages = kHalf % 16 == 0;  // else the two channels of a pair lie in different lanes
  static constexpr int kHeads = kHeadDim == 64 ? 8 : kHeadDim <= 128 ? 4 : 2;  // of one CTA
  static constexpr int kKeyBlock = kPageSize * kHeadDim * static_cast<int>(dtype_bytes(key));
  static constexpr int kBlock = kKeyBlock + kPageSize * kHeadDim * static_cast<int>(dtype_bytes(value));
  // Paddings put the rows that a warp reads together into different banks.
  static constexpr int kKeyStride = kHeads * kHeadDim * 2 + (kWideKey ? 16 : 32);
  static constexpr int kValueStride = kHeads * kHeadDim * 2 + 16;
  static constexpr int kAngleStride = kHalf * 4 + (kHalf * 4 % 128 == 0 ? (kWideKey ? 32 : 64) : kWideKey ? 96 : 0);
  // Byte offsets in shared memory.
  static constexpr int kKeys = 16, kValues = kKeys + kPageSize * kKeyStride;
  static constexpr int kCosines = kValues + kPageSize * kValueStride, kSines = kCosines + kPageSize * kAngleStride;
  static constexpr int kConstant = kSines + kPageSize * kAngleStride;  // [head][head_dim] bias - removed
  static constexpr int kNorm = kConstant + kHeads * kHeadDim * 4;      // [head_dim]
  static constexpr int kShared = kNorm + kHeadDim * 4;
};

// Four words of two 16-bit elements, as the lane's part of a 16 x 16 fragment.
struct Words {
  uint32_t at[4];
};

__device__ __forceinline__ Words load_fragment(uint32_t address) {
  Words w;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(w.at[0]), "=r"(w.at[1]), "=r"(w.at[2]), "=r"(w.at[3])
               : "r"(address)
               : "memory");
  return w;
}
__device__ __forceinline__ Words load_fragment_transposed(uint32_t address) {
  Words w;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(w.at[0]), "=r"(w.at[1]), "=r"(w.at[2]), "=r"(w.at[3])
               : "r"(address)
               : "memory");
  return w;
}

template <bool kBf16>
__device__ __forceinline__ float2 widen_2(uint32_t word) {
  if constexpr (kBf16) return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000U));
  return __half22float2(*reinterpret_cast<const __half2*>(&word));
}

// Running largest magnitude of pairs of 16-bit elements; NaN stays.
template <bool kBf16>
struct PairTop {
  using Pair = std::conditional_t<kBf16, __nv_bfloat162, __half2>;
  uint32_t bits = 0;
  __device__ __forceinline__ void see(uint32_t word) {
    const Pair top = __hmax2_nan(*reinterpret_cast<const Pair*>(&bits), __habs2(*reinterpret_cast<const Pair*>(&word)));
    bits = *reinterpret_cast<const uint32_t*>(&top);
  }
  // Over lanes whose numbers differ in the bits first, 2 first, ... last.
  __device__ __forceinline__ void join_lanes(int first, int last) {
#pragma unroll
    for (int step = first; step <= last; step *= 2) see(__shfl_xor_sync(~0U, bits, step));
  }
  __device__ __forceinline__ float2 values() const {
    return widen_2<kBf16>(bits);
  }
};

// NaN if either is.
__device__ __forceinline__ float larger(float a, float b) {
  return a >= b ? a : a < b ? b : a + b;
}

struct Divisor {
  float scale, reciprocal;
};
// What a row's elements are divided by; clears `ok` where the page path cannot encode the row. `top`: largest magnitude
// that is divided by it (with dynamic scales: of the whole row).
template <DType dtype>
__device__ __forceinline__ Divisor make_divisor(const float* fixed, bool dynamic, float top, bool& ok) {
  Divisor d = {1.0F, 1.0F};
  ok = ok && isfinite(top);
  if constexpr (kIs8Bit<dtype>) {
    d.scale = row_scale<dtype>(fixed, dynamic, top);
    d.reciprocal = __frcp_rn(d.scale);
    const float clear_of_edge = kEdge<dtype> * 0.999F;
    ok = ok && d.scale >= kMinQuotientScale && d.scale <= kMaxQuotientScale && top * d.reciprocal <= clear_of_edge;
  }
  return d;
}

// Four elements, already divided, to four bytes.
template <DType dtype>
__device__ __forceinline__ uint32_t encode_4(float a, float b, float c, float d) {
  if constexpr (dtype == DType::kE4M3) {
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
    return static_cast<uint32_t>(low) | static_cast<uint32_t>(high) << 16;
  } else {  // adding 1.5 * 2^23 leaves the rounded integer in the low byte
    auto rounded = [](float x) { return __float_as_uint(__fadd_rn(x, 12582912.0F)); };
    const uint32_t low = __byte_perm(rounded(a), rounded(b), 0x0040),
                   high = __byte_perm(rounded(c), rounded(d), 0x0040);
    return __byte_perm(low, high, 0x5410) ^ 0x80808080U;  // offset-binary
  }
}
__device__ __forceinline__ float divided(float x, const Divisor& d) {
  return quotient(x, d.scale, d.reciprocal);
}

// The channels of the lane in a step of 16, and what lies beside them in the tables of constants and angles: pairs
// (0, 1) belong to words 0 and 1 (slots g and g + 8), pairs (2, 3) to words 2 and 3.
template <class S>
struct KeyLane {
  int group, thread;
  __device__ __forceinline__ explicit KeyLane(int lane) : group(lane / 4), thread(lane % 4) {}
  __device__ __forceinline__ float4 read(const float* table) const {
    if constexpr (S::kWideKey) {  // channels 2t, 2t + 1, 2t + 8, 2t + 9
      const float2 a = *reinterpret_cast<const float2*>(table + 2 * thread),
                   b = *reinterpret_cast<const float2*>(table + 8 + 2 * thread);
      return make_float4(a.x, a.y, b.x, b.y);
    } else {  // channels 4t to 4t + 3
      return *reinterpret_cast<const float4*>(table + 4 * thread);
    }
  }
};

// The keys of one head: a lane's words are [step of 16 channels][word], first as they came, then turned and rounded.
template <class S>
struct KeyPage {
  const WriteParams& p;
  std::byte* shared;
  int head;  // in the CTA
  int global_head;
  KeyLane<S> lane;
  Words words[S::kSteps];

  __device__ __forceinline__ std::byte* row(int slot) const {
    return shared + S::kKeys + slot * S::kKeyStride + head * S::kHeadDim * 2;
  }
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      if constexpr (S::kWideKey) {
        const int id = static_cast<int>(threadIdx.x % 32);
        words[step] = load_fragment(ptx::shared_address(row(id % 16) + (step * 16 + id / 16 * 8) * 2));
      } else {
        const int at = (step * 16 + 4 * lane.thread) * 2;
        const uint2 a = *reinterpret_cast<const uint2*>(row(lane.group) + at),
                    b = *reinterpret_cast<const uint2*>(row(lane.group + 8) + at);
        words[step] = {a.x, b.x, a.y, b.y};
      }
    }
    // A fragment's words come from the rows of other lanes, where turn_all writes: all have read before any writes.
    if constexpr (S::kWideKey) __syncwarp();
  }
  // 1 / rms of slots g and g + 8, in the order of key_norm.h.
  __device__ __forceinline__ float2 norm_factors() const {
    float sums[4][2] = {};
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 x = widen_2<S::kBf16>(words[step].at[w]);
        sums[w][0] = __fmaf_rn(x.x, x.x, sums[w][0]);
        sums[w][1] = __fmaf_rn(x.y, x.y, sums[w][1]);
      }
    }
    float pairs[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) pairs[w] = __fadd_rn(sums[w][0], sums[w][1]);
    auto over_lanes = [](float x) {
      x = __fadd_rn(x, __shfl_xor_sync(~0U, x, 1));
      return __fadd_rn(x, __shfl_xor_sync(~0U, x, 2));
    };
    float2 sum;
    if constexpr (S::kWideKey) {  // lanes hold bits 1 and 2 of a channel, words bit 3
      sum = make_float2(__fadd_rn(over_lanes(pairs[0]), over_lanes(pairs[2])),
                        __fadd_rn(over_lanes(pairs[1]), over_lanes(pairs[3])));
    } else {  // words hold bit 1, lanes bits 2 and 3
      sum = make_float2(over_lanes(__fadd_rn(pairs[0], pairs[2])), over_lanes(__fadd_rn(pairs[1], pairs[3])));
    }
    auto factor = [&](float s) {
      return __fdiv_rn(1.0F, __fsqrt_rn(__fadd_rn(__fdiv_rn(s, static_cast<float>(S::kHeadDim)), p.k_norm_eps)));
    };
    return make_float2(factor(sum.x), factor(sum.y));
  }

  // Turns the pair words[step].at[w], words[step + kHalfSteps].at[w]; c, s: the two angles, a, b already shifted.
  static __device__ __forceinline__ void turn(float2 a, float2 b, float2 c, float2 s, uint32_t& low, uint32_t& high) {
    low = ptx::pack_16bit<S::kBf16>(__fsub_rn(__fmul_rn(a.x, c.x), __fmul_rn(b.x, s.x)),
                                    __fsub_rn(__fmul_rn(a.y, c.y), __fmul_rn(b.y, s.y)));
    high = ptx::pack_16bit<S::kBf16>(__fadd_rn(__fmul_rn(b.x, c.x), __fmul_rn(a.x, s.x)),
                                     __fadd_rn(__fmul_rn(b.y, c.y), __fmul_rn(a.y, s.y)));
  }

  // round(RoPE(norm(k) + constant)) in place; with fresh_k the whole keys go back into shared memory as well.
  __device__ __forceinline__ void turn_all() {
    const bool normed = p.k_norm != nullptr, fresh = p.fresh_k != nullptr, two = fresh && p.removed != nullptr;
    const bool biased = p.k_bias != nullptr;
    const float2 factors = normed ? norm_factors() : make_float2(1.0F, 1.0F);
    const float* constants = reinterpret_cast<const float*>(shared + S::kConstant) + head * S::kHeadDim;
    const float* whole = p.k_bias + int64_t{global_head} * S::kHeadDim;
    const float* weights = reinterpret_cast<const float*>(shared + S::kNorm);
#pragma unroll
    for (int step = 0; step < S::kHalfSteps; ++step) {
      float4 cosines[2], sines[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = (lane.group + 8 * i) * S::kAngleStride;
        cosines[i] = lane.read(reinterpret_cast<const float*>(shared + S::kCosines + row) + step * 16);
        sines[i] = lane.read(reinterpret_cast<const float*>(shared + S::kSines + row) + step * 16);
      }
      const float4 low_c = lane.read(constants + step * 16), high_c = lane.read(constants + S::kHalf + step * 16);
      Words& low = words[step];
      Words& high = words[step + S::kHalfSteps];
      float2 a[4], b[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) a[w] = widen_2<S::kBf16>(low.at[w]), b[w] = widen_2<S::kBf16>(high.at[w]);
      if (normed) {
        const float4 low_w = lane.read(weights + step * 16), high_w = lane.read(weights + S::kHalf + step * 16);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const float factor = w % 2 == 0 ? factors.x : factors.y;
          auto scaled = [&](float2 x, const float4& by) {
            return make_float2(__fmul_rn(__fmul_rn(x.x, factor), w < 2 ? by.x : by.z),
                               __fmul_rn(__fmul_rn(x.y, factor), w < 2 ? by.y : by.w));
          };
          a[w] = scaled(a[w], low_w), b[w] = scaled(b[w], high_w);
        }
      }
      auto shifted = [](int w, float2 x, const float4& by) {
        return make_float2(__fadd_rn(x.x, w < 2 ? by.x : by.z), __fadd_rn(x.y, w < 2 ? by.y : by.w));
      };
      auto half_of = [](int w, const float4& x) { return w < 2 ? make_float2(x.x, x.y) : make_float2(x.z, x.w); };
#pragma unroll
      for (int w = 0; w < 4; ++w)
        turn(shifted(w, a[w], low_c), shifted(w, b[w], high_c), half_of(w, cosines[w % 2]), half_of(w, sines[w % 2]),
             low.at[w], high.at[w]);
      if (!fresh) continue;
      float4 low_b = {}, high_b = {};
      if (two && biased) low_b = lane.read(whole + step * 16), high_b = lane.read(whole + S::kHalf + step * 16);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        uint32_t fresh_low = low.at[w], fresh_high = high.at[w];
        if (two)
          turn(shifted(w, a[w], low_b), shifted(w, b[w], high_b), half_of(w, cosines[w % 2]), half_of(w, sines[w % 2]),
               fresh_low, fresh_high);
        const int channel = step * 16 + (S::kWideKey ? 2 * lane.thread + w / 2 * 8 : 4 * lane.thread + w / 2 * 2);
        std::byte* at = row(lane.group + 8 * (w % 2)) + channel * 2;
        *reinterpret_cast<uint32_t*>(at) = fresh_low;
        *reinterpret_cast<uint32_t*>(at + S::kHalf * 2) = fresh_high;
      }
    }
  }

  // The page in its stored form. False: some lane's rows need the row path.
  __device__ __forceinline__ bool store(int64_t block) const {
    PairTop<S::kBf16> tops[2];
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
      for (int w = 0; w < 4; ++w) tops[w % 2].see(words[step].at[w]);
    }
    bool ok = true;
    Divisor divisors[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (p.k_dynamic) tops[i].join_lanes(1, 2);
      const float2 top = tops[i].values();
      divisors[i] = make_divisor<S::key>(p.fixed_scales, p.k_dynamic, larger(top.x, top.y), ok);
      if (p.k_dynamic && lane.thread == 0) row_scales(p, block)[lane.group + 8 * i] = divisors[i].scale;
    }
    auto* to = reinterpret_cast<uint4*>(p.blocks + block * S::kBlock) + threadIdx.x % 32;
    if constexpr (S::kWideKey) {
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
        const Words& w = words[step];
        __stcs(to + step * 32, make_uint4(w.at[0], w.at[1], w.at[2], w.at[3]));
      }
    } else {
      auto codes = [&](const Words& w, int i) {  // four channels of slot g + 8 i
        const float2 a = widen_2<S::kBf16>(w.at[i]), b = widen_2<S::kBf16>(w.at[i + 2]);
        return encode_4<S::key>(divided(a.x, divisors[i]), divided(a.y, divisors[i]), divided(b.x, divisors[i]),
                                divided(b.y, divisors[i]));
      };
#pragma unroll
      for (int step = 0; step < S::kSteps; step += 2) {
        const Words &even = words[step], &odd = words[step + 1];
        __stcs(to + step / 2 * 32, make_uint4(codes(even, 0), codes(even, 1), codes(odd, 0), codes(odd, 1)));
      }
    }
    return ok;
  }
};

// The values of one head: words are [tile of 16 channels][word]; words 0 and 1 hold slots 2t and 2t + 1 of channels g
// and g + 8, words 2 and 3 slots 2t + 8 and 2t + 9.
template <class S>
__device__ __forceinline__ bool store_values(const WriteParams& p, const std::byte* shared, int head, int64_t block) {
  const int lane = static_cast<int>(threadIdx.x % 32), thread = lane % 4;
  const std::byte* rows = shared + S::kValues + (lane % 8 + lane / 16 * 8) * S::kValueStride + head * S::kHeadDim * 2;
  Words words[S::kSteps];
  PairTop<S::kBf16> tops[2];
#pragma unroll
  for (int tile = 0; tile < S::kSteps; ++tile) {
    words[tile] = load_fragment_transposed(ptx::shared_address(rows + (tile * 16 + lane / 8 % 2 * 8) * 2));
#pragma unroll
    for (int w = 0; w < 4; ++w) tops[w / 2].see(words[tile].at[w]);
  }
  bool ok = true;
  Divisor divisors[4];  // slots 2t, 2t + 1, 2t + 8, 2t + 9
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (p.v_dynamic) tops[i].join_lanes(4, 16);
    const float2 top = tops[i].values();
    divisors[2 * i] = make_divisor<S::value>(p.fixed_scales + 1, p.v_dynamic, top.x, ok);
    divisors[2 * i + 1] = make_divisor<S::value>(p.fixed_scales + 1, p.v_dynamic, top.y, ok);
    if (p.v_dynamic && lane < 4) {
      float* to = row_scales(p, block) + (p.k_dynamic ? kPageSize : 0) + 2 * thread + 8 * i;
      *reinterpret_cast<float2*>(to) = make_float2(divisors[2 * i].scale, divisors[2 * i + 1].scale);
    }
  }
  auto* to = reinterpret_cast<uint4*>(p.blocks + block * S::kBlock + S::kKeyBlock) + lane;
  if constexpr (S::kWideValue) {
#pragma unroll
    for (int tile = 0; tile < S::kSteps; ++tile) {
      const Words& w = words[tile];
      __stcs(to + tile * 32, make_uint4(w.at[0], w.at[1], w.at[2], w.at[3]));
    }
  } else {
    auto codes = [&](const Words& w, int i) {  // channel g + 8 i of the four slots
      const float2 a = widen_2<S::kBf16>(w.at[i]), b = widen_2<S::kBf16>(w.at[i + 2]);
      return encode_4<S::value>(divided(a.x, divisors[0]), divided(a.y, divisors[1]), divided(b.x, divisors[2]),
                                divided(b.y, divisors[3]));
    };
#pragma unroll
    for (int tile = 0; tile < S::kSteps; tile += 2) {
      const Words &even = words[tile], &odd = words[tile + 1];
      __stcs(to + tile / 2 * 32, make_uint4(codes(even, 0), codes(even, 1), codes(odd, 0), codes(odd, 1)));
    }
  }
  return ok;
}

// Starts the bulk copies of a page's rows: lane i of warp 0 the four rows of token i.
template <class S>
__device__ __forceinline__ void fetch_page(const WriteParams& p, const WriteRun& run, int head, int heads,
                                           std::byte* shared) {
  const int slot = static_cast<int>(threadIdx.x);
  const uint32_t values_in = ptx::shared_address(shared), keys_in = values_in + 8;
  const auto row_bytes = static_cast<uint32_t>(heads * S::kHeadDim * 2);
  if (slot == 0) {
    ptx::barrier_expect(values_in, kPageSize * row_bytes);
    ptx::barrier_expect(keys_in, kPageSize * (row_bytes + 2 * S::kHalf * 4));
  }
  __syncwarp();
  if (slot >= kPageSize) return;
  const int64_t token = run.token_begin + slot, dense = int64_t{p.num_kv_heads} * S::kHeadDim;
  const uint64_t policy = ptx::evict_first_policy();
  auto fetch = [&](int to, const void* from, int64_t stride, uint32_t barrier) {
    const auto* row = static_cast<const uint16_t*>(from) + token * (stride == 0 ? dense : stride) + head * S::kHeadDim;
    ptx::bulk_load(ptx::shared_address(shared + to), row, row_bytes, barrier, policy);
  };
  fetch(S::kValues + slot * S::kValueStride, p.v, p.v_token_stride, values_in);
  fetch(S::kKeys + slot * S::kKeyStride, p.k, p.k_token_stride, keys_in);
  const int64_t angle = int64_t{p.positions[token]} * S::kHalf;
  ptx::bulk_load(ptx::shared_address(shared + S::kCosines + slot * S::kAngleStride), p.cosines + angle, S::kHalf * 4,
                 keys_in);
  ptx::bulk_load(ptx::shared_address(shared + S::kSines + slot * S::kAngleStride), p.sines + angle, S::kHalf * 4,
                 keys_in);
}

// Constant vectors of the CTA's heads, while the rows are on their way.
template <class S>
__device__ __forceinline__ void stage_constants(const WriteParams& p, int head, int heads, std::byte* shared) {
  auto* constants = reinterpret_cast<float*>(shared + S::kConstant);
  auto* weights = reinterpret_cast<float*>(shared + S::kNorm);
  for (int i = static_cast<int>(threadIdx.x); i < heads * S::kHeadDim; i += kWriteWarps * 32) {
    const int64_t from = int64_t{head} * S::kHeadDim + i;
    const float bias = p.k_bias == nullptr ? 0.0F : p.k_bias[from];
    constants[i] = p.removed == nullptr ? bias : __fsub_rn(bias, p.removed[from]);
    if (i < S::kHeadDim && p.k_norm != nullptr) weights[i] = p.k_norm[i];
  }
}

// Whole keys of one head from shared memory to [token][kv head][head_dim].
template <class S>
__device__ __forceinline__ void send_fresh(const WriteParams& p, const WriteRun& run, int head,
                                           const KeyPage<S>& page) {
  ptx::fence_async_proxy();
  __syncwarp();
  const int slot = static_cast<int>(threadIdx.x % 32);
  if (slot < kPageSize) {
    auto* to =
        static_cast<uint16_t*>(p.fresh_k) + (int64_t{run.token_begin + slot} * p.num_kv_heads + head) * S::kHeadDim;
    ptx::bulk_store(to, ptx::shared_address(page.row(slot)), S::kHeadDim * 2);
  }
  ptx::bulk_commit();
}

template <class S>
__device__ __forceinline__ void write_page(const WriteParams& p, const WriteRun& run, int first_head) {
  extern __shared__ __align__(128) std::byte shared[];
  const int heads = min(S::kHeads, p.num_kv_heads - first_head), warp = static_cast<int>(threadIdx.x / 32);
  if (threadIdx.x == 0) {
    ptx::barrier_init(ptx::shared_address(shared), 1);
    ptx::barrier_init(ptx::shared_address(shared) + 8, 1);
    ptx::barrier_init_visible();
  }
  __syncwarp();
  if (warp == 0) fetch_page<S>(p, run, first_head, heads, shared);
  stage_constants<S>(p, first_head, heads, shared);
  __syncthreads();
  // Values first: keys wait longer, for positions and then for angles.
  for (int unit = warp; unit < 2 * heads; unit += kWriteWarps) {
    const bool is_key = unit >= heads;
    const int own = is_key ? unit - heads : unit, head = first_head + own;
    ptx::barrier_wait(ptx::shared_address(shared) + (is_key ? 8 : 0), 0);
    const int64_t block = int64_t{run.page} * p.num_kv_heads + head;
    bool ok;
    if (is_key) {
      KeyPage<S> page{p, shared, own, head, KeyLane<S>(static_cast<int>(threadIdx.x % 32))};
      page.load();
      page.turn_all();
      ok = page.store(block);
      if (p.fresh_k != nullptr) send_fresh<S>(p, run, head, page);
    } else {
      ok = store_values<S>(p, shared, own, block);
    }
    if (__all_sync(~0U, ok)) continue;
    ptx::bulk_wait_all();  // the row path writes the same whole keys
    __syncwarp();          // orders the stores above before those of other lanes below
    write_rows<S::key, S::value, S::kHeadDim>(p, run, head, is_key ? Side::kKey : Side::kValue, make_int2(0, 1));
  }
  if (p.fresh_k != nullptr) ptx::bulk_wait_read();  // shared memory lasts until then
}

// Blocks [0, whole * parts): a page of S::kHeads heads each. The others: one partial run of one KV head each.
template <class S>
__global__ void __launch_bounds__(kWriteWarps * 32, 4) write_kernel(const __grid_constant__ WriteParams p) {
  const int parts = (p.num_kv_heads + S::kHeads - 1) / S::kHeads, block = static_cast<int>(blockIdx.x);
  if constexpr (S::kPages) {
    if (block < p.num_whole * parts) {
      write_page<S>(p, p.runs[block / parts], block % parts * S::kHeads);
      return;
    }
  }
  const int row = block - p.num_whole * parts, head = row % p.num_kv_heads;
  const WriteRun run = p.runs[p.num_whole + row / p.num_kv_heads];
  const int2 rows = make_int2(static_cast<int>(threadIdx.x / 32), kWriteWarps);
  write_rows<S::key, S::value, S::kHeadDim>(p, run, head, Side::kKey, rows);
  write_rows<S::key, S::value, S::kHeadDim>(p, run, head, Side::kValue, rows);
}

template <class S>
bool enqueue_shape(const DecodeConfig& config, WriteParams params, StreamHandle stream) {
  if (config.key != S::key || config.value != S::value || params.native_is_bf16 != S::kBf16) return false;
  params.k_dynamic = config.k_dynamic, params.v_dynamic = config.v_dynamic;
  // A 16-bit side of another type than the model's is rounded element by element.
  if (!S::kPages || (S::kWideKey && S::key != S::native) || (S::kWideValue && S::value != S::native))
    params.num_whole = 0;
  const int parts = (params.num_kv_heads + S::kHeads - 1) / S::kHeads;
  const int blocks = params.num_whole * parts + (params.num_runs - params.num_whole) * params.num_kv_heads;
  const int shared = params.num_whole > 0 ? S::kShared : 0;
  // A failure shows as that of the launch, which launch_write asks for.
  (void)cudaFuncSetAttribute(write_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared);
  write_kernel<S><<<blocks, kWriteWarps * 32, shared, static_cast<cudaStream_t>(stream)>>>(params);
  return true;
}

template <DType native, int kHeadDim>
bool enqueue_native(const DecodeConfig& config, const WriteParams& params, StreamHandle stream) {
  return enqueue_shape<PageShape<native, DType::kBF16, DType::kBF16, kHeadDim>>(config, params, stream) ||
         enqueue_shape<PageShape<native, DType::kF16, DType::kF16, kHeadDim>>(config, params, stream) ||
         enqueue_shape<PageShape<native, DType::kBF16, DType::kE4M3, kHeadDim>>(config, params, stream) ||
         enqueue_shape<PageShape<native, DType::kF16, DType::kE4M3, kHeadDim>>(config, params, stream) ||
         enqueue_shape<PageShape<native, DType::kE4M3, DType::kBF16, kHeadDim>>(config, params, stream) ||
         enqueue_shape<PageShape<native, DType::kE4M3, DType::kF16, kHeadDim>>(config, params, stream) ||
         enqueue_shape<PageShape<native, DType::kE4M3, DType::kE4M3, kHeadDim>>(config, params, stream) ||
         enqueue_shape<PageShape<native, DType::kI8, DType::kE4M3, kHeadDim>>(config, params, stream);
}

template <int kHeadDim>
bool enqueue_write(const DecodeConfig& config, const WriteParams& params, StreamHandle stream) {
  return enqueue_native<DType::kBF16, kHeadDim>(config, params, stream) ||
         enqueue_native<DType::kF16, kHeadDim>(config, params, stream);
}

}  // namespace asymkv::cuda
