#include "asymkv/kernels/cuda/decode_kernel.cuh"
#include "asymkv/kernels/cuda/instance_table.h"

namespace asymkv::cuda {

std::vector<DecodeInstance> decode_bf16_bf16_d96() {
  return decode_family<DType::kBF16, DType::kBF16, 96>();
}

}  // namespace asymkv::cuda
