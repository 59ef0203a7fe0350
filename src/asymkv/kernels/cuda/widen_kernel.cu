#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "asymkv/kernels/cuda/prefill_kernels.h"
#include "asymkv/kernels/cuda/ptx.cuh"
#include "asymkv/kv/tiled_layout.h"

// One warp widens one side of one (page, KV head): fragments in, 16 rows in shared memory, one bulk copy a row out.
namespace asymkv::cuda {
namespace {

constexpr int kWarps = 4;

template <DType dtype>
inline constexpr bool kIs8Bit = dtype == DType::kE4M3 || dtype == DType::kI8;

template <DType key_, DType value_, bool kToBf16_, int kHeadDim_>
struct WidenShape {
  static constexpr DType key = key_, value = value_;
  static constexpr bool kToBf16 = kToBf16_;
  static constexpr int kHeadDim = kHeadDim_, kSteps = kHeadDim / 16;
  static constexpr int kKeyBytes = static_cast<int>(dtype_bytes(key));
  static constexpr int kValueBytes = static_cast<int>(dtype_bytes(value));
  static constexpr int kKeyBlock = kPageSize * static_cast<int>(tiled_channels(kKeyBytes, kHeadDim)) * kKeyBytes;
  static constexpr int kBlock =
      kKeyBlock + kPageSize * static_cast<int>(tiled_channels(kValueBytes, kHeadDim)) * kValueBytes;
  static constexpr int kRowStride = kHeadDim * 2 + 16;  // rows that a warp writes together start in different banks
};

// Two stored bytes as numbers, exactly.
template <DType dtype>
__device__ __forceinline__ float2 decode_2(uint32_t bytes) {
  if constexpr (dtype == DType::kE4M3) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(bytes)));
    return __half22float2(*reinterpret_cast<const __half2*>(&halves));
  } else {
    return make_float2(static_cast<float>(static_cast<int>(bytes & 0xffU) - 128),
                       static_cast<float>(static_cast<int>(bytes >> 8 & 0xffU) - 128));
  }
}
template <DType dtype>
__device__ __forceinline__ float2 widen_16(uint32_t word) {
  if constexpr (dtype == DType::kBF16) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000U));
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&word));
  }
}
// Two stored 16-bit elements in the wanted type.
template <DType dtype, bool kToBf16>
__device__ __forceinline__ uint32_t convert_16(uint32_t word) {
  if constexpr ((dtype == DType::kBF16) == kToBf16) return word;
  const float2 x = widen_16<dtype>(word);
  return ptx::pack_16bit<kToBf16>(x.x, x.y);
}

struct PageAt {
  WidenPage page;
  int head;
  int64_t block;  // (page, KV head)
};

// R(position) removed on four neighbouring channels, the first a multiple of four (so is half the head dim).
template <class S>
__device__ __forceinline__ float4 removed_at(const WidenParams& p, const PageAt& at, int slot, int channel) {
  constexpr int kHalf = S::kHeadDim / 2;
  static_assert(kHalf % 4 == 0);
  const bool is_low = channel < kHalf;
  const int pair = is_low ? channel : channel - kHalf;
  const float* vector = p.removed + int64_t{at.head} * S::kHeadDim;
  const int64_t angle = int64_t{at.page.position + slot} * kHalf + pair;
  const float4 own = *reinterpret_cast<const float4*>(vector + channel),
               other = *reinterpret_cast<const float4*>(vector + (is_low ? pair + kHalf : pair)),
               cosine = *reinterpret_cast<const float4*>(p.cosines + angle),
               sine = *reinterpret_cast<const float4*>(p.sines + angle);
  auto turned = [&](float a, float b, float c, float s) {
    const float x = __fmul_rn(a, c), y = __fmul_rn(b, s);
    return is_low ? __fsub_rn(x, y) : __fadd_rn(x, y);
  };
  return make_float4(turned(own.x, other.x, cosine.x, sine.x), turned(own.y, other.y, cosine.y, sine.y),
                     turned(own.z, other.z, cosine.z, sine.z), turned(own.w, other.w, cosine.w, sine.w));
}

