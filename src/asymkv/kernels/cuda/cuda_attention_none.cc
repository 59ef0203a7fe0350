#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/cuda_attention.h"
#include "asymkv/kernels/cuda/cuda_support.h"

// The family of a build without CUDA.
namespace asymkv {

std::string cuda_attention_refusal() {
  return cuda::family_refusal(list_devices(), cuda::decode_instance_table().size());
}

std::unique_ptr<AttentionBackend> make_cuda_attention() {
  throw_unsupported("{}", cuda_attention_refusal());
}

}  // namespace asymkv
