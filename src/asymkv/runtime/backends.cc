#include "asymkv/runtime/backends.h"

#include "asymkv/base/error.h"
#include "asymkv/kernels/backends.h"
#include "asymkv/kernels/cpu/model/cpu_model.h"
#include "asymkv/runtime/launch_log.h"

namespace asymkv {

std::vector<BackendChoice> list_backends() {
  return {{"cpu", true, ""},
          {"ref", true, ""},
          {"cuda", false,
           "models do not run on CUDA yet: use --device cpu (the CUDA attention kernels have their own bench)"}};
}

Backends select_backends(std::string_view device) {
  for (const BackendChoice& choice : list_backends()) {
    if (choice.name != device) continue;
    if (!choice.available) throw_unsupported("device \"{}\": {}", device, choice.reason);
    Backends backends;
    backends.model = make_cpu_model_backend();
    backends.attention =
        std::make_shared<LoggedAttention>(device == "ref" ? make_ref_attention() : make_cpu_attention());
    return backends;
  }
  throw_usage("unknown device \"{}\"; known: cpu, ref, cuda", device);
}

}  // namespace asymkv
