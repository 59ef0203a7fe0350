#include "asymkv/kernels/cuda/device_tables.h"

#include <cuda_runtime_api.h>

#include "asymkv/device/cuda/cuda_error.h"

namespace asymkv::cuda {

const std::byte* DeviceTables::find(std::span<const std::byte> host) {
  std::string key(reinterpret_cast<const char*>(host.data()), host.size());
  return static_cast<std::byte*>(arrays_.get(std::move(key), [&] { return stream_copy(host); }).get());
}

DeviceTables::Rope DeviceTables::rope(const RopeTable& table) {
  // Frequencies, length and magnitude define every entry.
  const double size[] = {table.magnitude(), static_cast<double>(table.num_positions())};
  const RopeBuffers& buffers = ropes_.get(ContentKey().add(table.frequencies()).add(size).take(), [&] {
    const auto elems = static_cast<size_t>(table.num_positions() * table.num_pairs());
    return RopeBuffers{to_device(std::span(table.cos_row(0), elems)), to_device(std::span(table.sin_row(0), elems))};
  });
  return {buffers.cosines.as<float>(), buffers.sines.as<float>()};
}

std::shared_ptr<void> stream_memory(int64_t bytes) {
  if (bytes == 0) return nullptr;
  void* memory = nullptr;
  const cudaError_t status = cudaMallocAsync(&memory, static_cast<size_t>(bytes), nullptr);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw_error(ErrorCode::kResourceExhausted, "{} bytes of device memory are not to be had", bytes);
  }
  cuda_check(status, "cudaMallocAsync");
  return {memory, [](void* done) { (void)cudaFreeAsync(done, nullptr); }};
}

std::shared_ptr<void> stream_copy(std::span<const std::byte> host) {
  std::shared_ptr<void> copy = stream_memory(static_cast<int64_t>(host.size()));
  // From pageable memory: the call returns once the bytes have left it.
  if (!host.empty()) {
    ASYMKV_CUDA(cudaMemcpyAsync(copy.get(), host.data(), host.size(), cudaMemcpyHostToDevice, nullptr));
  }
  return copy;
}

void copy_on_device(const void* from, void* to, int64_t bytes) {
  ASYMKV_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, nullptr));
}

void check_launches() {
  ASYMKV_CUDA(cudaGetLastError());
}

}  // namespace asymkv::cuda
