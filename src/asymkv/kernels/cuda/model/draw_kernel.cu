#include "asymkv/kernels/cuda/model/draw_kernel.h"

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/device/device_radix_sort.cuh>

#include "asymkv/kernels/cuda/elementwise.cuh"
#include "asymkv/kernels/cuda/work_stream.h"

namespace asymkv::cuda {
namespace {

constexpr int kDrawThreads = 1024;

__global__ void __launch_bounds__(kThreads) count_kernel(int64_t dim, int32_t* ids) {
  for (int64_t i = first_index(); i < dim; i += index_step()) ids[i] = static_cast<int32_t>(i);
}

// One block, whose threads take consecutive runs of the sorted logits.
__global__ void __launch_bounds__(kDrawThreads) draw_kernel(int64_t dim, const float* sorted, const int32_t* ids,
                                                            SamplingLaw law, const double* uniform, int32_t* token) {
  using Scan = cub::BlockScan<double, kDrawThreads>;
  using Reduce = cub::BlockReduce<double, kDrawThreads>;
  __shared__ union {
    typename Scan::TempStorage scan;
    typename Reduce::TempStorage reduce;
  } scratch;
  __shared__ double kept_sum;
  __shared__ unsigned long long drawn;
  bool finite = true;
  for (int64_t i = threadIdx.x; i < dim; i += kDrawThreads) finite = finite && isfinite(sorted[i]);
  if (__syncthreads_and(static_cast<int>(finite)) == 0) {
    if (threadIdx.x == 0) *token = kNoToken;
    return;
  }
  const int64_t count = law.top_k > 0 && law.top_k < dim ? law.top_k : dim;
  const int64_t step = (count + kDrawThreads - 1) / kDrawThreads;
  const int64_t begin = min(count, step * threadIdx.x), end = min(count, begin + step);
  const auto weight = [&](int64_t i) {
    return exp((static_cast<double>(sorted[i]) - static_cast<double>(sorted[0])) / law.temperature);
  };
  double own = 0.0;
  for (int64_t i = begin; i < end; ++i) own += weight(i);
  double before = 0.0, total = 0.0;
  Scan(scratch.scan).ExclusiveSum(own, before, total);
  __syncthreads();
  // Those before which the weights do not reach top_p of all: a first run of them.
  const double enough = law.top_p * total;
  const auto is_kept = [&](int64_t i, double so_far) { return i == 0 || so_far < enough; };
  double so_far = before, kept = 0.0;
  for (int64_t i = begin; i < end && is_kept(i, so_far); ++i) {
    const double own_weight = weight(i);
    so_far += own_weight;
    kept += own_weight;
  }
  const double mass = Reduce(scratch.reduce).Sum(kept);
  if (threadIdx.x == 0) {
    kept_sum = mass;
    drawn = 0;
  }
  __syncthreads();
  // The last kept logit whose weights before it do not exceed the target.
  const double target = *uniform * kept_sum;
  so_far = before;
  unsigned long long last = 0;
  for (int64_t i = begin; i < end && is_kept(i, so_far) && so_far <= target; ++i) {
    last = static_cast<unsigned long long>(i);
    so_far += weight(i);
  }
  atomicMax(&drawn, last);
  __syncthreads();
  if (threadIdx.x == 0) *token = ids[drawn];
}

}  // namespace

int launch_draw(const DrawParams& p) {
  if (p.rows * p.dim == 0) return cudaSuccess;
  auto* stream = static_cast<cudaStream_t>(current_stream());
  const auto of_ids = static_cast<int64_t>(sizeof(int32_t)) * p.dim;
  const std::shared_ptr<void> keys = stream_memory(of_ids), ids = stream_memory(of_ids), order = stream_memory(of_ids);
  auto* sorted = static_cast<float*>(keys.get());
  auto *from = static_cast<int32_t*>(ids.get()), *to = static_cast<int32_t*>(order.get());
  count_kernel<<<blocks_for(p.dim), kThreads, 0, stream>>>(p.dim, from);
  // Stable: of equal logits the lower id stays first.
  size_t bytes = 0;
  const auto sort = [&](void* work, int64_t row) {
    return cub::DeviceRadixSort::SortPairsDescending(work, bytes, p.x + row * p.dim, sorted, from, to,
                                                     static_cast<int>(p.dim), 0, 32, stream);
  };
  cudaError_t status = sort(nullptr, 0);
  const std::shared_ptr<void> work = stream_memory(static_cast<int64_t>(bytes));
  for (int64_t row = 0; row < p.rows && status == cudaSuccess; ++row) {
    status = sort(work.get(), row);
    draw_kernel<<<1, kDrawThreads, 0, stream>>>(p.dim, sorted, to, p.law, p.uniforms + row, p.tokens + row);
  }
  return status;
}

}  // namespace asymkv::cuda
