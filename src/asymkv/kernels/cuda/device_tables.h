#pragma once

#include <memory>
#include <span>

#include "asymkv/device/device.h"
#include "asymkv/kernels/cuda/content_cache.h"
#include "asymkv/kv/rope.h"

namespace asymkv::cuda {

// Small host arrays and RoPE tables in device memory. A pointer is good until some hundred other arrays were asked for.
class DeviceTables {
 public:
  template <typename T>
  const T* of(std::span<const T> host) {
    return reinterpret_cast<const T*>(find(std::as_bytes(host)));
  }
  template <typename T>
  const T* of(const std::vector<T>& host) {
    return of(std::span<const T>(host));
  }

  struct Rope {
    const float* cosines = nullptr;  // [position][pair], as RopeTable has them
    const float* sines = nullptr;
  };
  Rope rope(const RopeTable& table);

 private:
  struct RopeBuffers {
    DeviceBuffer cosines, sines;
  };
  const std::byte* find(std::span<const std::byte> host);

  ContentCache<std::shared_ptr<void>> arrays_{512};
  ContentCache<RopeBuffers> ropes_{8};
};

// Device memory that is given back, in the order of the device's work, when the last copy of the pointer goes: for
// activations and scratch. Throws Error{kResourceExhausted} with the size.
std::shared_ptr<void> stream_memory(int64_t bytes);
// The same with a copy of host bytes in it, good for launches after the call.
std::shared_ptr<void> stream_copy(std::span<const std::byte> host);
// Enqueues a copy within the device's memory.
void copy_on_device(const void* from, void* to, int64_t bytes);

// Throws Error{kInternal} if a launch before it failed.
void check_launches();

}  // namespace asymkv::cuda
