#include "asymkv/kernels/cuda/write_pages.cuh"

namespace asymkv::cuda {

bool internal::enqueue_write_d256(const DecodeConfig& config, const WriteParams& params, StreamHandle stream) {
  return enqueue_write<256>(config, params, stream);
}

}  // namespace asymkv::cuda