template <class S>
__device__ __forceinline__ void widen_keys(const WidenParams& p, const PageAt& at, const float* scales, bool dynamic,
                                           std::byte* rows) {
  const int lane = static_cast<int>(threadIdx.x % 32), group = lane / 4, thread = lane % 4;
  const auto* from = reinterpret_cast<const uint4*>(p.blocks + at.block * S::kBlock) + lane;
  std::byte* upper = rows + group * S::kRowStride;
  std::byte* lower = upper + 8 * S::kRowStride;
  if constexpr (!kIs8Bit<S::key>) {
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      const uint4 w = __ldcs(from + step * 32);
      const int at_channel = (step * 16 + 2 * thread) * 2;
      *reinterpret_cast<uint32_t*>(upper + at_channel) = convert_16<S::key, S::kToBf16>(w.x);
      *reinterpret_cast<uint32_t*>(lower + at_channel) = convert_16<S::key, S::kToBf16>(w.y);
      *reinterpret_cast<uint32_t*>(upper + at_channel + 16) = convert_16<S::key, S::kToBf16>(w.z);
      *reinterpret_cast<uint32_t*>(lower + at_channel + 16) = convert_16<S::key, S::kToBf16>(w.w);
    }
  } else {
    const float upper_scale = dynamic ? scales[group] : *scales, lower_scale = dynamic ? scales[group + 8] : *scales;
#pragma unroll
    for (int load = 0; load < (S::kSteps + 1) / 2; ++load) {
      const uint4 w = __ldcs(from + load * 32);
      const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // two steps of 16 channels, slots g and g + 8 of each
        const int step = 2 * load + i / 2, channel = step * 16 + 4 * thread;
        if (step >= S::kSteps) continue;
        const float scale = i % 2 == 0 ? upper_scale : lower_scale;
        float2 a = decode_2<S::key>(words[i] & 0xffffU), b = decode_2<S::key>(words[i] >> 16);
        a = make_float2(__fmul_rn(a.x, scale), __fmul_rn(a.y, scale));
        b = make_float2(__fmul_rn(b.x, scale), __fmul_rn(b.y, scale));
        if (p.removed != nullptr) {
          const int slot = group + i % 2 * 8;
          const float4 r = removed_at<S>(p, at, slot, channel);
          a = make_float2(__fadd_rn(a.x, r.x), __fadd_rn(a.y, r.y));
          b = make_float2(__fadd_rn(b.x, r.z), __fadd_rn(b.y, r.w));
        }
        *reinterpret_cast<uint2*>((i % 2 == 0 ? upper : lower) + channel * 2) =
            make_uint2(ptx::pack_16bit<S::kToBf16>(a.x, a.y), ptx::pack_16bit<S::kToBf16>(b.x, b.y));
      }
    }
  }
}

// Values come with their slots side by side: each 8 x 8 square is transposed on its way.
template <class S>
__device__ __forceinline__ void widen_values(const WidenParams& p, const PageAt& at, const float* scales, bool dynamic,
                                             std::byte* rows) {
  const int lane = static_cast<int>(threadIdx.x % 32), group = lane / 4, thread = lane % 4;
  const auto* from = reinterpret_cast<const uint4*>(p.blocks + at.block * S::kBlock + S::kKeyBlock) + lane;
  std::byte* upper = rows + group * S::kRowStride + 4 * thread;
  std::byte* lower = upper + 8 * S::kRowStride;
  auto put = [&](int channel, uint32_t low_slots, uint32_t high_slots) {
    *reinterpret_cast<uint32_t*>(upper + channel * 2) = ptx::transpose_8x8(low_slots);
    *reinterpret_cast<uint32_t*>(lower + channel * 2) = ptx::transpose_8x8(high_slots);
  };
  if constexpr (!kIs8Bit<S::value>) {
#pragma unroll
    for (int tile = 0; tile < S::kSteps; ++tile) {
      const uint4 w = __ldcs(from + tile * 32);
      put(tile * 16, convert_16<S::value, S::kToBf16>(w.x), convert_16<S::value, S::kToBf16>(w.z));
      put(tile * 16 + 8, convert_16<S::value, S::kToBf16>(w.y), convert_16<S::value, S::kToBf16>(w.w));
    }
  } else {
    float s[4];  // slots 2t, 2t + 1, 2t + 8, 2t + 9
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = dynamic ? scales[2 * thread + i % 2 + i / 2 * 8] : *scales;
#pragma unroll
    for (int load = 0; load < (S::kSteps + 1) / 2; ++load) {
      const uint4 w = __ldcs(from + load * 32);
      const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // two tiles of 16 channels, channels g and g + 8 of each
        if (2 * load + i / 2 >= S::kSteps) continue;
        const float2 a = decode_2<S::value>(words[i] & 0xffffU), b = decode_2<S::value>(words[i] >> 16);
        put((2 * load + i / 2) * 16 + i % 2 * 8,
            ptx::pack_16bit<S::kToBf16>(__fmul_rn(a.x, s[0]), __fmul_rn(a.y, s[1])),
            ptx::pack_16bit<S::kToBf16>(__fmul_rn(b.x, s[2]), __fmul_rn(b.y, s[3])));
      }
    }
  }
}

