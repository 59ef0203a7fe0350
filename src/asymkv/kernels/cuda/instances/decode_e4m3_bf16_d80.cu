#include "asymkv/kernels/cuda/decode_kernel.cuh"
#include "asymkv/kernels/cuda/instance_table.h"

namespace asymkv::cuda {

std::vector<DecodeInstance> decode_e4m3_bf16_d80() {
  return decode_family<DType::kE4M3, DType::kBF16, 80>();
}

}  // namespace asymkv::cuda
