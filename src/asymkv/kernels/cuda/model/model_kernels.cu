#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cfloat>
#include <cstdint>

#include "asymkv/kernels/cuda/elementwise.cuh"
#include "asymkv/kernels/cuda/model/model_kernels.h"
#include "asymkv/kernels/cuda/work_stream.h"

namespace asymkv::cuda {
namespace {

constexpr int64_t kWarpRowElems = 512;  // shorter rows are normed by a warp each
constexpr int64_t kFewRows = 264;       // two for each multiprocessor: each row then gets a large block
constexpr int64_t kArgmaxElems = 4096;

cudaStream_t stream() {
  return static_cast<cudaStream_t>(current_stream());
}

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

__device__ __forceinline__ void store(float* to, float x) {
  *to = x;
}
__device__ __forceinline__ void store(__nv_bfloat16* to, float x) {
  *to = __float2bfloat16_rn(x);
}
__device__ __forceinline__ float load(const float* from) {
  return *from;
}
__device__ __forceinline__ float load(const __nv_bfloat16* from) {
  return __bfloat162float(*from);
}
__device__ __forceinline__ float load(const __half* from) {
  return __half2float(*from);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) embed_kernel(EmbedParams p) {
  const T* row = static_cast<const T*>(p.matrix) + int64_t{p.rows[blockIdx.x]} * p.dim;
  for (int64_t i = threadIdx.x; i < p.dim; i += kThreads) p.x[blockIdx.x * p.dim + i] = p.scale * load(row + i);
}

// kStep elements that one load or store moves.
template <typename T, int kStep>
struct alignas(sizeof(T) * kStep) Elements {
  T at[kStep];
};

// Rows of any length, twice read.
template <int kRowThreads, typename T>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(RmsNormParams p) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kRowThreads) + threadIdx.x / kRowThreads;
  if (row >= p.rows) return;  // whole warps, or no thread of the block
  const float* x = p.x + row * p.dim;
  T* y = reinterpret_cast<T*>(p.y) + row * p.dim;
  const auto first = static_cast<int64_t>(threadIdx.x % kRowThreads);
  float sum = 0.0F;
  for (int64_t i = first; i < p.dim; i += kRowThreads) sum += x[i] * x[i];
  const float factor = 1.0F / sqrtf(row_sum<kRowThreads>(sum) / static_cast<float>(p.dim) + p.eps);
  for (int64_t i = first; i < p.dim; i += kRowThreads) store(y + i, x[i] * factor * p.weight[i]);
}

// One block a row, which its threads hold in kParts quads of elements each: for dims that are multiples of 4.
template <int kRowThreads, int kParts, typename T>
__global__ void __launch_bounds__(kRowThreads) rms_norm_quads_kernel(RmsNormParams p) {
  using Quad = Elements<float, 4>;
  const int quads = static_cast<int>(p.dim) / 4;
  const auto* x = reinterpret_cast<const Quad*>(p.x + int64_t{blockIdx.x} * p.dim);
  const auto* weight = reinterpret_cast<const Quad*>(p.weight);
  auto* y = reinterpret_cast<Elements<T, 4>*>(reinterpret_cast<T*>(p.y) + int64_t{blockIdx.x} * p.dim);
  Quad held[kParts] = {};
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kRowThreads;
    if (at < quads) held[i] = x[at];
  }
  float sum = 0.0F;
#pragma unroll
  for (const Quad& part : held) {
    for (const float e : part.at) sum += e * e;
  }
  const float factor = 1.0F / sqrtf(row_sum<kRowThreads>(sum) / static_cast<float>(p.dim) + p.eps);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kRowThreads;
    if (at >= quads) continue;
    const Quad w = weight[at];
    Elements<T, 4> out;
#pragma unroll
    for (int e = 0; e < 4; ++e) store(out.at + e, held[i].at[e] * factor * w.at[e]);
    y[at] = out;
  }
}

