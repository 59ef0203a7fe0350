#include "asymkv/kernels/cuda/reference.h"

#include <cuda_runtime.h>

#include "asymkv/kv/tiled_layout.h"

namespace asymkv::cuda {
namespace {

constexpr int kThreads = 256;

__device__ double decode_wide(DType dtype, const std::byte* at) {
  const uint16_t bits = *reinterpret_cast<const uint16_t*>(at);
  if (dtype == DType::kBF16) return __uint_as_float(static_cast<uint32_t>(bits) << 16);
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;  // binary16
  const double magnitude = exponent == 0    ? ldexp(static_cast<double>(mantissa), -24)
                           : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                            : ldexp(static_cast<double>(1024 + mantissa), exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

__device__ double decode_narrow(DType dtype, uint8_t code) {
  if (dtype == DType::kI8) return static_cast<int>(code) - 128;
  const int exponent = code >> 3 & 15, mantissa = code & 7;  // E4M3 "fn"
  if (exponent == 15 && mantissa == 7) return NAN;
  const double magnitude = exponent == 0 ? ldexp(static_cast<double>(mantissa), -9)
                                         : ldexp(static_cast<double>(8 + mantissa), exponent - 10);
  return code >> 7 ? -magnitude : magnitude;
}

__device__ double decode(DType dtype, const std::byte* at) {
  return dtype_bytes(dtype) == 1 ? decode_narrow(dtype, static_cast<uint8_t>(*at)) : decode_wide(dtype, at);
}

struct Place {
  int64_t block;  // (page id, kv head)
  int64_t slot;
};

__device__ Place find(const ReferenceArguments& a, int sequence, int kv_head, int key) {
  const int64_t id = a.page_table[a.page_rows[sequence] + key / kPageSize];
  return {id * a.num_kv_heads + kv_head, key % kPageSize};
}

__device__ double row_scale(const ReferenceArguments& a, Place at, bool is_key) {
  const bool narrow = (is_key ? a.config.k_bytes() : a.config.v_bytes()) == 1;
  if (!narrow) return 1.0;
  if (!(is_key ? a.config.k_dynamic : a.config.v_dynamic)) return a.fixed_scales[is_key ? 0 : 1];
  const int64_t skip = !is_key && a.config.k_dynamic ? kPageSize : 0;
  return reinterpret_cast<const float*>(a.scales + at.block * a.config.scale_bytes())[skip + at.slot];
}

__device__ double bias_logit(const ReferenceArguments& a, const double* q, int kv_head, int position) {
  if (a.removed == nullptr) return 0.0;
  const int half = a.config.head_dim / 2;
  const float* b = a.removed + kv_head * a.config.head_dim;
  double total = 0.0;
  for (int p = 0; p < half; ++p) {
    const double angle = a.frequencies[p] * position, c = cos(angle), s = sin(angle);
    total += q[p] * (b[p] * c - b[p + half] * s) + q[p + half] * (b[p + half] * c + b[p] * s);
  }
  return total;
}

__device__ double reduce(double value, double* scratch, bool take_max) {
  scratch[threadIdx.x] = value;
  __syncthreads();
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (static_cast<int>(threadIdx.x) < step) {
      const double other = scratch[threadIdx.x + step];
      scratch[threadIdx.x] = take_max ? fmax(scratch[threadIdx.x], other) : scratch[threadIdx.x] + other;
    }
    __syncthreads();
  }
  const double result = scratch[0];
  __syncthreads();
  return result;
}

__global__ void reference_kernel(const ReferenceArguments a) {
  __shared__ double q[256], scratch[kThreads];
  const int q_heads = a.num_kv_heads * a.group, row = blockIdx.x, sequence = row / q_heads;
  const int kv_head = row % q_heads / a.group, len = a.seq_lens[sequence], dim = a.config.head_dim;
  const auto* q_row = static_cast<const std::byte*>(a.q) + static_cast<int64_t>(row) * dim * 2;
  for (int c = threadIdx.x; c < dim; c += kThreads)
    q[c] = decode_wide(a.q_is_bf16 ? DType::kBF16 : DType::kF16, q_row + 2 * c);
  __syncthreads();
  double* logits = a.logits + static_cast<int64_t>(row) * a.max_len;
  double top = -INFINITY;
  for (int key = threadIdx.x; key < len; key += kThreads) {
    const Place at = find(a, sequence, kv_head, key);
    const std::byte* block = a.blocks + at.block * a.config.block_bytes();
    double dot = 0.0;
    for (int c = 0; c < dim; ++c)
      dot += q[c] * decode(a.config.key, block + tiled_k_offset(a.config.k_bytes(), at.slot, c));
    logits[key] = (dot * row_scale(a, at, true) + bias_logit(a, q, kv_head, key)) * a.softmax_scale;
    top = fmax(top, logits[key]);
  }
  top = reduce(top, scratch, true);
  double sum = 0.0;
  for (int key = threadIdx.x; key < len; key += kThreads) sum += logits[key] = exp(logits[key] - top);
  sum = reduce(sum, scratch, false);
  if (threadIdx.x == 0) a.lse[row] = len > 0 ? top + log(sum) : -INFINITY;
  for (int c = threadIdx.x; c < dim; c += kThreads) {
    double total = 0.0;
    for (int key = 0; key < len; ++key) {
      const Place at = find(a, sequence, kv_head, key);
      const std::byte* values = a.blocks + at.block * a.config.block_bytes() + a.config.k_block_bytes();
      total += logits[key] * row_scale(a, at, false) *
               decode(a.config.value, values + tiled_v_offset(a.config.v_bytes(), at.slot, c));
    }
    a.out[static_cast<int64_t>(row) * dim + c] = len > 0 ? total / sum : 0.0;
  }
}

}  // namespace

void launch_reference(const ReferenceArguments& arguments, StreamHandle stream) {
  const int rows = arguments.num_sequences * arguments.num_kv_heads * arguments.group;
  if (rows > 0) reference_kernel<<<rows, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(arguments);
}

}  // namespace asymkv::cuda
