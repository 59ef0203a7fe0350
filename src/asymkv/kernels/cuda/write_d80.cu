#include "asymkv/kernels/cuda/write_pages.cuh"

namespace asymkv::cuda {

bool internal::enqueue_write_d80(const DecodeConfig& config, const WriteParams& params, StreamHandle stream) {
  return enqueue_write<80>(config, params, stream);
}

}  // namespace asymkv::cuda
