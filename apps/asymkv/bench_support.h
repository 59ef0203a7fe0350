#pragma once

#include <cstdint>
#include <vector>

#include "asymkv/kv/layout.h"
#include "asymkv/model/config.h"

namespace asymkv::app {

// Token ids for measurements: which token it is does not change the time.
class DrawnTokens {
 public:
  explicit DrawnTokens(int64_t vocab_size) : vocab_size_(static_cast<uint64_t>(vocab_size)) {}
  std::vector<int32_t> take(int64_t count);

 private:
  uint64_t vocab_size_;
  uint64_t state_ = 1;
};

// Of an even number the mean of the middle two. There is at least one value.
double median_of(std::vector<double> values);

// Bytes of one cached token in all layers of a cache, pages full.
double token_bytes(const KvLayout& layout, const ModelConfig& config);

}  // namespace asymkv::app