template <Gate kGate>
__device__ __forceinline__ float gated(float x) {
  if constexpr (kGate == Gate::kSilu) return x / (1.0F + expf(-x));
  // x / (1 + exp(-2 z)) with z = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form without its cancellation.
  const float inner = x * (1.0F + 0.044715F * x * x);
  return x / (1.0F + expf(-1.5957691216057308F * inner));
}

// One row for each blockIdx.y, kStep elements a thread and step; kStep divides p.dim.
template <Gate kGate, typename T, int kStep>
__global__ void __launch_bounds__(kThreads) gate_mul_kernel(GateParams p) {
  using Part = Elements<T, kStep>;
  const int64_t row = blockIdx.y;
  const T* gates = static_cast<const T*>(p.gate_up) + row * (p.dim + p.dim);
  T* y = static_cast<T*>(p.y) + row * p.dim;
  for (int64_t i = first_index() * kStep; i < p.dim; i += index_step() * kStep) {
    const Part gate = *reinterpret_cast<const Part*>(gates + i), up = *reinterpret_cast<const Part*>(gates + p.dim + i);
    Part out;
#pragma unroll
    for (int e = 0; e < kStep; ++e) store(out.at + e, gated<kGate>(load(gate.at + e)) * load(up.at + e));
    *reinterpret_cast<Part*>(y + i) = out;
  }
}

template <Gate kGate, typename T>
void launch_gate_mul_of(const GateParams& p) {
  // grid.y ends at 65,535: mlp_rows() is less.
  const dim3 grid(blocks_for((p.dim + 3) / 4), static_cast<unsigned>(p.rows));
  if (p.dim % 4 == 0) {
    gate_mul_kernel<kGate, T, 4><<<grid, kThreads, 0, stream()>>>(p);
  } else {
    gate_mul_kernel<kGate, T, 1><<<grid, kThreads, 0, stream()>>>(p);
  }
}

// One warp a (row, head of q, k or v), a lane two neighbouring RoPE pairs of every 64.
template <typename T>
__global__ void __launch_bounds__(kThreads) prepare_qkv_kernel(PrepareQkvParams p, RotateParams r) {
  constexpr int kMaxParts = 2;  // of a lane: heads of up to 256 channels
  using Two = Elements<float, 2>;
  const auto half = static_cast<int>(r.num_pairs), dim = half + half;
  const auto num_q = static_cast<int>(p.split.q_dim) / dim, num_kv = static_cast<int>(p.split.kv_dim) / dim;
  const int head = static_cast<int>(blockIdx.y) * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (head >= num_q + num_kv + num_kv) return;
  const bool is_q = head < num_q, is_k = !is_q && head < num_q + num_kv;
  const int64_t row = blockIdx.x;
  const T* from = reinterpret_cast<const T*>(p.split.qkv) + row * (p.split.q_dim + p.split.kv_dim + p.split.kv_dim) +
                  int64_t{head} * dim;
  const int own = is_q ? head : is_k ? head - num_q : head - num_q - num_kv;
  float* to_rows = is_q ? p.split.q : is_k ? p.split.k : p.split.v;
  T* to = reinterpret_cast<T*>(to_rows) + row * (is_q ? p.split.q_dim : p.split.kv_dim) + int64_t{own} * dim;
  const float* bias = is_q ? p.split.q_bias : is_k ? nullptr : p.split.v_bias;
  const float* norm = is_q ? p.q_norm : is_k ? p.k_norm : nullptr;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Two low[kMaxParts], high[kMaxParts];
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kMaxParts; ++i) {
    const int pair = 2 * lane + 64 * i;
    if (pair >= half) continue;
    const auto x = *reinterpret_cast<const Elements<T, 2>*>(from + pair);
    const auto y = *reinterpret_cast<const Elements<T, 2>*>(from + pair + half);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      low[i].at[e] = load(x.at + e) + (bias == nullptr ? 0.0F : bias[own * dim + pair + e]);
      high[i].at[e] = load(y.at + e) + (bias == nullptr ? 0.0F : bias[own * dim + pair + half + e]);
      sum += low[i].at[e] * low[i].at[e] + high[i].at[e] * high[i].at[e];
    }
  }
  const float factor = norm == nullptr ? 1.0F : 1.0F / sqrtf(warp_sum(sum) / static_cast<float>(dim) + p.eps);
  const int64_t table = int64_t{r.positions[row]} * half;
