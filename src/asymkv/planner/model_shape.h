#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/tensor/dtype.h"

namespace asymkv {

// What one layer keeps of the tokens that it has seen.
enum class LayerKind {
  kFull,     // a key and a value of every token
  kSliding,  // of the last `window` tokens
  kLinear,   // a state of constant size per sequence (linear attention: recurrent matrix and convolution tail)
  kLatent,   // one compressed vector of every token, for keys and values together (MLA)
};
std::string_view layer_kind_name(LayerKind kind);  // "full", "sliding", "linear", "latent"

// Layers that store the same thing. What a kind does not have is 0.
struct LayerGroup {
  LayerKind kind = LayerKind::kFull;
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;  // kFull, kSliding
  int64_t k_head_dim = 0;    // kFull, kSliding
  int64_t v_head_dim = 0;    // kFull, kSliding
  int64_t window = 0;        // kSliding: tokens
  int64_t state_elems = 0;   // kLinear: recurrent and convolution elements of one sequence and layer
  int64_t latent_dim = 0;    // kLatent: elements per token and layer
  bool operator==(const LayerGroup&) const = default;
};

enum class ShapeVerdict {
  kAccept,       // the runtime serves models of this class
  kAccountOnly,  // the bytes are known, the runtime does not serve the class
  kRefuse,       // no format with sides of their own can be planned
};
std::string_view shape_verdict_name(ShapeVerdict verdict);  // "accept", "account_only", "refuse"

// What the decoder of one config.json stores.
struct ModelShape {
  std::string model_type;  // of the decoder: text_config's where the file nests one
  DType native_dtype = DType::kBF16;
  bool native_dtype_assumed = false;  // the file names no dtype; bf16 stands in
  int64_t num_q_heads = 0;            // 0 where groups is empty
  int64_t max_positions = 0;          // tokens; 0: the file does not say
  // Kinds in the order of LayerKind, each at most once; empty where the bytes are not known, only if refused.
  std::vector<LayerGroup> groups;
  ShapeVerdict verdict = ShapeVerdict::kRefuse;
  std::string deciding_key;  // of the file, with its path: "sliding_window", "text_config.layer_types"
  std::string reason;        // a sentence that names the key
};

// Reads a published config.json; `origin` (its path) is named in errors. Which keys count depends on model_type, as in
// the configuration classes of transformers; sizes always come from the file, never from the family's name. A model
// type or a key that might change what is stored and is not known gives a refusal, not an error. Throws
// Error{kBadInput} for a missing, mistyped, negative or contradictory value and for sizes whose bytes exceed int64,
// Error{kUnsupported} for a dtype that is not served; both name the key.
ModelShape shape_from_config(const Json& json, std::string_view origin);

}  // namespace asymkv
