#include "asymkv/model/rope_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace asymkv {
namespace {

// The share of a frequency that llama3 scaling keeps: wavelengths up to original / high_freq_factor stay, those above
// original / low_freq_factor are divided by `factor`, with a linear blend between (transformers,
// modeling_rope_utils.py, _compute_llama3_parameters).
double llama3_scaled(double inverse_frequency, const RopeScaling& scaling) {
  const double wavelength = 2.0 * std::numbers::pi / inverse_frequency;
  const auto original = static_cast<double>(scaling.original_max_position);
  if (wavelength < original / scaling.high_freq_factor) return inverse_frequency;
  if (wavelength > original / scaling.low_freq_factor) return inverse_frequency / scaling.factor;
  const double smooth =
      (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - smooth) * inverse_frequency / scaling.factor + smooth * inverse_frequency;
}

// The ramp of YaRN over pair numbers (Peng et al., eq. 17 to 21; transformers, _compute_yarn_parameters, whose bounds
// and singular case it keeps).
struct YarnRamp {
  double low = 0.0;
  double high = 0.0;

  YarnRamp(const RopeConfig& rope, int64_t head_dim) {
    const auto dim = static_cast<double>(head_dim);
    const auto original = static_cast<double>(rope.scaling.original_max_position);
    const auto pair_of = [&](double turns) {
      return dim * std::log(original / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(rope.theta));
    };
    low = pair_of(rope.scaling.beta_fast);
    high = pair_of(rope.scaling.beta_slow);
    if (rope.scaling.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, dim - 1.0);
    if (low == high) high += 0.001;
  }

  // 0: kept, 1: divided.
  double divided(size_t pair) const { return std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0); }
};

double yarn_scaled(double inverse_frequency, double divided, double factor) {
  return inverse_frequency / factor * divided + inverse_frequency * (1.0 - divided);
}

double scaled(double inverse_frequency, size_t pair, const RopeConfig& rope, int64_t head_dim, int64_t num_positions) {
  const RopeScaling& scaling = rope.scaling;
  switch (scaling.kind) {
    case RopeScalingKind::kNone:
      return inverse_frequency;
    case RopeScalingKind::kLinear:
      return inverse_frequency / scaling.factor;
    case RopeScalingKind::kLlama3:
      return llama3_scaled(inverse_frequency, scaling);
    case RopeScalingKind::kYarn:
      return yarn_scaled(inverse_frequency, YarnRamp(rope, head_dim).divided(pair), scaling.factor);
    case RopeScalingKind::kLongRope: {
      const bool is_long = num_positions > scaling.original_max_position;
      return inverse_frequency /
             static_cast<double>((is_long ? scaling.long_pair_factors : scaling.pair_factors).at(pair));
    }
    case RopeScalingKind::kFactors:
      return inverse_frequency / static_cast<double>(scaling.pair_factors.at(pair));
  }
  return inverse_frequency;
}

}  // namespace

std::string_view rope_scaling_name(RopeScalingKind kind) {
  switch (kind) {
    case RopeScalingKind::kNone:
      return "none";
    case RopeScalingKind::kLinear:
      return "linear";
    case RopeScalingKind::kLlama3:
      return "llama3";
    case RopeScalingKind::kYarn:
      return "yarn";
    case RopeScalingKind::kLongRope:
      return "longrope";
    case RopeScalingKind::kFactors:
      return "factors";
  }
  return "?";
}

std::vector<double> rope_inverse_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t num_positions) {
  std::vector<double> result(static_cast<size_t>(head_dim / 2));
  for (size_t p = 0; p < result.size(); ++p) {
    const double exponent = 2.0 * static_cast<double>(p) / static_cast<double>(head_dim);
    result[p] = scaled(std::pow(rope.theta, -exponent), p, rope, head_dim, num_positions);
  }
  return result;
}

double yarn_attention_factor(double factor, double mscale, double mscale_all_dim) {
  const auto term = [factor](double multiplier) {
    return factor <= 1.0 ? 1.0 : 0.1 * multiplier * std::log(factor) + 1.0;
  };
  if (mscale != 0.0 && mscale_all_dim != 0.0) return term(mscale) / term(mscale_all_dim);
  return term(1.0);
}

double longrope_attention_factor(double factor, int64_t original_max_position) {
  if (factor <= 1.0) return 1.0;
  return std::sqrt(1.0 + std::log(factor) / std::log(static_cast<double>(original_max_position)));
}

}  // namespace asymkv
