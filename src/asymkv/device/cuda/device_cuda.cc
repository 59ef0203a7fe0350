#include <algorithm>
#include <cstdlib>
#include <utility>

#include "asymkv/device/cuda/cuda_error.h"
#include "asymkv/device/device.h"
#include "asymkv/device/device_copy.h"

namespace asymkv {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

int attribute(cudaDeviceAttr which, int ordinal) {
  int value = 0;
  ASYMKV_CUDA(cudaDeviceGetAttribute(&value, which, ordinal));
  return value;
}

DeviceInfo describe(int ordinal) {
  cudaDeviceProp properties{};
  ASYMKV_CUDA(cudaGetDeviceProperties(&properties, ordinal));
  int driver = 0;
  int runtime = 0;
  ASYMKV_CUDA(cudaDriverGetVersion(&driver));
  ASYMKV_CUDA(cudaRuntimeGetVersion(&runtime));
  DeviceInfo info;
  info.ordinal = ordinal;
  info.name = properties.name;
  info.compute_capability = properties.major * 10 + properties.minor;
  info.num_sms = properties.multiProcessorCount;
  info.l2_bytes = properties.l2CacheSize;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info.shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
  info.driver = version_text(driver);
  info.toolkit = version_text(runtime);
  return info;
}

}  // namespace

DeviceList list_devices() {
  DeviceList list;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    list.why_none = fmt::format("no GPU to be used: {}", cudaGetErrorString(status));
    return list;
  }
  try {
    for (int i = 0; i < count; ++i) list.devices.push_back(describe(i));
  } catch (const Error& e) {
    list.devices.clear();
    list.why_none = e.what();
  }
  if (list.devices.empty() && list.why_none.empty()) list.why_none = "the driver reports no GPU";
  return list;
}

DeviceInfo require_device() {
  DeviceList list = list_devices();
  if (list.devices.empty()) throw_unsupported("{}", list.why_none);
  return list.devices.front();
}

DeviceMemory device_memory() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  ASYMKV_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

DeviceBuffer::DeviceBuffer(int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw_error(ErrorCode::kResourceExhausted, "{} bytes of device memory are not to be had", bytes);
  }
  cuda_check(status, "cudaMalloc");
  data_ = static_cast<std::byte*>(memory);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) (void)cudaFree(data_);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void DeviceBuffer::upload(std::span<const std::byte> from, int64_t offset) const {
  ASYMKV_CHECK(offset >= 0 && offset + static_cast<int64_t>(from.size()) <= bytes_, "{} bytes at {} of {}", from.size(),
               offset, bytes_);
  if (!from.empty()) ASYMKV_CUDA(cudaMemcpy(data_ + offset, from.data(), from.size(), cudaMemcpyHostToDevice));
}

void DeviceBuffer::download(std::span<std::byte> to, int64_t offset) const {
  ASYMKV_CHECK(offset >= 0 && offset + static_cast<int64_t>(to.size()) <= bytes_, "{} bytes at {} of {}", to.size(),
               offset, bytes_);
  if (!to.empty()) ASYMKV_CUDA(cudaMemcpy(to.data(), data_ + offset, to.size(), cudaMemcpyDeviceToHost));
}

void DeviceBuffer::fill(uint8_t value) const {
  if (bytes_ > 0) ASYMKV_CUDA(cudaMemset(data_, value, static_cast<size_t>(bytes_)));
}

void copy_within(const DeviceBuffer& buffer, int64_t from, int64_t to, int64_t bytes) {
  ASYMKV_CHECK(bytes >= 0 && std::min(from, to) >= 0 && std::max(from, to) + bytes <= buffer.bytes() &&
                   std::abs(from - to) >= bytes,
               "copy of {} bytes from {} to {} of {}", bytes, from, to, buffer.bytes());
  ASYMKV_CUDA(cudaMemcpyAsync(buffer.data() + to, buffer.data() + from, static_cast<size_t>(bytes),
                              cudaMemcpyDeviceToDevice, nullptr));
}

}  // namespace asymkv
