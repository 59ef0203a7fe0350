#pragma once

#include <cstdint>

namespace asymkv::cuda {

// How many quotients (quotient.h) of an element with `significand_bits` stored bits by a scale differ from the FP32
// division, over all significands of both, on the device.
uint64_t count_wrong_quotients(int significand_bits);

}  // namespace asymkv::cuda
