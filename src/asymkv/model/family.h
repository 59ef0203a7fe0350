#pragma once

#include <string_view>

#include "asymkv/model/config.h"

// What sets one family of decoders apart, as data: the configuration readers turn a row into a ModelConfig, and nothing
// below them asks for the family's name again.
namespace asymkv {

// Which layers a window applies to where the file does not list them.
enum class WindowRule {
  kNone,       // the family has no window
  kAllLayers,  // sliding_window: every layer
  kFromLayer,  // use_sliding_window: from layer max_window_layers on
  kPattern,    // all but every n-th layer
};

struct Family {
  std::string_view model_type;    // of config.json
  std::string_view architecture;  // of GGUF; empty if published files use another family's
  WindowRule window_rule = WindowRule::kNone;
  int64_t window_pattern = 0;       // kPattern: the default n
  bool fixed_qkv_bias = false;      // q, k and v have biases whatever the file says
  bool optional_bias = false;       // attention_bias says whether q, k, v and o have biases
  bool qk_norm = false;             // RMS norm of every query and key head before RoPE
  bool post_norms = false;          // a norm after attention and after the MLP, before the residual is added
  bool fused_projections = false;   // qkv_proj and gate_up_proj
  bool scaled_embedding = false;    // embeddings times sqrt(hidden_size)
  bool norm_stored_less_1 = false;  // safetensors hold norm weights less one; GGUF's converter adds it
  bool soft_caps = false;           // attn_logit_softcapping and final_logit_softcapping
  bool head_scale_key = false;      // query_pre_attn_scalar gives the softmax scale
  bool temperature = false;         // llama_4_scaling_beta: queries grow with their position
  bool local_rope = false;          // window layers have a RoPE of their own
  bool tied_by_default = false;
  Activation activation = Activation::kSilu;
};

// Throws Error{kUnsupported} that names `origin`, the key and the value, and lists what is known.
const Family& family_of_model_type(std::string_view model_type, std::string_view origin);
const Family& family_of_architecture(std::string_view architecture, std::string_view origin);

}  // namespace asymkv
