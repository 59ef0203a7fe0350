#include <algorithm>
#include <cmath>
#include <string>

#include "asymkv/base/error.h"
#include "asymkv/model/config.h"
#include "asymkv/model/config_checks.h"
#include "asymkv/model/family.h"
#include "asymkv/model/gguf.h"

namespace asymkv {
namespace {

// Metadata of one architecture: keys are "ARCH.name".
struct Source {
  const GgufFile& file;
  std::string arch;

  std::string key(std::string_view name) const { return fmt::format("{}.{}", arch, name); }
  int64_t count(std::string_view name) const {
    return checked_count(file.require_int(key(name)), key(name), file.origin());
  }
  int64_t count_or(std::string_view name, int64_t fallback) const {
    return checked_count(file.int_or(key(name), fallback), key(name), file.origin());
  }
};

// Keys that change the computation and that are not implemented, with the value that means "not used".
void refuse_unknown_features(const Source& source, const Family& family) {
  struct Neutral {
    std::string_view name;
    double value;
    bool served = false;
  };
  const bool has_window = family.window_rule == WindowRule::kAllLayers || family.window_rule == WindowRule::kPattern;
  const bool has_longrope = source.file.find_tensor("rope_factors_short.weight") != nullptr;
  const Neutral neutral[] = {{"expert_count", 0},
                             {"attention.sliding_window", 0, has_window},
                             {"attention.scale", 0},
                             {"attention.temperature_scale", 0},
                             {"attn_logit_softcapping", 0, family.soft_caps},
                             {"final_logit_softcapping", 0, family.soft_caps},
                             {"rope.scaling.attn_factor", 1, has_longrope},
                             {"rope.scaling.yarn_log_multiplier", 0},
                             {"rope.scaling.yarn_ext_factor", 1},
                             {"rope.scaling.yarn_attn_factor", 1},
                             {"logit_scale", 1},
                             {"residual_scale", 1},
                             {"embedding_scale", 1}};
  for (const Neutral& key : neutral) {
    const double value = key.served ? key.value : source.file.number_or(source.key(key.name), key.value);
    if (value != key.value) {
      throw_unsupported("{}: metadata key \"{}\" is {}, which is not supported", source.file.origin(),
                        source.key(key.name), value);
    }
  }
}

const GgufTensor& require_embedding(const GgufFile& file) {
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) throw_bad_input("{}: tensor \"token_embd.weight\" is missing", file.origin());
  return *embedding;
}

void read_head_dim(const Source& source, ModelConfig& config) {
  const std::string_view origin = source.file.origin();
  if (source.file.has(source.key("attention.key_length"))) {
    config.head_dim = source.count("attention.key_length");
  } else {
    if (config.hidden_size % config.num_q_heads != 0) {
      throw_bad_input("{}: {} {} is no multiple of {} {} and {} is absent", origin, source.key("embedding_length"),
                      config.hidden_size, source.key("attention.head_count"), config.num_q_heads,
                      source.key("attention.key_length"));
    }
    config.head_dim = config.hidden_size / config.num_q_heads;
  }
  for (const char* name : {"attention.value_length", "rope.dimension_count"}) {
    const int64_t value = source.count_or(name, config.head_dim);
    if (value != config.head_dim) {
      throw_unsupported("{}: {} is {} but keys have {} channels, which is not supported", origin, source.key(name),
                        value, config.head_dim);
    }
  }
}

void read_geometry(const Source& source, ModelConfig& config) {
  config.hidden_size = source.count("embedding_length");
  config.intermediate_size = source.count("feed_forward_length");
  config.num_layers = source.count("block_count");
  config.num_q_heads = source.count("attention.head_count");
  config.num_kv_heads = source.count_or("attention.head_count_kv", config.num_q_heads);
  config.max_position_embeddings = source.count("context_length");
  read_head_dim(source, config);
  config.vocab_size = checked_count(require_embedding(source.file).shape.front(), "the rows of token_embd.weight",
                                    source.file.origin());
  const int64_t named = source.count_or("vocab_size", config.vocab_size);
  if (named != config.vocab_size) {
    throw_bad_input("{}: {} is {} but token_embd.weight has {} rows", source.file.origin(), source.key("vocab_size"),
                    named, config.vocab_size);
  }
  const std::string q_heads = source.key("attention.head_count");
  const std::string kv_heads = source.key("attention.head_count_kv");
  const std::string head_dim = source.key("attention.key_length");
  check_geometry(config, {q_heads, kv_heads, head_dim}, source.file.origin());
}

// llama.cpp's converter writes llama3 and LongRoPE scaling as one divisor per RoPE pair, in a tensor.
std::vector<float> read_pair_factors(const GgufTensor& tensor, int64_t head_dim, const std::string& origin) {
  if (tensor.type != GgmlType::kF32 || tensor.shape != std::vector<int64_t>{head_dim / 2}) {
    throw_bad_input("{}: tensor \"{}\" must hold {} F32 values", origin, tensor.name, head_dim / 2);
  }
  std::vector<float> factors(static_cast<size_t>(head_dim / 2));
  dequantize_ggml(tensor.type, tensor.bytes, factors);
  return factors;
}

void read_yarn(const Source& source, RopeScaling& scaling) {
  scaling.kind = RopeScalingKind::kYarn;
  scaling.factor = source.file.require_number(source.key("rope.scaling.factor"));
  scaling.original_max_position = source.count("rope.scaling.original_context_length");
  scaling.beta_fast = source.file.number_or(source.key("rope.scaling.yarn_beta_fast"), scaling.beta_fast);
  scaling.beta_slow = source.file.number_or(source.key("rope.scaling.yarn_beta_slow"), scaling.beta_slow);
  scaling.attention_factor = yarn_attention_factor(scaling.factor, 0.0, 0.0);
}

// LongRoPE stands in two tensors; a file that has only one is broken.
void read_longrope(const Source& source, const GgufTensor& short_factors, int64_t head_dim, RopeScaling& scaling) {
  const std::string& origin = source.file.origin();
  const GgufTensor* long_factors = source.file.find_tensor("rope_factors_long.weight");
  if (long_factors == nullptr) throw_bad_input("{}: tensor \"rope_factors_long.weight\" is missing", origin);
  scaling.kind = RopeScalingKind::kLongRope;
  scaling.pair_factors = read_pair_factors(short_factors, head_dim, origin);
  scaling.long_pair_factors = read_pair_factors(*long_factors, head_dim, origin);
  scaling.original_max_position = source.count("rope.scaling.original_context_length");
  scaling.attention_factor = source.file.require_number(source.key("rope.scaling.attn_factor"));
}

RopeScaling read_scaling(const Source& source, const Family& family, int64_t head_dim) {
  const std::string& origin = source.file.origin();
  RopeScaling scaling;
  const std::string type = source.file.string_or(source.key("rope.scaling.type"), "none");
  if (type == "linear") {
    scaling.kind = RopeScalingKind::kLinear;
    scaling.factor = source.file.require_number(source.key("rope.scaling.factor"));
  } else if (type == "yarn" && !family.fused_projections) {
    read_yarn(source, scaling);
  } else if (type != "none" && !(type == "longrope" && family.fused_projections)) {
    throw_unsupported("{}: {} is \"{}\"; known: none, linear, yarn, and longrope for phi3", origin,
                      source.key("rope.scaling.type"), type);
  }
  const GgufTensor* factors = source.file.find_tensor("rope_freqs.weight");
  const GgufTensor* short_factors = source.file.find_tensor("rope_factors_short.weight");
  if ((factors != nullptr || short_factors != nullptr) && scaling.kind != RopeScalingKind::kNone) {
    throw_unsupported("{}: {} together with {} is not supported", origin, source.key("rope.scaling.type"),
                      factors != nullptr ? factors->name : short_factors->name);
  }
  if (factors != nullptr) {
    scaling.kind = RopeScalingKind::kFactors;
    scaling.pair_factors = read_pair_factors(*factors, head_dim, origin);
  }
  if (short_factors != nullptr) read_longrope(source, *short_factors, head_dim, scaling);
  check_rope_scaling(scaling, fmt::format("{}: rope scaling", origin));
  return scaling;
}

void read_ropes(const Source& source, const Family& family, ModelConfig& config) {
  constexpr double kDefaultTheta = 10000.0;  // of llama.cpp, when the key is absent
  const std::string& origin = source.file.origin();
  const double theta = source.file.number_or(source.key("rope.freq_base"), kDefaultTheta);
  check_positive(theta, source.key("rope.freq_base"), origin);
  config.ropes.push_back({theta, read_scaling(source, family, config.head_dim)});
  if (!family.local_rope) return;
  // llama.cpp scales the layers without a window alone.
  const double local = source.file.number_or(source.key("rope.freq_base_swa"), kDefaultTheta);
  check_positive(local, source.key("rope.freq_base_swa"), origin);
  config.ropes.push_back({local, {}});
}

void read_layers(const Source& source, const Family& family, ModelConfig& config) {
  int64_t window = 0;
  if (family.window_rule == WindowRule::kPattern) window = source.count("attention.sliding_window");
  if (family.window_rule == WindowRule::kAllLayers && source.file.has(source.key("attention.sliding_window"))) {
    window = source.count("attention.sliding_window");
  }
  int64_t pattern = 0;
  if (family.window_rule == WindowRule::kPattern) {
    pattern = source.count_or("attention.sliding_window_pattern", family.window_pattern);
  }
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const bool windowed = window != 0 && (pattern == 0 || (i + 1) % pattern != 0);
    config.layers.push_back({windowed ? window : 0, windowed && family.local_rope ? 1 : 0});
  }
}

