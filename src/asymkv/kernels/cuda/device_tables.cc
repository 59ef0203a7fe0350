#include "asymkv/kernels/cuda/device_tables.h"

namespace asymkv::cuda {

const std::byte* DeviceTables::find(std::span<const std::byte> host) {
  std::string key(reinterpret_cast<const char*>(host.data()), host.size());
  const std::shared_ptr<void>& copy = arrays_.get(std::move(key), [&] { return stream_copy(host); });
  keep_for_recording(copy);
  return static_cast<std::byte*>(copy.get());
}

DeviceTables::Rope DeviceTables::rope(const RopeTable& table) {
  // Frequencies, length and magnitude define every entry.
  const double size[] = {table.magnitude(), static_cast<double>(table.num_positions())};
  const auto& buffers = ropes_.get(ContentKey().add(table.frequencies()).add(size).take(), [&] {
    const auto elems = static_cast<size_t>(table.num_positions() * table.num_pairs());
    return std::make_shared<const RopeBuffers>(
        RopeBuffers{to_device(std::span(table.cos_row(0), elems)), to_device(std::span(table.sin_row(0), elems))});
  });
  keep_for_recording(buffers);
  return {buffers->cosines.as<float>(), buffers->sines.as<float>()};
}

}  // namespace asymkv::cuda
