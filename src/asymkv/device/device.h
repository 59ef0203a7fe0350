#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace asymkv {

// One GPU as its driver describes it.
struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  int compute_capability = 0;  // 90 for Hopper
  int64_t num_sms = 0;
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
  int64_t shared_bytes_per_block = 0;  // with the opt-in
  std::string driver;                  // highest CUDA version the driver serves, "13.0"
  std::string toolkit;                 // of the runtime this build is linked to
};

struct DeviceList {
  std::vector<DeviceInfo> devices;
  std::string why_none;  // one sentence if there is none
};
// Never throws: a build without CUDA, a machine without driver and one without GPU each say so in why_none.
DeviceList list_devices();

// The first device, for a command that needs one. Throws Error{kUnsupported} with why_none.
DeviceInfo require_device();

struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};
// What the driver says of the current device now, all programs on it counted. Throws Error{kUnsupported} in a build
// without CUDA, Error{kInternal} where the driver fails.
DeviceMemory device_memory();

// Device memory of one device, freed on destruction. Throws Error{kResourceExhausted} with the sizes if there is not
// enough, Error{kUnsupported} in a build without CUDA.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(int64_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  int64_t bytes() const { return bytes_; }
  std::byte* data() const { return data_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  // Synchronous copies; `offset` in bytes. Throw Error{kInternal} outside the buffer.
  void upload(std::span<const std::byte> from, int64_t offset = 0) const;
  void download(std::span<std::byte> to, int64_t offset = 0) const;
  void fill(uint8_t value) const;

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// A buffer that holds a copy of host elements.
template <typename T>
DeviceBuffer to_device(std::span<const T> host) {
  DeviceBuffer buffer(static_cast<int64_t>(host.size_bytes()));
  buffer.upload(std::as_bytes(host));
  return buffer;
}
template <typename T>
DeviceBuffer to_device(const std::vector<T>& host) {
  return to_device(std::span<const T>(host));
}
template <typename T>
std::vector<T> to_host(const DeviceBuffer& buffer, int64_t count) {
  std::vector<T> host(static_cast<size_t>(count));
  buffer.download(std::as_writable_bytes(std::span(host)));
  return host;
}

}  // namespace asymkv
