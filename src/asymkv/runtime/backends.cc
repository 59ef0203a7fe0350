#include "asymkv/runtime/backends.h"

#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/kernels/backends.h"
#include "asymkv/kernels/cuda/model/cuda_backends.h"
#include "asymkv/runtime/launch_log.h"

namespace asymkv {

namespace {

std::unique_ptr<AttentionBackend> make_attention(std::string_view device) {
  if (device == "ref") return make_ref_attention();
  return make_cpu_attention();
}

}  // namespace

std::vector<BackendChoice> list_backends() {
  const std::string no_cuda = cuda_refusal();
  return {{"cpu", true, ""}, {"ref", true, ""}, {"cuda", no_cuda.empty(), no_cuda}};
}

Backends select_backends(std::string_view device, Activations activations) {
  for (const BackendChoice& choice : list_backends()) {
    if (choice.name != device) continue;
    if (!choice.available) throw_unsupported("device \"{}\": {}", device, choice.reason);
    Backends backends;
    if (device == "cuda") {
      CudaBackends cuda = make_cuda_backends(activations);
      backends.model = std::move(cuda.model);
      backends.attention = std::make_shared<LoggedAttention>(std::move(cuda.attention));
      return backends;
    }
    backends.model = make_cpu_model_backend(activations);
    backends.attention = std::make_shared<LoggedAttention>(make_attention(device));
    if (device == "cpu") backends.control = std::make_shared<LoggedAttention>(make_ref_attention());
    return backends;
  }
  throw_usage("unknown device \"{}\"; known: cpu, ref, cuda", device);
}

bool on_device(const Backends& backends) {
  return backends.attention->cache_memory() == KvMemory::kDevice;
}

}  // namespace asymkv
