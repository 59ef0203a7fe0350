#include "bench_support.h"

#include <algorithm>

namespace asymkv::app {

std::vector<int32_t> DrawnTokens::take(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    ids.push_back(static_cast<int32_t>((state_ >> 33) % vocab_size_));
  }
  return ids;
}

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double token_bytes(const KvLayout& layout, const ModelConfig& config) {
  return static_cast<double>(layout.page_bytes().total() * config.num_layers) /
         static_cast<double>(layout.geometry().page_size);
}

}  // namespace asymkv::app
