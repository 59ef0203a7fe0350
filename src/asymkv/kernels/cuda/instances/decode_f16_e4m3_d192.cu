#include "asymkv/kernels/cuda/decode_kernel.cuh"
#include "asymkv/kernels/cuda/instance_table.h"

namespace asymkv::cuda {

std::vector<DecodeInstance> decode_f16_e4m3_d192() {
  return decode_family<DType::kF16, DType::kE4M3, 192>();
}

}  // namespace asymkv::cuda
