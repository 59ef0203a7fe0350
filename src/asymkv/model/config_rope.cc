#include <cmath>

#include "asymkv/base/error.h"
#include "asymkv/model/config_source.h"

namespace asymkv {
namespace {

constexpr double kDefaultTheta = 10000.0;          // of transformers, for the first llama files, which do not say
constexpr double kDefaultGlobalTheta = 1000000.0;  // of gemma3's layers without a window
constexpr const char* kFullLayers = "full_attention";
constexpr const char* kWindowLayers = "sliding_attention";

// One RoPE description: an object under `key`, and the file around it.
struct RopeSource {
  const ConfigSource& file;
  const Json& rope;
  std::string where;  // "config.json: rope_scaling"
  const ModelConfig& config;

  double number(const char* key) const { return require_number(rope, key, where); }
  double number_or_absent(const char* key, double fallback) const { return number_or(rope, key, fallback, where); }

  // transformers: a value beside the RoPE object has priority over the one inside it.
  int64_t original_max_position() const {
    constexpr const char* kKey = "original_max_position_embeddings";
    return file.has(kKey) ? file.count(kKey) : require_int(rope, kKey, where);
  }
  // How far the context was stretched; transformers derives an absent factor from the two lengths.
  double stretch(int64_t original) const {
    const bool given = rope.contains("factor") && !rope.at("factor").is_null();
    if (given) return number("factor");
    checked_count(original, "original_max_position_embeddings", where);
    return static_cast<double>(config.max_position_embeddings) / static_cast<double>(original);
  }
};

RopeScalingKind read_kind(const RopeSource& source, const Family& family) {
  std::string type =
      string_or(source.rope, "rope_type", string_or(source.rope, "type", "default", source.where), source.where);
  // Phi-3's first files call LongRoPE by these names; transformers renames them the same way.
  if (family.fused_projections && (type == "su" || type == "yarn")) type = "longrope";
  if (type == "default") return RopeScalingKind::kNone;
  for (const RopeScalingKind kind :
       {RopeScalingKind::kLinear, RopeScalingKind::kLlama3, RopeScalingKind::kYarn, RopeScalingKind::kLongRope}) {
    if (type == rope_scaling_name(kind)) return kind;
  }
  throw_unsupported("{} has rope_type \"{}\"; known: default, linear, llama3, yarn, longrope", source.where, type);
}

std::vector<float> read_factors(const RopeSource& source, const char* key) {
  const Json& list = require_field(source.rope, key, source.where);
  const auto num_pairs = static_cast<size_t>(source.config.head_dim / 2);
  if (!list.is_array() || list.size() != num_pairs) {
    throw_bad_input("{}: {} must be an array of {} numbers, one per RoPE pair", source.where, key, num_pairs);
  }
  std::vector<float> factors;
  for (const Json& value : list) {
    if (!value.is_number()) {
      throw_bad_input("{}: {} must hold numbers, found {}", source.where, key, value.type_name());
    }
    const auto factor = value.get<float>();
    if (!std::isfinite(factor) || factor <= 0.0F) {
      throw_bad_input("{}: {} holds {}, expected numbers that are finite and positive in 32 bits", source.where, key,
                      value.dump());
    }
    factors.push_back(factor);
  }
  return factors;
}

void read_yarn(const RopeSource& source, RopeScaling& scaling) {
  scaling.original_max_position = source.original_max_position();
  scaling.factor = source.stretch(scaling.original_max_position);
  scaling.beta_fast = source.number_or_absent("beta_fast", scaling.beta_fast);
  scaling.beta_slow = source.number_or_absent("beta_slow", scaling.beta_slow);
  scaling.truncate = bool_or(source.rope, "truncate", true, source.where);
  const double derived = yarn_attention_factor(scaling.factor, source.number_or_absent("mscale", 0.0),
                                               source.number_or_absent("mscale_all_dim", 0.0));
  scaling.attention_factor = source.number_or_absent("attention_factor", derived);
}

void read_longrope(const RopeSource& source, RopeScaling& scaling) {
  for (const char* key : {"short_mscale", "long_mscale"}) {
    if (source.rope.contains(key)) throw_unsupported("{}: {} is not supported", source.where, key);
  }
  scaling.original_max_position = source.original_max_position();
  scaling.factor = source.stretch(scaling.original_max_position);
  scaling.pair_factors = read_factors(source, "short_factor");
  scaling.long_pair_factors = read_factors(source, "long_factor");
  const double derived = longrope_attention_factor(scaling.factor, scaling.original_max_position);
  scaling.attention_factor = source.number_or_absent("attention_factor", derived);
}

RopeScaling read_scaling(const RopeSource& source, const Family& family) {
  RopeScaling scaling;
  if (source.number_or_absent("partial_rotary_factor", 1.0) != 1.0) {
    throw_unsupported("{}: partial_rotary_factor other than 1 is not supported", source.where);
  }
  scaling.kind = read_kind(source, family);
  if (scaling.kind == RopeScalingKind::kLinear) scaling.factor = source.number("factor");
  if (scaling.kind == RopeScalingKind::kLlama3) {
    scaling.factor = source.number("factor");
    scaling.low_freq_factor = source.number("low_freq_factor");
    scaling.high_freq_factor = source.number("high_freq_factor");
    scaling.original_max_position = source.original_max_position();
  }
  if (scaling.kind == RopeScalingKind::kYarn) read_yarn(source, scaling);
  if (scaling.kind == RopeScalingKind::kLongRope) read_longrope(source, scaling);
  check_rope_scaling(scaling, source.where);
  return scaling;
}

// `key` names the object in errors: "rope_scaling", "rope_parameters.full_attention".
RopeConfig read_rope(const ConfigSource& file, const Json& rope, const std::string& key, double theta,
                     const Family& family, const ModelConfig& config) {
  const RopeSource source{file, rope, fmt::format("{}: {}", file.origin, key), config};
  if (!rope.is_object()) throw_bad_input("{} must be an object, found {}", source.where, rope.type_name());
  RopeConfig result{number_or(rope, "rope_theta", theta, source.where), read_scaling(source, family)};
  check_positive(result.theta, "rope_theta", source.where);
  if (rope.contains("rope_theta") && file.has("rope_theta") && result.theta != theta) {
    throw_bad_input("{}: rope_theta is {} but {} says {}", file.origin, theta, key, result.theta);
  }
  return result;
}

// Queries of ministral3 grow with the logarithm of the position.
void read_temperature(const ConfigSource& file, const Json& rope, const std::string& key, const Family& family,
                      ModelConfig& config) {
  const std::string where = fmt::format("{}: {}", file.origin, key);
  const double beta = number_or(rope, "llama_4_scaling_beta", 0.0, where);
  if (beta == 0.0) return;
  if (!family.temperature) throw_unsupported("{}: llama_4_scaling_beta is not supported here", where);
  check_positive(beta, "llama_4_scaling_beta", where);
  config.query_temperature = beta;
  config.query_temperature_length = checked_count(RopeSource{file, rope, where, config}.original_max_position(),
                                                  "original_max_position_embeddings", where);
}

// transformers 5 writes the two kinds of layers of gemma3 apart.
void read_nested(const ConfigSource& source, const Json& ropes, const Family& family, ModelConfig& config) {
  const std::string where = fmt::format("{}: rope_parameters", source.origin);
  for (const char* layers : {kFullLayers, kWindowLayers}) {
    const Json& rope = require_field(ropes, layers, where);
    const std::string key = fmt::format("rope_parameters.{}", layers);
    const double theta = require_number(rope.is_object() ? rope : Json::object(), "rope_theta",
                                        fmt::format("{}: {}", source.origin, key));
    config.ropes.push_back(read_rope(source, rope, key, theta, family, config));
  }
}

}  // namespace

void read_hf_ropes(const ConfigSource& source, const Family& family, ModelConfig& config) {
  const bool has_new = source.has("rope_parameters");
  const bool has_old = source.has("rope_scaling");
  if (has_new && has_old) {
    throw_bad_input("{} has both rope_parameters and rope_scaling; keep the one that is meant", source.origin);
  }
  const std::string key = has_new ? "rope_parameters" : "rope_scaling";
  const Json rope = has_new || has_old ? source.json.at(key) : Json::object();
  if (rope.is_object() && (rope.contains(kFullLayers) || rope.contains(kWindowLayers))) {
    if (!family.local_rope) {
      throw_unsupported("{}: {} of several layer kinds is not supported for {}", source.origin, key, family.model_type);
    }
    return read_nested(source, rope, family, config);
  }
  const double theta =
      number_or(source.json, "rope_theta", family.local_rope ? kDefaultGlobalTheta : kDefaultTheta, source.origin);
  config.ropes.push_back(read_rope(source, rope, has_new || has_old ? key : "rope_theta", theta, family, config));
  read_temperature(source, rope, key, family, config);
  if (!family.local_rope) return;
  const double local = number_or(source.json, "rope_local_base_freq", kDefaultTheta, source.origin);
  check_positive(local, "rope_local_base_freq", source.origin);
  config.ropes.push_back({local, {}});
}

}  // namespace asymkv
