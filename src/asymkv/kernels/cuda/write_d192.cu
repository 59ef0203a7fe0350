#include "asymkv/kernels/cuda/write_pages.cuh"

namespace asymkv::cuda {

bool internal::enqueue_write_d192(const DecodeConfig& config, const WriteParams& params, StreamHandle stream) {
  return enqueue_write<192>(config, params, stream);
}

}  // namespace asymkv::cuda