template <class S>
__global__ void __launch_bounds__(kWarps * 32)
    widen_kernel(const __grid_constant__ WidenParams p, bool k_dynamic, bool v_dynamic) {
  __shared__ __align__(128) std::byte shared[kWarps][kPageSize * S::kRowStride];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int64_t unit = int64_t{blockIdx.x} * kWarps + warp;  // [page][kv head][side]
  if (unit >= int64_t{p.num_pages} * p.num_kv_heads * 2) return;
  const bool is_key = unit % 2 == 0;
  PageAt at;
  at.page = p.pages[unit / 2 / p.num_kv_heads];
  at.head = static_cast<int>(unit / 2 % p.num_kv_heads);
  at.block = int64_t{at.page.page} * p.num_kv_heads + at.head;
  const int sides = int{k_dynamic} + int{v_dynamic};
  const auto* row_scales = reinterpret_cast<const float*>(p.scales + at.block * 4 * kPageSize * sides);
  if (is_key) {
    widen_keys<S>(p, at, k_dynamic ? row_scales : p.fixed_scales, k_dynamic, shared[warp]);
  } else {
    const float* own = v_dynamic ? row_scales + (k_dynamic ? kPageSize : 0) : p.fixed_scales + 1;
    widen_values<S>(p, at, own, v_dynamic, shared[warp]);
  }
  ptx::fence_async_proxy();
  __syncwarp();
  if (lane < at.page.count) {
    auto* to = static_cast<uint16_t*>(is_key ? p.k : p.v) +
               (int64_t{at.page.row + lane} * p.num_kv_heads + at.head) * S::kHeadDim;
    ptx::bulk_store(to, ptx::shared_address(shared[warp] + lane * S::kRowStride), S::kHeadDim * 2);
  }
  ptx::bulk_commit();
  ptx::bulk_wait_all();
}

template <class S>
bool enqueue(const DecodeConfig& config, const WidenParams& params, StreamHandle stream) {
  if (config.key != S::key || config.value != S::value || params.to_bf16 != S::kToBf16) return false;
  const int64_t units = int64_t{params.num_pages} * params.num_kv_heads * 2;
  widen_kernel<S>
      <<<static_cast<unsigned>((units + kWarps - 1) / kWarps), kWarps * 32, 0, static_cast<cudaStream_t>(stream)>>>(
          params, config.k_dynamic, config.v_dynamic);
  return true;
}

template <bool kToBf16, int kHeadDim>
bool enqueue_to(const DecodeConfig& config, const WidenParams& params, StreamHandle stream) {
  return enqueue<WidenShape<DType::kBF16, DType::kBF16, kToBf16, kHeadDim>>(config, params, stream) ||
         enqueue<WidenShape<DType::kF16, DType::kF16, kToBf16, kHeadDim>>(config, params, stream) ||
         enqueue<WidenShape<DType::kBF16, DType::kE4M3, kToBf16, kHeadDim>>(config, params, stream) ||
         enqueue<WidenShape<DType::kF16, DType::kE4M3, kToBf16, kHeadDim>>(config, params, stream) ||
         enqueue<WidenShape<DType::kE4M3, DType::kBF16, kToBf16, kHeadDim>>(config, params, stream) ||
         enqueue<WidenShape<DType::kE4M3, DType::kF16, kToBf16, kHeadDim>>(config, params, stream) ||
         enqueue<WidenShape<DType::kE4M3, DType::kE4M3, kToBf16, kHeadDim>>(config, params, stream) ||
         enqueue<WidenShape<DType::kI8, DType::kE4M3, kToBf16, kHeadDim>>(config, params, stream);
}

template <int kHeadDim>
bool enqueue_dim(const DecodeConfig& config, const WidenParams& params, StreamHandle stream) {
  return config.head_dim == kHeadDim &&
         (enqueue_to<true, kHeadDim>(config, params, stream) || enqueue_to<false, kHeadDim>(config, params, stream));
}

}  // namespace

bool internal::enqueue_widen(const DecodeConfig& config, const WidenParams& params, StreamHandle stream) {
  return enqueue_dim<64>(config, params, stream) || enqueue_dim<80>(config, params, stream) ||
         enqueue_dim<96>(config, params, stream) || enqueue_dim<128>(config, params, stream) ||
         enqueue_dim<192>(config, params, stream) || enqueue_dim<256>(config, params, stream);
}

}  // namespace asymkv::cuda
