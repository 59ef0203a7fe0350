#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cfloat>
#include <cstdint>

#include "asymkv/kernels/cuda/elementwise.cuh"
#include "asymkv/kernels/cuda/model/model_kernels.h"

namespace asymkv::cuda {
namespace {

constexpr int64_t kWarpRowElems = 512;  // shorter rows are normed by a warp each

__device__ __forceinline__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
  return x;
}

// Sum over the threads of one row: a warp, or the block.
template <int kRowThreads>
__device__ __forceinline__ float row_sum(float x) {
  x = warp_sum(x);
  if constexpr (kRowThreads > 32) {
    __shared__ float sums[kRowThreads / 32];
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0.0F;
    for (int w = 0; w < kRowThreads / 32; ++w) x += sums[w];
  }
  return x;
}

template <int kRowThreads>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(RmsNormParams p) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kRowThreads) + threadIdx.x / kRowThreads;
  if (row >= p.rows) return;  // whole warps, or no thread of the block
  const float* x = p.x + row * p.dim;
  float* y = p.y + row * p.dim;
  const auto first = static_cast<int64_t>(threadIdx.x % kRowThreads);
  float sum = 0.0F;
  for (int64_t i = first; i < p.dim; i += kRowThreads) sum += x[i] * x[i];
  const float factor = 1.0F / sqrtf(row_sum<kRowThreads>(sum) / static_cast<float>(p.dim) + p.eps);
  for (int64_t i = first; i < p.dim; i += kRowThreads) y[i] = x[i] * factor * p.weight[i];
}

template <Gate kGate>
__device__ __forceinline__ float gated(float x) {
  if constexpr (kGate == Gate::kSilu) return x / (1.0F + expf(-x));
  // x / (1 + exp(-2 z)) with z = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form without its cancellation.
  const float inner = x * (1.0F + 0.044715F * x * x);
  return x / (1.0F + expf(-1.5957691216057308F * inner));
}

template <Gate kGate>
__global__ void __launch_bounds__(kThreads) gate_mul_kernel(int64_t rows, int64_t dim, const float* gate_up, float* y) {
  for (int64_t i = first_index(); i < rows * dim; i += index_step()) {
    const float* gate = gate_up + i / dim * (dim + dim) + i % dim;
    y[i] = gated<kGate>(gate[0]) * gate[dim];
  }
}

__global__ void __launch_bounds__(kThreads) rotate_kernel(RotateParams p) {
  const int64_t elems = p.num_rows * p.num_heads * p.num_pairs;
  for (int64_t i = first_index(); i < elems; i += index_step()) {
    const int64_t head = i / p.num_pairs, pair = i % p.num_pairs;
    const int64_t table = int64_t{p.positions[head / p.num_heads]} * p.num_pairs + pair;
    float* low = p.x + head * (p.num_pairs + p.num_pairs) + pair;
    float* high = low + p.num_pairs;
    const float a = *low, b = *high, c = p.cosines[table], s = p.sines[table];
    *low = a * c - b * s;
    *high = b * c + a * s;
  }
}

__global__ void __launch_bounds__(kThreads) split_qkv_kernel(SplitQkvParams p) {
  const int64_t row_elems = p.q_dim + p.kv_dim + p.kv_dim;
  for (int64_t i = first_index(); i < p.rows * row_elems; i += index_step()) {
    const int64_t row = i / row_elems, column = i % row_elems;
    const int64_t k = column - p.q_dim, v = k - p.kv_dim;
    const float x = p.qkv[i];
    if (k < 0) {
      p.q[row * p.q_dim + column] = p.q_bias == nullptr ? x : x + p.q_bias[column];
    } else if (v < 0) {
      p.k[row * p.kv_dim + k] = x;
    } else {
      p.v[row * p.kv_dim + v] = p.v_bias == nullptr ? x : x + p.v_bias[v];
    }
  }
}

__global__ void __launch_bounds__(kThreads) add_kernel(int64_t elems, const float* x, float* y) {
  for (int64_t i = first_index(); i < elems; i += index_step()) y[i] += x[i];
}

__global__ void __launch_bounds__(kThreads) add_bias_kernel(int64_t elems, int64_t dim, const float* bias, float* y) {
  for (int64_t i = first_index(); i < elems; i += index_step()) y[i] += bias[i % dim];
}

__global__ void __launch_bounds__(kThreads)
    scale_rows_kernel(int64_t elems, int64_t dim, const float* factors, float* x) {
  for (int64_t i = first_index(); i < elems; i += index_step()) x[i] *= factors[i / dim];
}

// One warp a row: its largest finite magnitude over E4M3's is the scale, as in dynamic_scale().
__global__ void __launch_bounds__(kThreads) round_e4m3_kernel(int64_t rows, int64_t dim, float* x) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  float* at = x + row * dim;
  float largest = 0.0F;
  for (int64_t i = threadIdx.x % 32; i < dim; i += 32) {
    if (isfinite(at[i])) largest = fmaxf(largest, fabsf(at[i]));
  }
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, step));
  const float scale = fmaxf(__fdiv_rn(largest, 448.0F), FLT_MIN);
  for (int64_t i = threadIdx.x % 32; i < dim; i += 32) {
    const float scaled = __fdiv_rn(at[i], scale);
    const __nv_fp8_storage_t code = isnan(scaled) ? 0 : __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, __NV_E4M3);
    at[i] = __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3))) * scale;
  }
}

