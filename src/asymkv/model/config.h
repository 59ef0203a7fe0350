#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/model/rope_config.h"
#include "asymkv/tensor/dtype.h"

namespace asymkv {

class GgufFile;

// Of the gated MLP: down(activation(gate(x)) * up(x)).
enum class Activation {
  kSilu,      // x / (1 + exp(-x))
  kGeluTanh,  // x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
};
std::string_view activation_name(Activation activation);  // "silu", "gelu_tanh"

// What differs from layer to layer.
struct LayerConfig {
  int64_t window = 0;    // a query sees the keys of this many positions, its own included; 0: of all
  int64_t rope_idx = 0;  // which of ModelConfig::ropes turns its queries and keys
};

// Geometry and constants of one decoder model, container-independent: the forward pass follows it and never asks for
// the family's name. All counts are positive once a reader returned.
struct ModelConfig {
  std::string model_type;  // config.json's name of the family, for messages and records
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // never recomputed when the file names it
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;  // tokens
  double rms_norm_eps = 0;
  std::vector<RopeConfig> ropes;    // [0]: of layers that see all keys; [1], where it differs: of window layers
  std::vector<LayerConfig> layers;  // [num_layers]
  Activation activation = Activation::kSilu;
  double attention_scale = 0;            // of q . k, 1 / sqrt(head_dim) unless the model says otherwise
  double attention_soft_cap = 0;         // cap * tanh(logit / cap); 0: none
  double final_soft_cap = 0;             // the same for the output logits
  double embedding_scale = 1;            // embeddings are multiplied by it
  double norm_weight_offset = 0;         // added to every stored norm weight
  double query_temperature = 0;          // b: a query at position t is multiplied by 1 + b ln(1 + floor(t / length))
  int64_t query_temperature_length = 0;  // tokens
  bool qk_norm = false;                  // RMS norm of every query and key head before RoPE
  bool post_norms = false;               // a norm after attention and after the MLP, before the residual is added
  bool fused_projections = false;        // one tensor holds q, k and v rows, one the gate and up rows
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool o_bias = false;
  DType native_dtype = DType::kF16;  // bf16, f16 or f32: the type the model's own KV cache would have
  int64_t awq_group_size = 0;        // of AWQ matrices (awq.h); -1: a whole row; 0: the model has none
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> bos_token_id;
};

// Reads a published config.json. `origin` (its path) is named in every error. `stored_dtype` is the type of the weights
// and stands in for an absent torch_dtype. Throws Error{kUnsupported} for a family, activation, rope or attention kind
// that is not implemented and Error{kBadInput} for a missing, mistyped or inconsistent value; both name the key.
ModelConfig config_from_hf(const Json& json, std::string_view origin, std::optional<DType> stored_dtype = std::nullopt);

// The same from GGUF metadata; biases, tying and the native type come from the tensor table: native is f32 or bf16 if
// every matrix is, else f16. Throws like config_from_hf.
ModelConfig config_from_gguf(const GgufFile& file);

}  // namespace asymkv
