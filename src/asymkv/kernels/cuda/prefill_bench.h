#pragma once

#include <functional>
#include <string>

#include "asymkv/base/json.h"

namespace asymkv::cuda {

// Times the writer, the widening kernel and whole prefill steps on the current device, each row with its record.
// 32/8 heads x 128, BF16 model, pages of 16 in shuffled order. Rows of prefill steps are checked against the
// double-precision reference in the same run (a sample of query rows, all heads). Throws Error{kUnsupported} without a
// Hopper GPU, Error{kInternal} if a row is wrong. A build without cuDNN has no prefill rows and says why.
Json measure_prefill(const std::function<void(const std::string&)>& progress);

}  // namespace asymkv::cuda
