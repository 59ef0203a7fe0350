#include "asymkv/kernels/cuda/decode_kernel.cuh"
#include "asymkv/kernels/cuda/instance_table.h"

namespace asymkv::cuda {

std::vector<DecodeInstance> decode_e4m3_f16_d96() {
  return decode_family<DType::kE4M3, DType::kF16, 96>();
}

}  // namespace asymkv::cuda
