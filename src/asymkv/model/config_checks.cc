#include "asymkv/model/config_checks.h"

#include <cmath>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

constexpr int64_t kMaxCount = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeadDim = 4096;

}  // namespace

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
  check_positive(scaling.attention_factor, "attention_factor", origin);
  for (const float factor : scaling.pair_factors) check_positive(static_cast<double>(factor), "a factor", origin);
  for (const float factor : scaling.long_pair_factors) check_positive(static_cast<double>(factor), "a factor", origin);
  const auto check_below = [origin](double low, std::string_view low_key, double high, std::string_view high_key) {
    check_positive(low, low_key, origin);
    check_positive(high, high_key, origin);
    if (low >= high) throw_bad_input("{}: {} {} is not below {} {}", origin, low_key, low, high_key, high);
  };
  const RopeScalingKind kind = scaling.kind;
  if (kind == RopeScalingKind::kLlama3) {
    check_below(scaling.low_freq_factor, "low_freq_factor", scaling.high_freq_factor, "high_freq_factor");
  }
  if (kind == RopeScalingKind::kYarn) check_below(scaling.beta_slow, "beta_slow", scaling.beta_fast, "beta_fast");
  if (kind == RopeScalingKind::kLlama3 || kind == RopeScalingKind::kYarn || kind == RopeScalingKind::kLongRope) {
    checked_count(scaling.original_max_position, "original_max_position_embeddings", origin);
  }
}

}  // namespace asymkv
