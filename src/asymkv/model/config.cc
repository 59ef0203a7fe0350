#include "asymkv/model/config.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/model/config_checks.h"
#include "asymkv/model/config_source.h"
#include "asymkv/model/family.h"

namespace asymkv {
namespace {

using Source = ConfigSource;

// gemma's files have both keys; transformers reads the second there and the first elsewhere.
Activation read_activation(const Source& source, const Family& family) {
  const bool gemma = family.activation == Activation::kGeluTanh;
  const std::string key = gemma ? "hidden_activation" : "hidden_act";
  const std::string expected = gemma ? "gelu_pytorch_tanh" : "silu";
  const std::string name = string_or(source.json, key, expected, source.origin);
  if (name != expected) {
    throw_unsupported("{}: {} \"{}\" is not supported for {}; only {} is", source.origin, key, name, family.model_type,
                      expected);
  }
  return family.activation;
}

// Features that change the computation and that no family here has: better refused than ignored.
void refuse_unknown_features(const Source& source, const Family& family) {
  const auto refuse_true = [&source](const char* key) {
    if (bool_or(source.json, key, false, source.origin)) {
      throw_unsupported("{}: {} is true, which is not supported", source.origin, key);
    }
  };
  refuse_true("mlp_bias");
  refuse_true("use_bidirectional_attention");
  if (family.window_rule != WindowRule::kFromLayer) refuse_true("use_sliding_window");
  // A bias would stand before the norm of the keys, where it cannot be taken out.
  if (family.qk_norm || family.post_norms) refuse_true("attention_bias");
  if (number_or(source.json, "partial_rotary_factor", 1.0, source.origin) != 1.0) {
    throw_unsupported("{}: partial_rotary_factor other than 1 is not supported", source.origin);
  }
}

// AutoAWQ's "gemm" layout, which is the only scheme of quantised weights that is read; its group size.
int64_t read_awq(const Json& quantization, const std::string& where) {
  const int64_t bits = int_or(quantization, "bits", 4, where);
  if (bits != 4) throw_unsupported("{}: bits {} is not supported, only 4 is", where, bits);
  std::string version = string_or(quantization, "version", "gemm", where);
  std::ranges::transform(version, version.begin(), [](unsigned char c) { return std::tolower(c); });
  if (version != "gemm") {
    throw_unsupported("{}: version \"{}\" is not supported, only \"gemm\" is", where, version);
  }
  if (!bool_or(quantization, "zero_point", true, where)) {
    throw_unsupported("{}: zero_point is false, which is not supported", where);
  }
  const int64_t group_size = int_or(quantization, "group_size", 128, where);
  if (group_size != -1) checked_count(group_size, "group_size", where);
  return group_size;
}

// Weights quantised by another checkpoint scheme are refused; one that only describes the KV cache is not about
// weights.
void check_quantization(const Source& source, ModelConfig& config) {
  if (!source.has("quantization_config")) return;
  const Json& quantization = source.json.at("quantization_config");
  const std::string where = fmt::format("{}: quantization_config", source.origin);
  const bool kv_only = quantization.is_object() && quantization.contains("kv_cache_scheme") &&
                       !quantization.at("kv_cache_scheme").is_null() &&
                       (!quantization.contains("config_groups") || quantization.at("config_groups").empty());
  if (kv_only) return;
  if (!quantization.is_object()) throw_bad_input("{} must be an object, found {}", where, quantization.type_name());
  const std::string method = string_or(quantization, "quant_method", "", where);
  if (method != "awq") {
    throw_unsupported(
        "{}: quant_method \"{}\" is not supported, only \"awq\" is; give the unquantised model or a GGUF file", where,
        method);
  }
  config.awq_group_size = read_awq(quantization, where);
}

void read_geometry(const Source& source, const Family& family, ModelConfig& config) {
  config.hidden_size = source.count("hidden_size");
  config.intermediate_size = source.count("intermediate_size");
  config.num_layers = source.count("num_hidden_layers");
  config.num_q_heads = source.count("num_attention_heads");
  // transformers defaults the others to a number whatever the model, so there only the file can say.
  const bool may_default = family.optional_bias || family.fused_projections;
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

double read_soft_cap(const Source& source, const char* key) {
  if (!source.has(key)) return 0.0;
  const double cap = require_number(source.json, key, source.origin);
  check_positive(cap, key, source.origin);
  return cap;
}

void read_scales(const Source& source, const Family& family, ModelConfig& config) {
  auto head_scale = static_cast<double>(config.head_dim);
  if (family.head_scale_key) {
    head_scale = require_number(source.json, "query_pre_attn_scalar", source.origin);
    check_positive(head_scale, "query_pre_attn_scalar", source.origin);
  }
  config.attention_scale = 1.0 / std::sqrt(head_scale);
  if (family.soft_caps) {
    config.attention_soft_cap = read_soft_cap(source, "attn_logit_softcapping");
    config.final_soft_cap = read_soft_cap(source, "final_logit_softcapping");
  }
  if (family.scaled_embedding) config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  config.norm_weight_offset = family.norm_stored_less_1 ? 1.0 : 0.0;
}

}  // namespace

std::string_view activation_name(Activation activation) {
  return activation == Activation::kSilu ? "silu" : "gelu_tanh";
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
    if (id.is_number_unsigned() && std::cmp_greater_equal(id.get<uint64_t>(), vocab_size)) {  // perhaps above INT64_MAX
      throw_bad_input("{}: eos_token_id is {}, outside the vocabulary of {}", origin, id.dump(), vocab_size);
    }
    ids.push_back(checked_token(id.get<int64_t>(), vocab_size, "eos_token_id", origin));
  }
  return ids;
}

ModelConfig config_from_hf(const Json& json, std::string_view origin, std::optional<DType> stored_dtype) {
  if (!json.is_object()) throw_bad_input("{} must be a JSON object, found {}", origin, json.type_name());
  const Source source{json, origin};
  const Family& family = family_of_model_type(require_string(json, "model_type", origin), origin);
  ModelConfig config;
  config.model_type = family.model_type;
  config.activation = read_activation(source, family);
  config.qk_norm = family.qk_norm;
  config.post_norms = family.post_norms;
  config.fused_projections = family.fused_projections;
  refuse_unknown_features(source, family);
  check_quantization(source, config);
  read_geometry(source, family, config);
  read_hf_layers(source, family, config);
  read_hf_ropes(source, family, config);
  read_scales(source, family, config);
  config.rms_norm_eps = require_number(json, "rms_norm_eps", origin);
  check_positive(config.rms_norm_eps, "rms_norm_eps", origin);
  config.tie_word_embeddings = bool_or(json, "tie_word_embeddings", family.tied_by_default, origin);
  const bool attention_bias = family.optional_bias && bool_or(json, "attention_bias", false, origin);
  config.qkv_bias = family.fixed_qkv_bias || attention_bias;
  config.o_bias = attention_bias;
  config.native_dtype = read_native_dtype(source, stored_dtype);
  read_special_tokens(source, config);
  return config;
}

}  // namespace asymkv
