#include "asymkv/kernels/cuda/decode_kernel.cuh"
#include "asymkv/kernels/cuda/instance_table.h"

namespace asymkv::cuda {

std::vector<DecodeInstance> decode_f16_e4m3_d96() {
  return decode_family<DType::kF16, DType::kE4M3, 96>();
}

}  // namespace asymkv::cuda
