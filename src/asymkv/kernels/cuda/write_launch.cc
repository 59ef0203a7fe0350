#include <cuda_runtime_api.h>

#include "asymkv/device/cuda/cuda_error.h"
#include "asymkv/kernels/cuda/write_kernel.h"

namespace asymkv::cuda {

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
  if (!internal::enqueue_write(config, params, stream)) {
    throw_unsupported("no KV writer for {}: head dims 64, 128 and 256 are there", config.name());
  }
  ASYMKV_CUDA(cudaGetLastError());
}

}  // namespace asymkv::cuda
