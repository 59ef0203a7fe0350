#pragma once

#include "asymkv/device/device.h"

namespace asymkv {

// Copies bytes [from, from + bytes) of a buffer to [to, to + bytes) of it, in the order of the device's work. The two
// ranges must not overlap. Throws Error{kInternal} outside the buffer, Error{kUnsupported} in a build without CUDA.
void copy_within(const DeviceBuffer& buffer, int64_t from, int64_t to, int64_t bytes);

}  // namespace asymkv
