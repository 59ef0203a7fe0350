#pragma once

#include <memory>
#include <span>

#include "asymkv/device/device.h"
#include "asymkv/kernels/cuda/content_cache.h"
#include "asymkv/kernels/cuda/work_stream.h"
#include "asymkv/kv/rope.h"

namespace asymkv::cuda {

// Small host arrays and RoPE tables in device memory. A pointer is good until some hundred other arrays were asked for,
// or as long as the recording that it was asked for in.
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
  ContentCache<std::shared_ptr<const RopeBuffers>> ropes_{8};
};

}  // namespace asymkv::cuda