#pragma unroll
  for (int i = 0; i < kMaxParts; ++i) {
    const int pair = 2 * lane + 64 * i;
    if (pair >= half) continue;
    Elements<T, 2> x, y;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float a = low[i].at[e], b = high[i].at[e];
      if (norm != nullptr) {
        a *= factor * norm[pair + e];
        b *= factor * norm[pair + half + e];
      }
      const float c = is_q ? r.cosines[table + pair + e] : 1.0F, s = is_q ? r.sines[table + pair + e] : 0.0F;
      store(x.at + e, is_q ? a * c - b * s : a);
      store(y.at + e, is_q ? b * c + a * s : b);
    }
    *reinterpret_cast<Elements<T, 2>*>(to + pair) = x;
    *reinterpret_cast<Elements<T, 2>*>(to + pair + half) = y;
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

// An element as a number that is larger for a larger element and, among equals, for the first; largest of all for one
// that is not finite. -0 and 0 are equal.
__device__ __forceinline__ unsigned long long rank_of(float x, int64_t idx) {
  if (!isfinite(x)) return kNotFinite;
  const uint32_t bits = __float_as_uint(x + 0.0F);
  const uint32_t ordered = (bits & 0x80000000U) != 0U ? ~bits : bits | 0x80000000U;
  return static_cast<unsigned long long>(ordered) << 32 | (0xFFFFFFFFU - static_cast<uint32_t>(idx));
}

// Blocks (part, row) of kArgmaxElems elements each; best [rows] starts at zero.
__global__ void __launch_bounds__(kThreads)
    finite_argmax_kernel(int64_t dim, const float* x, unsigned long long* best) {
  const float* row = x + int64_t{blockIdx.y} * dim;
  const int64_t begin = int64_t{blockIdx.x} * kArgmaxElems, end = min(dim, begin + kArgmaxElems);
  unsigned long long mine = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) mine = max(mine, rank_of(row[i], i));
  for (int step = 16; step > 0; step /= 2) mine = max(mine, __shfl_xor_sync(0xffffffffU, mine, step));
  __shared__ unsigned long long of_warps[kThreads / 32];
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (const unsigned long long other : of_warps) mine = max(mine, other);
  atomicMax(best + blockIdx.y, mine);
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

void launch_embed(const EmbedParams& p) {
  if (p.num_rows == 0) return;
  const auto kernel = p.dtype == DType::kBF16  ? embed_kernel<__nv_bfloat16>
                      : p.dtype == DType::kF16 ? embed_kernel<__half>
                                               : embed_kernel<float>;
  kernel<<<static_cast<unsigned>(p.num_rows), kThreads, 0, stream()>>>(p);
}

void launch_rms_norm(const RmsNormParams& p, bool to_bf16) {
  if (p.rows == 0) return;
  const auto rows = static_cast<unsigned>(p.rows);
  if (p.dim <= kWarpRowElems) {
    constexpr unsigned kRows = kThreads / 32;
    const auto kernel = to_bf16 ? rms_norm_kernel<32, __nv_bfloat16> : rms_norm_kernel<32, float>;
    kernel<<<(rows + kRows - 1) / kRows, kThreads, 0, stream()>>>(p);
  } else if (p.dim % 4 != 0 || p.dim > 8192) {
    const auto kernel = to_bf16 ? rms_norm_kernel<kThreads, __nv_bfloat16> : rms_norm_kernel<kThreads, float>;
    kernel<<<rows, kThreads, 0, stream()>>>(p);
  } else if (p.rows <= kFewRows && p.dim > 2048) {
    const auto kernel = to_bf16 ? rms_norm_quads_kernel<1024, 2, __nv_bfloat16> : rms_norm_quads_kernel<1024, 2, float>;
    kernel<<<rows, 1024, 0, stream()>>>(p);
  } else if (p.dim > 4096) {
    const auto kernel =
        to_bf16 ? rms_norm_quads_kernel<kThreads, 8, __nv_bfloat16> : rms_norm_quads_kernel<kThreads, 8, float>;
    kernel<<<rows, kThreads, 0, stream()>>>(p);
  } else {
    const auto kernel =
        to_bf16 ? rms_norm_quads_kernel<kThreads, 4, __nv_bfloat16> : rms_norm_quads_kernel<kThreads, 4, float>;
    kernel<<<rows, kThreads, 0, stream()>>>(p);
  }
}