// The file does not say; llama.cpp goes by the depth: 1 / sqrt(hidden_size / num_q_heads) in the 27 B models, whose
// query_pre_attn_scalar differs from the head size, and 1 / sqrt(head_dim) elsewhere.
double attention_scale(const Family& family, const ModelConfig& config) {
  const int64_t deep = family.model_type == "gemma2" ? 46 : 62;
  if (family.head_scale_key && config.num_layers == deep) {
    return 1.0 / std::sqrt(static_cast<double>(config.hidden_size) / static_cast<double>(config.num_q_heads));
  }
  return 1.0 / std::sqrt(static_cast<double>(config.head_dim));
}

double read_soft_cap(const Source& source, std::string_view name) {
  if (!source.file.has(source.key(name))) return 0.0;
  const double cap = source.file.require_number(source.key(name));
  check_positive(cap, source.key(name), source.file.origin());
  return cap;
}

void read_scales(const Source& source, const Family& family, ModelConfig& config) {
  config.attention_scale = attention_scale(family, config);
  if (family.soft_caps) {
    config.attention_soft_cap = read_soft_cap(source, "attn_logit_softcapping");
    config.final_soft_cap = read_soft_cap(source, "final_logit_softcapping");
  }
  if (family.scaled_embedding) config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
}

DType native_dtype(const GgufFile& file) {
  const auto all_matrices = [&file](GgmlType type) {
    return std::ranges::all_of(
        file.tensors(), [type](const GgufTensor& tensor) { return tensor.shape.size() < 2 || tensor.type == type; });
  };
  if (all_matrices(GgmlType::kF32)) return DType::kF32;
  if (all_matrices(GgmlType::kBF16)) return DType::kBF16;
  return DType::kF16;
}

