#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/sdpa.h"

// The SDPA of a build without cuDNN.
namespace asymkv::cuda {

struct Sdpa::Impl {};

std::string sdpa_refusal() {
  return "this build has no cuDNN: run scripts/fetch_cudnn.sh and configure with -DASYMKV_CUDNN_ROOT";
}
Sdpa::Sdpa() {
  throw_unsupported("{}", sdpa_refusal());
}
Sdpa::~Sdpa() = default;
void Sdpa::run(const SdpaShape&, const SdpaArguments&, StreamHandle) {
  throw_unsupported("{}", sdpa_refusal());
}
std::string Sdpa::version() const {
  return {};
}

}  // namespace asymkv::cuda