void launch_gate_mul(Gate gate, const GateParams& p) {
  if (p.rows * p.dim == 0) return;
  const bool silu = gate == Gate::kSilu;
  if (p.bf16) {
    silu ? launch_gate_mul_of<Gate::kSilu, __nv_bfloat16>(p) : launch_gate_mul_of<Gate::kGelu, __nv_bfloat16>(p);
  } else {
    silu ? launch_gate_mul_of<Gate::kSilu, float>(p) : launch_gate_mul_of<Gate::kGelu, float>(p);
  }
}

void launch_prepare_qkv(const PrepareQkvParams& p, const RotateParams& r) {
  const int64_t heads = (p.split.q_dim + p.split.kv_dim + p.split.kv_dim) / (r.num_pairs + r.num_pairs);
  constexpr int64_t kHeads = kThreads / 32;
  if (p.split.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(p.split.rows), static_cast<unsigned>((heads + kHeads - 1) / kHeads));
  const auto kernel = p.row_dtype == DType::kF32 ? prepare_qkv_kernel<float> : prepare_qkv_kernel<__nv_bfloat16>;
  kernel<<<grid, kThreads, 0, stream()>>>(p, r);
}

void launch_add(int64_t elems, const float* x, float* y) {
  if (elems > 0) add_kernel<<<blocks_for(elems), kThreads, 0, stream()>>>(elems, x, y);
}

void launch_add_bias(int64_t rows, int64_t dim, const float* bias, float* y) {
  if (rows * dim > 0) add_bias_kernel<<<blocks_for(rows * dim), kThreads, 0, stream()>>>(rows * dim, dim, bias, y);
}

void launch_scale_rows(int64_t rows, int64_t dim, const float* factors, float* x) {
  if (rows * dim > 0) scale_rows_kernel<<<blocks_for(rows * dim), kThreads, 0, stream()>>>(rows * dim, dim, factors, x);
}

void launch_round_e4m3(int64_t rows, int64_t dim, float* x) {
  constexpr int64_t kRows = kThreads / 32;
  if (rows > 0)
    round_e4m3_kernel<<<static_cast<unsigned>((rows + kRows - 1) / kRows), kThreads, 0, stream()>>>(rows, dim, x);
}

void launch_cap_softly(float cap, int64_t elems, float* x) {
  if (elems > 0) cap_softly_kernel<<<blocks_for(elems), kThreads, 0, stream()>>>(cap, elems, x);
}

void launch_finite_argmax(int64_t rows, int64_t dim, const float* x, unsigned long long* best) {
  if (rows * dim == 0) return;
  // grid.y ends at 65,535 rows: logits of so many would not fit.
  const dim3 grid(static_cast<unsigned>((dim + kArgmaxElems - 1) / kArgmaxElems), static_cast<unsigned>(rows));
  finite_argmax_kernel<<<grid, kThreads, 0, stream()>>>(dim, x, best);
}

void launch_target_losses(int64_t rows, int64_t dim, const float* x, const int32_t* targets, double* losses) {
  if (rows > 0) target_losses_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream()>>>(dim, x, targets, losses);
}

}  // namespace asymkv::cuda
