#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/cuda_support.h"
#include "asymkv/kernels/cuda/model/cuda_backends.h"

// The families of a build without CUDA.
namespace asymkv {

std::string cuda_refusal() {
  return cuda::family_refusal(list_devices(), cuda::decode_instance_table().size());
}

CudaBackends make_cuda_backends(Activations /*activations*/) {
  throw_unsupported("{}", cuda_refusal());
}

}  // namespace asymkv
