#include <cuda_runtime_api.h>

#include "asymkv/device/cuda/cuda_error.h"
#include "asymkv/kernels/cuda/prefill_kernels.h"

namespace asymkv::cuda {

void launch_widen(const DecodeConfig& config, const WidenParams& params, StreamHandle stream) {
  if (params.num_pages == 0) return;
  if (params.blocks == nullptr || params.pages == nullptr || params.k == nullptr || params.v == nullptr) {
    throw_usage("widening pages needs blocks, a page list and staging rows for keys and values");
  }
  if (config.scale_bytes() > 0 && params.scales == nullptr) throw_usage("{} needs a scale plane", config.name());
  const bool fixed = (config.k_bytes() == 1 && !config.k_dynamic) || (config.v_bytes() == 1 && !config.v_dynamic);
  if (fixed && params.fixed_scales == nullptr) throw_usage("{} needs fixed scales", config.name());
  if (config.prebias != (params.removed != nullptr)) {
    throw_usage("{} {} a removed vector", config.name(), config.prebias ? "needs" : "has no use for");
  }
  if (config.prebias && (params.cosines == nullptr || params.sines == nullptr)) {
    throw_usage("{} needs the RoPE tables", config.name());
  }
  for (const void* pointer : {static_cast<const void*>(params.blocks), static_cast<const void*>(params.k),
                              static_cast<const void*>(params.v), static_cast<const void*>(params.removed),
                              static_cast<const void*>(params.cosines), static_cast<const void*>(params.sines)}) {
    if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) throw_usage("widening pages needs arrays aligned to 16 bytes");
  }
  if (!internal::enqueue_widen(config, params, stream)) {
    throw_unsupported("no widening kernel for {}: head dims 64, 80, 96, 128, 192 and 256 are there", config.name());
  }
  ASYMKV_CUDA(cudaGetLastError());
}

}  // namespace asymkv::cuda
