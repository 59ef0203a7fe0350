#pragma once

#include <functional>
#include <string>

#include "asymkv/base/json.h"

namespace asymkv::cuda {

// Times the fused writer on 65,536 tokens of 8 KV heads x 128 in whole shuffled pages, every format. Bytes of a row: K
// and V read once in 16 bits, the two RoPE rows of each token, the stored blocks and scales (and fresh keys) written
// once. The RoPE rows of 8,192 positions stay in the L2, so each row also has its share without them.
Json measure_writers(double copy_tbps, const std::function<void(const std::string&)>& progress);

}  // namespace asymkv::cuda