void read_special_tokens(const GgufFile& file, ModelConfig& config) {
  const auto token = [&](const char* key) {
    return checked_token(file.require_int(key), config.vocab_size, key, file.origin());
  };
  if (file.has("tokenizer.ggml.bos_token_id")) config.bos_token_id = token("tokenizer.ggml.bos_token_id");
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (!file.has(key)) continue;
    const int32_t id = token(key);
    if (std::ranges::find(config.eos_token_ids, id) == config.eos_token_ids.end()) config.eos_token_ids.push_back(id);
  }
}

}  // namespace

ModelConfig config_from_gguf(const GgufFile& file) {
  const std::string architecture = file.require_string("general.architecture");
  const Family& family = family_of_architecture(architecture, file.origin());
  const Source source{file, architecture};
  ModelConfig config;
  config.model_type = family.model_type;
  config.activation = family.activation;
  config.qk_norm = family.qk_norm;
  config.post_norms = family.post_norms;
  config.fused_projections = family.fused_projections;
  refuse_unknown_features(source, family);
  read_geometry(source, config);
  read_layers(source, family, config);
  read_ropes(source, family, config);
  read_scales(source, family, config);
  config.rms_norm_eps = file.require_number(source.key("attention.layer_norm_rms_epsilon"));
  check_positive(config.rms_norm_eps, source.key("attention.layer_norm_rms_epsilon"), file.origin());
  config.tie_word_embeddings = file.find_tensor("output.weight") == nullptr;
  config.qkv_bias = family.fixed_qkv_bias || (family.optional_bias && file.find_tensor("blk.0.attn_q.bias") != nullptr);
  config.o_bias = family.optional_bias && file.find_tensor("blk.0.attn_output.bias") != nullptr;
  config.native_dtype = native_dtype(file);
  read_special_tokens(file, config);
  return config;
}

}  // namespace asymkv
