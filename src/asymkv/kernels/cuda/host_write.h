#pragma once

#include "asymkv/ops/attention.h"

namespace asymkv::cuda {

// write_kv with params in host memory, through the device writer. Params were checked.
void write_from_host(const WriteKvParams& params);

}  // namespace asymkv::cuda
