#pragma once

#include <map>
#include <span>
#include <vector>

#include "asymkv/device/device.h"
#include "asymkv/kv/cache.h"
#include "asymkv/kv/tiled_layout.h"

// Pages in host memory to device memory and back, for checks against the families of the CPU.
namespace asymkv::cuda {

// The touched pages of one layer, side by side in tiled-1 on the device.
class DevicePages {
 public:
  explicit DevicePages(const KvLayerView& view) : view_(view), tiled_(view.layout->geometry(), view.layout->format()) {}

  // Index of a page among those on the device.
  int32_t add(int64_t page);
  // Copies the added pages to the device, and back.
  void upload();
  void download();
  const DeviceBuffer& blocks() const { return blocks_; }
  // The uploaded pages as a cache in device memory.
  KvLayerView device_view() const;

 private:
  TiledPlanes planes(size_t i);

  KvLayerView view_;
  TiledLayout tiled_;
  std::map<int64_t, int32_t> index_;
  std::vector<int64_t> pages_;
  std::vector<std::byte> host_blocks_, host_scales_;
  DeviceBuffer blocks_, scales_;
};

}  // namespace asymkv::cuda
