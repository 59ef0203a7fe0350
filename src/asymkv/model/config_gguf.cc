#include <algorithm>
#include <string>

#include "asymkv/base/error.h"
#include "asymkv/model/config.h"
#include "asymkv/model/config_checks.h"
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

// Keys that change the computation of the two families, with the value that means "not used".
void refuse_unknown_features(const Source& source) {
  struct Neutral {
    std::string_view name;
    double value;
  };
  constexpr Neutral kNeutral[] = {
      {"expert_count", 0}, {"attention.sliding_window", 0}, {"attention.scale", 0}, {"rope.scaling.attn_factor", 1},
      {"logit_scale", 1},  {"residual_scale", 1},           {"embedding_scale", 1}};
  for (const Neutral& neutral : kNeutral) {
    const double value = source.file.number_or(source.key(neutral.name), neutral.value);
    if (value != neutral.value) {
      throw_unsupported("{}: metadata key \"{}\" is {}, which is not supported", source.file.origin(),
                        source.key(neutral.name), value);
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

// llama.cpp's converter writes llama3 scaling as one divisor per RoPE pair, in a tensor.
std::vector<float> read_pair_factors(const GgufTensor& tensor, int64_t head_dim, const std::string& origin) {
  if (tensor.type != GgmlType::kF32 || tensor.shape != std::vector<int64_t>{head_dim / 2}) {
    throw_bad_input("{}: tensor \"rope_freqs.weight\" must hold {} F32 values", origin, head_dim / 2);
  }
  std::vector<float> factors(static_cast<size_t>(head_dim / 2));
  dequantize_ggml(tensor.type, tensor.bytes, factors);
  return factors;
}

void read_rope(const Source& source, ModelConfig& config) {
  constexpr double kDefaultTheta = 10000.0;  // of llama.cpp, when the key is absent
  const std::string& origin = source.file.origin();
  config.rope_theta = source.file.number_or(source.key("rope.freq_base"), kDefaultTheta);
  check_positive(config.rope_theta, source.key("rope.freq_base"), origin);
  RopeScaling& scaling = config.rope_scaling;
  const std::string type = source.file.string_or(source.key("rope.scaling.type"), "none");
  if (type == "linear") {
    scaling.kind = RopeScalingKind::kLinear;
    scaling.factor = source.file.require_number(source.key("rope.scaling.factor"));
  } else if (type != "none") {
    throw_unsupported("{}: {} is \"{}\"; known: none, linear", origin, source.key("rope.scaling.type"), type);
  }
  if (const GgufTensor* factors = source.file.find_tensor("rope_freqs.weight"); factors != nullptr) {
    if (scaling.kind != RopeScalingKind::kNone) {
      throw_unsupported("{}: {} together with rope_freqs.weight is not supported", origin,
                        source.key("rope.scaling.type"));
    }
    scaling.kind = RopeScalingKind::kFactors;
    scaling.pair_factors = read_pair_factors(*factors, config.head_dim, origin);
  }
  check_rope_scaling(scaling, fmt::format("{}: rope scaling", origin));
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
  ModelConfig config;
  config.model_type = file.require_string("general.architecture");
  check_family(config.model_type, "general.architecture", file.origin());
  const Source source{file, config.model_type};
  refuse_unknown_features(source);
  read_geometry(source, config);
  read_rope(source, config);
  config.rms_norm_eps = file.require_number(source.key("attention.layer_norm_rms_epsilon"));
  check_positive(config.rms_norm_eps, source.key("attention.layer_norm_rms_epsilon"), file.origin());
  config.tie_word_embeddings = file.find_tensor("output.weight") == nullptr;
  config.qkv_bias = config.model_type == "qwen2" || file.find_tensor("blk.0.attn_q.bias") != nullptr;
  config.o_bias = file.find_tensor("blk.0.attn_output.bias") != nullptr;
  config.native_dtype = native_dtype(file);
  read_special_tokens(file, config);
  return config;
}

}  // namespace asymkv
