#include "asymkv/model/config.h"

#include <cmath>
#include <numbers>

#include "asymkv/base/error.h"
#include "asymkv/model/config_checks.h"

namespace asymkv {
namespace {

// One config.json being read: the object and the path that errors name.
struct Source {
  const Json& json;
  std::string_view origin;

  bool has(const std::string& key) const { return json.contains(key) && !json.at(key).is_null(); }
  int64_t count(const std::string& key) const { return checked_count(require_int(json, key, origin), key, origin); }
  int64_t count_or(const std::string& key, int64_t fallback) const {
    return checked_count(int_or(json, key, fallback, origin), key, origin);
  }
};

std::string read_family(const Source& source) {
  const std::string model_type = require_string(source.json, "model_type", source.origin);
  check_family(model_type, "model_type", source.origin);
  const std::string activation = string_or(source.json, "hidden_act", "silu", source.origin);
  if (activation != "silu") {
    throw_unsupported("{}: hidden_act \"{}\" is not supported; only silu is", source.origin, activation);
  }
  return model_type;
}

// Features that change the computation and that no family here has: better refused than ignored.
void refuse_unknown_features(const Source& source) {
  const auto refuse_true = [&source](const char* key) {
    if (bool_or(source.json, key, false, source.origin)) {
      throw_unsupported("{}: {} is true, which is not supported", source.origin, key);
    }
  };
  refuse_true("use_sliding_window");
  refuse_true("mlp_bias");
  if (number_or(source.json, "partial_rotary_factor", 1.0, source.origin) != 1.0) {
    throw_unsupported("{}: partial_rotary_factor other than 1 is not supported", source.origin);
  }
}

// Weights quantised by a checkpoint scheme are refused; one that only describes the KV cache is not about weights.
void check_quantization(const Source& source) {
  if (!source.has("quantization_config")) return;
  const Json& quantization = source.json.at("quantization_config");
  const bool kv_only = quantization.is_object() && quantization.contains("kv_cache_scheme") &&
                       !quantization.at("kv_cache_scheme").is_null() &&
                       (!quantization.contains("config_groups") || quantization.at("config_groups").empty());
  if (!kv_only) {
    throw_unsupported("{}: quantization_config is set; give the unquantised model or a GGUF file", source.origin);
  }
}

void check_layer_types(const Source& source, int64_t num_layers) {
  if (!source.has("layer_types")) return;
  const Json& types = source.json.at("layer_types");
  if (!types.is_array() || static_cast<int64_t>(types.size()) != num_layers) {
    throw_bad_input("{}: layer_types must be an array of {} strings, one per layer", source.origin, num_layers);
  }
  for (const Json& type : types) {
    if (type != "full_attention") {
      throw_unsupported("{}: layer_types holds {}; only \"full_attention\" is supported", source.origin, type.dump());
    }
  }
}

void read_geometry(const Source& source, ModelConfig& config) {
  config.hidden_size = source.count("hidden_size");
  config.intermediate_size = source.count("intermediate_size");
  config.num_layers = source.count("num_hidden_layers");
  config.num_q_heads = source.count("num_attention_heads");
  // transformers defaults qwen2 to 32 whatever the model, so there only the file can say.
  const bool may_default = config.model_type == "llama";
  config.num_kv_heads =
      may_default ? source.count_or("num_key_value_heads", config.num_q_heads) : source.count("num_key_value_heads");
  config.vocab_size = source.count("vocab_size");
  config.max_position_embeddings = source.count("max_position_embeddings");
  if (source.has("head_dim")) {
    config.head_dim = source.count("head_dim");
  } else {
    if (config.hidden_size % config.num_q_heads != 0) {
      throw_bad_input("{}: hidden_size {} is no multiple of num_attention_heads {} and head_dim is absent",
                      source.origin, config.hidden_size, config.num_q_heads);
    }
    config.head_dim = config.hidden_size / config.num_q_heads;
  }
  check_geometry(config, {"num_attention_heads", "num_key_value_heads", "head_dim"}, source.origin);
}

RopeScaling read_rope_scaling(const Json& rope, std::string_view origin, const std::string& key) {
  const std::string where = fmt::format("{}: {}", origin, key);
  if (!rope.is_object()) throw_bad_input("{} must be an object, found {}", where, rope.type_name());
  RopeScaling scaling;
  const std::string type = string_or(rope, "rope_type", string_or(rope, "type", "default", where), where);
  if (type == "linear") {
    scaling.kind = RopeScalingKind::kLinear;
  } else if (type == "llama3") {
    scaling.kind = RopeScalingKind::kLlama3;
  } else if (type != "default") {
    throw_unsupported("{} has rope_type \"{}\"; known: default, linear, llama3", where, type);
  }
  if (number_or(rope, "partial_rotary_factor", 1.0, where) != 1.0) {
    throw_unsupported("{}: partial_rotary_factor other than 1 is not supported", where);
  }
  if (scaling.kind == RopeScalingKind::kNone) return scaling;
  scaling.factor = require_number(rope, "factor", where);
  if (scaling.kind == RopeScalingKind::kLlama3) {
    scaling.low_freq_factor = require_number(rope, "low_freq_factor", where);
    scaling.high_freq_factor = require_number(rope, "high_freq_factor", where);
    scaling.original_max_position = require_int(rope, "original_max_position_embeddings", where);
  }
  check_rope_scaling(scaling, where);
  return scaling;
}

// transformers 4 writes rope_theta and rope_scaling; transformers 5 writes both into rope_parameters.
void read_rope(const Source& source, ModelConfig& config) {
  constexpr double kDefaultTheta = 10000.0;  // of transformers, for the first llama files, which do not say
  const bool has_new = source.has("rope_parameters");
  const bool has_old = source.has("rope_scaling");
  if (has_new && has_old) {
    throw_bad_input("{} has both rope_parameters and rope_scaling; keep the one that is meant", source.origin);
  }
  const std::string key = has_new ? "rope_parameters" : "rope_scaling";
  if (has_new || has_old) config.rope_scaling = read_rope_scaling(source.json.at(key), source.origin, key);
  config.rope_theta = number_or(source.json, "rope_theta", kDefaultTheta, source.origin);
  if (has_new && source.json.at(key).contains("rope_theta")) {
    const double theta = require_number(source.json.at(key), "rope_theta", source.origin);
    if (source.has("rope_theta") && theta != config.rope_theta) {
      throw_bad_input("{}: rope_theta is {} but rope_parameters says {}", source.origin, config.rope_theta, theta);
    }
    config.rope_theta = theta;
  }
  check_positive(config.rope_theta, "rope_theta", source.origin);
}

DType read_native_dtype(const Source& source, std::optional<DType> stored_dtype) {
  std::string name;
  for (const char* key : {"torch_dtype", "dtype"}) {
    const std::string value = string_or(source.json, key, "", source.origin);
    if (!value.empty() && !name.empty() && value != name) {
      throw_bad_input("{}: torch_dtype is \"{}\" but dtype is \"{}\"", source.origin, name, value);
    }
    if (!value.empty()) name = value;
  }
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  if (name == "float32") return DType::kF32;
  if (!name.empty()) {
    throw_unsupported("{}: torch_dtype \"{}\" is not supported; known: bfloat16, float16, float32", source.origin,
                      name);
  }
  if (!stored_dtype) throw_bad_input("{}: torch_dtype is missing", source.origin);
  return *stored_dtype;
}

void read_special_tokens(const Source& source, ModelConfig& config) {
  if (source.has("bos_token_id")) {
    config.bos_token_id = checked_token(require_int(source.json, "bos_token_id", source.origin), config.vocab_size,
                                        "bos_token_id", source.origin);
  }
  config.eos_token_ids = eos_ids_from_hf(source.json, config.vocab_size, source.origin);
}

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

}  // namespace

std::string_view rope_scaling_name(RopeScalingKind kind) {
  switch (kind) {
    case RopeScalingKind::kNone:
      return "none";
    case RopeScalingKind::kLinear:
      return "linear";
    case RopeScalingKind::kLlama3:
      return "llama3";
    case RopeScalingKind::kFactors:
      return "factors";
  }
  return "?";
}

std::vector<double> rope_inverse_frequencies(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  std::vector<double> result(static_cast<size_t>(config.head_dim / 2));
  for (size_t p = 0; p < result.size(); ++p) {
    const double exponent = 2.0 * static_cast<double>(p) / static_cast<double>(config.head_dim);
    const double inverse_frequency = std::pow(config.rope_theta, -exponent);
    switch (scaling.kind) {
      case RopeScalingKind::kNone:
        result[p] = inverse_frequency;
        break;
      case RopeScalingKind::kLinear:
        result[p] = inverse_frequency / scaling.factor;
        break;
      case RopeScalingKind::kLlama3:
        result[p] = llama3_scaled(inverse_frequency, scaling);
        break;
      case RopeScalingKind::kFactors:
        result[p] = inverse_frequency / static_cast<double>(scaling.pair_factors.at(p));
        break;
    }
  }
  return result;
}

std::vector<int32_t> eos_ids_from_hf(const Json& json, int64_t vocab_size, std::string_view origin) {
  std::vector<int32_t> ids;
  if (!json.is_object() || !json.contains("eos_token_id") || json.at("eos_token_id").is_null()) return ids;
  const Json& value = json.at("eos_token_id");
  const Json list = value.is_array() ? value : Json::array({value});
  for (const Json& id : list) {
    if (!id.is_number_integer()) {
      throw_bad_input("{}: eos_token_id must be an integer or an array of integers, found {}", origin, id.type_name());
    }
    ids.push_back(checked_token(id.is_number_unsigned() && id.get<uint64_t>() > INT32_MAX ? -1 : id.get<int64_t>(),
                                vocab_size, "eos_token_id", origin));
  }
  return ids;
}

ModelConfig config_from_hf(const Json& json, std::string_view origin, std::optional<DType> stored_dtype) {
  if (!json.is_object()) throw_bad_input("{} must be a JSON object, found {}", origin, json.type_name());
  const Source source{json, origin};
  ModelConfig config;
  config.model_type = read_family(source);
  refuse_unknown_features(source);
  check_quantization(source);
  read_geometry(source, config);
  check_layer_types(source, config.num_layers);
  read_rope(source, config);
  config.rms_norm_eps = require_number(json, "rms_norm_eps", origin);
  check_positive(config.rms_norm_eps, "rms_norm_eps", origin);
  config.tie_word_embeddings = bool_or(json, "tie_word_embeddings", false, origin);
  const bool attention_bias = bool_or(json, "attention_bias", false, origin);
  config.qkv_bias = config.model_type == "qwen2" || attention_bias;  // fixed for qwen2, a switch for llama
  config.o_bias = config.model_type == "llama" && attention_bias;
  config.native_dtype = read_native_dtype(source, stored_dtype);
  read_special_tokens(source, config);
  return config;
}

}  // namespace asymkv
