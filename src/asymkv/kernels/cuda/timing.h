#pragma once

#include <cstdint>
#include <functional>

#include "asymkv/kernels/cuda/decode_launch.h"

namespace asymkv::cuda {

struct Timing {
  double median_us = 0.0;  // per call
  double min_us = 0.0;
};

// Captures `calls` launches in a graph, replays it twice to warm up and `repeats` times between events.
Timing time_graph(int64_t calls, int repeats, const std::function<void(int64_t call, StreamHandle stream)>& launch);

}  // namespace asymkv::cuda
