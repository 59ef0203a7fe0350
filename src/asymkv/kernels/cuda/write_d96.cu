#include "asymkv/kernels/cuda/write_pages.cuh"

namespace asymkv::cuda {

bool internal::enqueue_write_d96(const DecodeConfig& config, const WriteParams& params, StreamHandle stream) {
  return enqueue_write<96>(config, params, stream);
}

}  // namespace asymkv::cuda
