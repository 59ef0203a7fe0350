#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "asymkv/kernels/cuda/bench_kernels.h"

namespace asymkv::cuda {
namespace {

constexpr int kFillCtas = 132 * 16;
constexpr int kFillThreads = 256;

__device__ uint32_t mix(uint64_t x) {  // the finaliser of MurmurHash3
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  x ^= x >> 33;
  return static_cast<uint32_t>(x);
}
__device__ float uniform(uint64_t i) {
  return (static_cast<float>(mix(i)) + 1.0F) * 2.3283064e-10F;
}
__device__ float normal(uint64_t i) {  // Box and Muller
  const float radius = sqrtf(-2.0F * logf(fminf(uniform(2 * i + 1), 0.9999999F)));
  return radius * cospif(2.0F * uniform(2 * i + 0x9e3779b97f4a7c15ULL));
}

__device__ uint32_t random_word(DType dtype, uint64_t element) {
  if (dtype == DType::kBF16 || dtype == DType::kF16) {
    const float a = normal(element), b = normal(element + 1);
    if (dtype == DType::kBF16) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
      return *reinterpret_cast<const uint32_t*>(&pair);
    }
    const __half2 pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const float x = normal(element + i);
    const uint32_t code =
        dtype == DType::kI8
            ? static_cast<uint32_t>(static_cast<int>(rintf(fminf(fmaxf(x * 40.0F, -127.0F), 127.0F))) + 128)
            : __nv_cvt_float_to_fp8(x * 16.0F, __NV_SATFINITE, __NV_E4M3);
    word |= code << (8 * i);
  }
  return word;
}

__global__ void fill_blocks_kernel(DecodeConfig config, uint32_t* blocks, int64_t num_blocks, uint64_t seed) {
  const int64_t words = num_blocks * (config.block_bytes() / 4), stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += stride) {
    const bool is_key = i % (config.block_bytes() / 4) < config.k_block_bytes() / 4;
    blocks[i] = random_word(is_key ? config.key : config.value, seed + 4 * static_cast<uint64_t>(i));
  }
}

__global__ void fill_scales_kernel(DecodeConfig config, float* scales, int64_t count, uint64_t seed) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const bool is_key = config.k_dynamic && (!config.v_dynamic || i % (2 * kPageSize) < kPageSize);
    const float unit = is_key && config.key == DType::kI8 ? 1.0F / 40.0F : 1.0F / 16.0F;
    scales[i] = unit * (0.6F + 0.8F * uniform(seed + static_cast<uint64_t>(i)));
  }
}

__global__ void fill_normal_kernel(bool bf16, uint16_t* to, int64_t count, uint64_t seed, float sigma) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const float x = normal(seed + static_cast<uint64_t>(i)) * sigma;
    to[i] = bf16 ? __bfloat16_as_ushort(__float2bfloat16(x)) : __half_as_ushort(__float2half(x));
  }
}

__global__ void read_kernel(const uint4* from, int64_t count, uint32_t* sink) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  uint32_t seen = 0;
  for (; i + 3 * stride < count; i += 4 * stride) {
    const uint4 a = __ldcs(from + i), b = __ldcs(from + i + stride), c = __ldcs(from + i + 2 * stride),
                d = __ldcs(from + i + 3 * stride);
    seen ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < count; i += stride) {
    const uint4 a = __ldcs(from + i);
    seen ^= a.x ^ a.y ^ a.z ^ a.w;
  }
  if (seen == 0x12345U) *sink = seen;
}

__global__ void copy_kernel(const uint4* from, uint4* to, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    const uint4 a = __ldcs(from + i), b = __ldcs(from + i + stride), c = __ldcs(from + i + 2 * stride),
                d = __ldcs(from + i + 3 * stride);
    __stcs(to + i, a);
    __stcs(to + i + stride, b);
    __stcs(to + i + 2 * stride, c);
    __stcs(to + i + 3 * stride, d);
  }
  for (; i < count; i += stride) __stcs(to + i, __ldcs(from + i));
}

cudaStream_t as_stream(StreamHandle stream) {
  return static_cast<cudaStream_t>(stream);
}

}  // namespace

void fill_blocks(const DecodeConfig& config, std::byte* blocks, int64_t num_blocks, uint64_t seed,
                 StreamHandle stream) {
  fill_blocks_kernel<<<kFillCtas, kFillThreads, 0, as_stream(stream)>>>(config, reinterpret_cast<uint32_t*>(blocks),
                                                                        num_blocks, seed);
}
void fill_scales(const DecodeConfig& config, float* scales, int64_t num_blocks, uint64_t seed, StreamHandle stream) {
  const int64_t count = num_blocks * (config.scale_bytes() / 4);
  if (count > 0) fill_scales_kernel<<<kFillCtas, kFillThreads, 0, as_stream(stream)>>>(config, scales, count, seed);
}
void fill_normal_16bit(bool bf16, uint16_t* to, int64_t count, uint64_t seed, float sigma, StreamHandle stream) {
  fill_normal_kernel<<<kFillCtas, kFillThreads, 0, as_stream(stream)>>>(bf16, to, count, seed, sigma);
}
void launch_read(const std::byte* from, int64_t bytes, int ctas, int threads, uint32_t* sink, StreamHandle stream) {
  read_kernel<<<ctas, threads, 0, as_stream(stream)>>>(reinterpret_cast<const uint4*>(from), bytes / 16, sink);
}
void launch_copy(const std::byte* from, std::byte* to, int64_t bytes, int ctas, StreamHandle stream) {
  copy_kernel<<<ctas, 512, 0, as_stream(stream)>>>(reinterpret_cast<const uint4*>(from), reinterpret_cast<uint4*>(to),
                                                   bytes / 16);
}

}  // namespace asymkv::cuda
