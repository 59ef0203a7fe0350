#pragma once

#include <cstdint>

namespace asymkv {

// Query heads that share one KV head, at most: what every attention kernel serves and what a plan may promise.
inline constexpr int64_t kMaxQueryGroup = 16;

}  // namespace asymkv
