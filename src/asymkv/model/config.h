#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/tensor/dtype.h"

namespace asymkv {

class GgufFile;

// How the rotary frequencies of a model differ from theta^(-2p/d).
enum class RopeScalingKind {
  kNone,
  kLinear,   // every frequency divided by `factor`
  kLlama3,   // Llama 3.1's smooth rule between low_freq_factor and high_freq_factor
  kFactors,  // the frequency of pair p divided by pair_factors[p] (GGUF's rope_freqs.weight)
};

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position = 0;  // tokens
  std::vector<float> pair_factors;    // kFactors only: head_dim / 2 of them
};

// Geometry and constants of one decoder model, container-independent. All counts are positive once a reader returned.
struct ModelConfig {
  std::string model_type;  // "qwen2" or "llama"
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // never recomputed when the file names it
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;  // tokens
  double rope_theta = 0;
  double rms_norm_eps = 0;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool o_bias = false;
  DType native_dtype = DType::kF16;  // bf16, f16 or f32: the type the model's own KV cache would have
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> bos_token_id;
};

// "none", "linear", "llama3", "factors".
std::string_view rope_scaling_name(RopeScalingKind kind);

// Inverse frequency of each RoPE pair p (channels p and p + head_dim / 2), scaling applied: head_dim / 2 values in
// radians per token, slowest last. The angle at position t is t times the value.
std::vector<double> rope_inverse_frequencies(const ModelConfig& config);

// Reads a published config.json. `origin` (its path) is named in every error. `stored_dtype` is the type of the weights
// and stands in for an absent torch_dtype. Throws Error{kUnsupported} for a family, activation, rope or attention kind
// that is not implemented and Error{kBadInput} for a missing, mistyped or inconsistent value; both name the key.
ModelConfig config_from_hf(const Json& json, std::string_view origin, std::optional<DType> stored_dtype = std::nullopt);

// The same from GGUF metadata; biases, tying and the native type come from the tensor table: native is f32 or bf16 if
// every matrix is, else f16. Throws like config_from_hf.
ModelConfig config_from_gguf(const GgufFile& file);

}  // namespace asymkv
