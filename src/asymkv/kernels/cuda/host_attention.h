#pragma once

#include <memory>

#include "asymkv/ops/attention.h"

namespace asymkv::cuda::testing {

// The family behind the interface of the CPU families, for checks against them: params point to host memory, and every
// call moves the pages and rows that it touches to the device and back.
std::unique_ptr<AttentionBackend> make_host_attention();

}  // namespace asymkv::cuda::testing