__global__ void __launch_bounds__(kThreads) cap_softly_kernel(float cap, int64_t elems, float* x) {
  for (int64_t i = first_index(); i < elems; i += index_step()) x[i] = cap * tanhf(x[i] / cap);
}

// The better of two candidates: larger, and first among equals; one that is not finite (index -1) beats all.
struct Candidate {
  float value;
  int32_t idx;
};
__device__ __forceinline__ Candidate better(Candidate a, Candidate b) {
  if (a.idx < 0 || b.idx < 0) return {0.0F, -1};
  return a.value > b.value || (a.value == b.value && a.idx < b.idx) ? a : b;
}

// One block a row.
__global__ void __launch_bounds__(kThreads) finite_argmax_kernel(int64_t dim, const float* x, int32_t* best) {
  const float* row = x + int64_t{blockIdx.x} * dim;
  Candidate mine{-INFINITY, INT32_MAX};
  for (int64_t i = threadIdx.x; i < dim; i += kThreads) {
    const float value = row[i];
    mine = better(mine, isfinite(value) ? Candidate{value, static_cast<int32_t>(i)} : Candidate{0.0F, -1});
  }
  __shared__ Candidate candidates[kThreads];
  candidates[threadIdx.x] = mine;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      candidates[threadIdx.x] = better(candidates[threadIdx.x], candidates[threadIdx.x + half]);
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) best[blockIdx.x] = candidates[0].idx;
}

// One block a row.
__global__ void __launch_bounds__(kThreads)
    target_losses_kernel(int64_t dim, const float* x, const int32_t* targets, double* losses) {
  const float* row = x + int64_t{blockIdx.x} * dim;
  __shared__ double parts[kThreads];
  const auto reduce = [&](double mine, auto join) {
    parts[threadIdx.x] = mine;
    __syncthreads();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) parts[threadIdx.x] = join(parts[threadIdx.x], parts[threadIdx.x + half]);
      __syncthreads();
    }
    const double all = parts[0];
    __syncthreads();  // every thread has read it
    return all;
  };
  float mine = -INFINITY;
  for (int64_t i = threadIdx.x; i < dim; i += kThreads) mine = fmaxf(mine, row[i]);
  const auto largest = static_cast<float>(reduce(mine, [](double a, double b) { return fmax(a, b); }));
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < dim; i += kThreads) sum += expf(row[i] - largest);
  const double all = reduce(sum, [](double a, double b) { return a + b; });
  if (threadIdx.x == 0) losses[blockIdx.x] = log(all) + largest - row[targets[blockIdx.x]];
}

}  // namespace

void launch_rms_norm(const RmsNormParams& p) {
  if (p.rows == 0) return;
  if (p.dim <= kWarpRowElems) {
    constexpr int64_t kRows = kThreads / 32;
    rms_norm_kernel<32><<<static_cast<unsigned>((p.rows + kRows - 1) / kRows), kThreads>>>(p);
  } else {
    rms_norm_kernel<kThreads><<<static_cast<unsigned>(p.rows), kThreads>>>(p);
  }
}

void launch_gate_mul(Gate gate, int64_t rows, int64_t dim, const float* gate_up, float* y) {
  if (rows * dim == 0) return;
  const auto kernel = gate == Gate::kSilu ? gate_mul_kernel<Gate::kSilu> : gate_mul_kernel<Gate::kGelu>;
  kernel<<<blocks_for(rows * dim), kThreads>>>(rows, dim, gate_up, y);
}

void launch_rotate(const RotateParams& p) {
  const int64_t elems = p.num_rows * p.num_heads * p.num_pairs;
  if (elems > 0) rotate_kernel<<<blocks_for(elems), kThreads>>>(p);
}

void launch_split_qkv(const SplitQkvParams& p) {
  const int64_t elems = p.rows * (p.q_dim + p.kv_dim + p.kv_dim);
  if (elems > 0) split_qkv_kernel<<<blocks_for(elems), kThreads>>>(p);
}

void launch_add(int64_t elems, const float* x, float* y) {
  if (elems > 0) add_kernel<<<blocks_for(elems), kThreads>>>(elems, x, y);
}

void launch_add_bias(int64_t rows, int64_t dim, const float* bias, float* y) {
  if (rows * dim > 0) add_bias_kernel<<<blocks_for(rows * dim), kThreads>>>(rows * dim, dim, bias, y);
}

void launch_scale_rows(int64_t rows, int64_t dim, const float* factors, float* x) {
  if (rows * dim > 0) scale_rows_kernel<<<blocks_for(rows * dim), kThreads>>>(rows * dim, dim, factors, x);
}

void launch_round_e4m3(int64_t rows, int64_t dim, float* x) {
  constexpr int64_t kRows = kThreads / 32;
  if (rows > 0) round_e4m3_kernel<<<static_cast<unsigned>((rows + kRows - 1) / kRows), kThreads>>>(rows, dim, x);
}

void launch_cap_softly(float cap, int64_t elems, float* x) {
  if (elems > 0) cap_softly_kernel<<<blocks_for(elems), kThreads>>>(cap, elems, x);
}

void launch_finite_argmax(int64_t rows, int64_t dim, const float* x, int32_t* best) {
  if (rows > 0) finite_argmax_kernel<<<static_cast<unsigned>(rows), kThreads>>>(dim, x, best);
}

void launch_target_losses(int64_t rows, int64_t dim, const float* x, const int32_t* targets, double* losses) {
  if (rows > 0) target_losses_kernel<<<static_cast<unsigned>(rows), kThreads>>>(dim, x, targets, losses);
}

}  // namespace asymkv::cuda
