#include "asymkv/kernels/cuda/decode_kernel.cuh"
#include "asymkv/kernels/cuda/instance_table.h"

namespace asymkv::cuda {

std::vector<DecodeInstance> decode_f16_f16_d192() {
  return decode_family<DType::kF16, DType::kF16, 192>();
}

}  // namespace asymkv::cuda
