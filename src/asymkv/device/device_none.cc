#include "asymkv/base/error.h"
#include "asymkv/device/device.h"
#include "asymkv/device/device_copy.h"

// The device rung of a build without CUDA.
namespace asymkv {
namespace {

constexpr const char* kWhy =
    "this build has no CUDA kernels: configure with the preset \"cuda\" where nvcc is installed";

}  // namespace

DeviceList list_devices() {
  return {{}, kWhy};
}
DeviceInfo require_device() {
  throw_unsupported("{}", kWhy);
}
DeviceMemory device_memory() {
  throw_unsupported("{}", kWhy);
}

DeviceBuffer::DeviceBuffer(int64_t) {
  throw_unsupported("{}", kWhy);
}
DeviceBuffer::~DeviceBuffer() = default;
DeviceBuffer::DeviceBuffer(DeviceBuffer&&) noexcept = default;
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&&) noexcept = default;
void DeviceBuffer::upload(std::span<const std::byte>, int64_t) const {
  throw_unsupported("{}", kWhy);
}
void DeviceBuffer::download(std::span<std::byte>, int64_t) const {
  throw_unsupported("{}", kWhy);
}
void DeviceBuffer::fill(uint8_t) const {
  throw_unsupported("{}", kWhy);
}

void copy_within(const DeviceBuffer&, int64_t, int64_t, int64_t) {
  throw_unsupported("{}", kWhy);
}

}  // namespace asymkv
