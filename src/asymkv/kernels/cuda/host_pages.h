#pragma once

#include <map>
#include <span>
#include <vector>

#include "asymkv/device/device.h"
#include "asymkv/kv/cache.h"
#include "asymkv/kv/tiled_layout.h"

// Host memory to device memory and back, for the family's host interface (cuda_attention.h).
namespace asymkv::cuda {

// dtype: kBF16 or kF16.
std::vector<uint16_t> to_16bit(DType dtype, std::span<const float> from);
std::vector<float> from_16bit(DType dtype, std::span<const uint16_t> from);

// The touched pages of one layer, side by side in tiled-1 on the device.
class DevicePages {
 public:
  explicit DevicePages(const KvLayerView& view) : view_(view), tiled_(view.layout->geometry(), view.layout->format()) {}

  // Index of a page among those on the device.
  int32_t add(int64_t page);
  // Copies the added pages to the device, and back.
  void upload();
  void download();
  const KvLayerView& view() const { return view_; }
  const DeviceBuffer& blocks() const { return blocks_; }
  const DeviceBuffer& scales() const { return scales_; }
  const float* fixed_scales() const { return fixed_.as<float>(); }

 private:
  TiledPlanes planes(size_t i);

  KvLayerView view_;
  TiledLayout tiled_;
  std::map<int64_t, int32_t> index_;
  std::vector<int64_t> pages_;
  std::vector<std::byte> host_blocks_, host_scales_;
  DeviceBuffer blocks_, scales_, fixed_;
};

}  // namespace asymkv::cuda
