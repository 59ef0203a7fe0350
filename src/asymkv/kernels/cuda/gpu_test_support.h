#pragma once

#include <iostream>
#include <string_view>

#include "asymkv/device/device.h"
#include "asymkv/kv/format.h"

// What the device tests share.
namespace asymkv::cuda::testing {

// Whether a Hopper GPU is here; says why not, in the words by which ctest reports a test as skipped.
inline bool have_device() {
  static const bool have = [] {
    const DeviceList list = list_devices();
    const bool usable = !list.devices.empty() && list.devices.front().compute_capability == 90;
    if (!usable) std::cout << "ASYMKV_TEST_SKIPPED_ENTIRELY: " << list.why_none << "\n";
    return usable;
  }();
  return have;
}

// Calls `check` with every format under fixed and dynamic scales.
template <typename Check>
void for_each_format(DType native, Check check) {
  for (const char* name : {"native", "k16v8", "k8v16", "k8v8", "k8v8-prebias", "ki8v8", "ki8v8-prebias"}) {
    for (const ScaleKind scale : {ScaleKind::kFixed, ScaleKind::kDynamic}) {
      if (std::string_view(name).starts_with("ki8") && scale == ScaleKind::kFixed) continue;
      check(parse_kv_format(name, native, scale));
    }
  }
}

}  // namespace asymkv::cuda::testing
