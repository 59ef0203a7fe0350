#include "asymkv/model/config_checks.h"

#include <cmath>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

constexpr int64_t kMaxCount = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeadDim = 4096;

}  // namespace

void check_family(std::string_view family, std::string_view key, std::string_view origin) {
  if (family != "qwen2" && family != "llama") {
    throw_unsupported("{}: {} \"{}\" is not supported; known: qwen2, llama", origin, key, family);
  }
}

int64_t checked_count(int64_t value, std::string_view key, std::string_view origin) {
  if (value < 1 || value > kMaxCount) {
    throw_bad_input("{}: {} is {}, expected 1 to {}", origin, key, value, kMaxCount);
  }
  return value;
}

void check_positive(double value, std::string_view key, std::string_view origin) {
  if (!std::isfinite(value) || value <= 0) {
    throw_bad_input("{}: {} is {}, expected a finite positive number", origin, key, value);
  }
}

int32_t checked_token(int64_t id, int64_t vocab_size, std::string_view key, std::string_view origin) {
  if (id < 0 || id >= vocab_size) {
    throw_bad_input("{}: {} is {}, outside the vocabulary of {}", origin, key, id, vocab_size);
  }
  return static_cast<int32_t>(id);
}

void check_geometry(const ModelConfig& config, const GeometryKeys& keys, std::string_view origin) {
  if (config.num_q_heads % config.num_kv_heads != 0) {
    throw_bad_input("{}: {} {} is no multiple of {} {}", origin, keys.q_heads, config.num_q_heads, keys.kv_heads,
                    config.num_kv_heads);
  }
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim) {
    throw_bad_input("{}: {} is {}, expected an even number up to {}", origin, keys.head_dim, config.head_dim,
                    kMaxHeadDim);
  }
  if (config.num_layers > kMaxLayers) {
    throw_bad_input("{}: the model has {} layers, expected at most {}", origin, config.num_layers, kMaxLayers);
  }
}

void check_rope_scaling(const RopeScaling& scaling, std::string_view origin) {
  check_positive(scaling.factor, "factor", origin);
  for (const float factor : scaling.pair_factors) check_positive(static_cast<double>(factor), "a factor", origin);
  if (scaling.kind != RopeScalingKind::kLlama3) return;
  check_positive(scaling.low_freq_factor, "low_freq_factor", origin);
  check_positive(scaling.high_freq_factor, "high_freq_factor", origin);
  if (scaling.low_freq_factor >= scaling.high_freq_factor) {
    throw_bad_input("{}: low_freq_factor {} is not below high_freq_factor {}", origin, scaling.low_freq_factor,
                    scaling.high_freq_factor);
  }
  checked_count(scaling.original_max_position, "original_max_position_embeddings", origin);
}

}  // namespace asymkv
