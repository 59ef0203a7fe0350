#include <cuda_runtime_api.h>

#include "asymkv/device/cuda/cuda_error.h"
#include "asymkv/kernels/cuda/write_kernel.h"

namespace asymkv::cuda {
namespace {

void check_alignment(const WriteParams& p) {
  for (const void* pointer : {p.k, p.v, static_cast<const void*>(p.cosines), static_cast<const void*>(p.sines),
                              static_cast<const void*>(p.blocks), static_cast<const void*>(p.scales),
                              static_cast<const void*>(p.fresh_k), static_cast<const void*>(p.k_bias)}) {
    if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) throw_usage("a KV write needs arrays aligned to 16 bytes");
  }
  for (const int64_t stride : {p.k_token_stride, p.v_token_stride}) {
    if (stride < 0 || stride % 8 != 0) throw_usage("token stride {}: a multiple of 8 elements is needed", stride);
  }
  if (p.num_whole < 0 || p.num_whole > p.num_runs) throw_usage("{} whole pages of {} runs", p.num_whole, p.num_runs);
}

bool enqueue(const DecodeConfig& config, const WriteParams& params, StreamHandle stream) {
  switch (config.head_dim) {
    case 64:
      return internal::enqueue_write_d64(config, params, stream);
    case 80:
      return internal::enqueue_write_d80(config, params, stream);
    case 96:
      return internal::enqueue_write_d96(config, params, stream);
    case 128:
      return internal::enqueue_write_d128(config, params, stream);
    case 192:
      return internal::enqueue_write_d192(config, params, stream);
    case 256:
      return internal::enqueue_write_d256(config, params, stream);
    default:
      return false;
  }
}

}  // namespace

void launch_write(const DecodeConfig& config, const WriteParams& params, StreamHandle stream) {
  if (params.num_runs == 0) return;
  const bool narrow = config.k_bytes() == 1 || config.v_bytes() == 1;
  const bool all_dynamic = (config.k_bytes() == 2 || config.k_dynamic) && (config.v_bytes() == 2 || config.v_dynamic);
  if (params.k == nullptr || params.v == nullptr || params.blocks == nullptr || params.cosines == nullptr ||
      params.sines == nullptr || params.positions == nullptr || params.runs == nullptr) {
    throw_usage("a KV write needs keys, values, positions, RoPE tables, runs and blocks");
  }
  if (config.scale_bytes() > 0 && params.scales == nullptr) throw_usage("{} needs a scale plane", config.name());
  if (narrow && !all_dynamic && params.fixed_scales == nullptr) throw_usage("{} needs fixed scales", config.name());
  if (config.prebias && params.removed == nullptr) throw_usage("{} needs the removed vector", config.name());
  check_alignment(params);
  if (!enqueue(config, params, stream)) {
    throw_unsupported("no KV writer for {}: head dims 64, 80, 96, 128, 192 and 256 are there", config.name());
  }
  ASYMKV_CUDA(cudaGetLastError());
}

}  // namespace asymkv::cuda
