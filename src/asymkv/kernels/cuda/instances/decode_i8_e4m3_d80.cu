#include "asymkv/kernels/cuda/decode_kernel.cuh"
#include "asymkv/kernels/cuda/instance_table.h"

namespace asymkv::cuda {

std::vector<DecodeInstance> decode_i8_e4m3_d80() {
  return decode_family<DType::kI8, DType::kE4M3, 80>();
}

}  // namespace asymkv::cuda
