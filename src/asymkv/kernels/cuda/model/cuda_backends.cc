#include "asymkv/kernels/cuda/model/cuda_backends.h"

#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/cuda_attention.h"
#include "asymkv/kernels/cuda/model/cuda_model.h"

namespace asymkv {

std::string cuda_refusal() {
  return cuda_attention_refusal();
}

CudaBackends make_cuda_backends(Activations activations) {
  const std::string refusal = cuda_refusal();
  if (!refusal.empty()) throw_unsupported("{}", refusal);
  const auto tables = std::make_shared<cuda::DeviceTables>();
  return {make_cuda_attention(tables), std::make_shared<cuda::CudaModel>(activations, tables)};
}

}  // namespace asymkv
