#include "asymkv/kernels/cuda/cuda_support.h"

#include "asymkv/base/error.h"
#include "asymkv/kernels/checks.h"

namespace asymkv::cuda {

std::string family_kernel_name(Phase phase, const DecodeConfig& config) {
  return fmt::format("{}/{}/{}_{}_d{}{}{}{}", kFamilyName, phase_name(phase), dtype_name(config.key),
                     dtype_name(config.value), config.head_dim, config.k_dynamic ? "_kd" : "",
                     config.v_dynamic ? "_vd" : "", config.prebias ? "_pb" : "");
}

Support family_support(const KvGeometry& geometry, const KvFormat& format, int64_t group, Phase phase) {
  const std::string refusal = common_refusal(geometry, group);
  if (!refusal.empty()) return {false, "", refusal};
  const DecodeChoice choice = choose_decode(geometry, format, group);
  if (!choice.ok) return {false, "", choice.reason};
  return {true, family_kernel_name(phase, choice.config), ""};
}

bool reads_older_keys_early(const AttendSequence& sequence) {
  return sequence.num_queries <= 1 || sequence.stored_len <= sequence.query_pos;
}

std::string family_refusal(const DeviceList& devices, size_t instances) {
  if (devices.devices.empty()) return devices.why_none;
  if (instances == 0)
    return "this build has no CUDA kernels: configure with the preset \"cuda\" where nvcc is installed";
  const DeviceInfo& device = devices.devices.front();
  if (device.compute_capability == 90) return {};
  return fmt::format("{} has compute capability {}.{}: this family is compiled for 9.0 (H100, H200)", device.name,
                     device.compute_capability / 10, device.compute_capability % 10);
}

}  // namespace asymkv::cuda
