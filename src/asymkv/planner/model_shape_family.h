#pragma once

#include <cstdint>
#include <string_view>

namespace asymkv {

// Which keys say what kind a layer is where the file has no layer_types.
enum class LayerRule : uint8_t {
  kFull,       // none: every layer is full
  kSwitched,   // full unless use_sliding_window is set, which then needs layer_types
  kFromLayer,  // use_sliding_window: the layers from max_window_layers on slide
  kWindow,     // sliding_window, where it is set, is that of every layer
  kPattern,    // every sliding_window_pattern-th layer is full, the others slide
  kInterval,   // every full_attention_interval-th layer is full, the others are linear
  kListed,     // nothing but layer_types
  kLatent,     // every layer keeps kv_lora_rank + qk_rope_head_dim elements
};

// Which keys say how many KV heads there are, and how wide they are.
enum class HeadRule : uint8_t {
  kStandard,      // num_key_value_heads, head_dim
  kFalcon,        // num_kv_heads with new_decoder_architecture or without multi_query, else 1
  kChatGlm,       // multi_query_group_num with multi_query_attention, else all; kv_channels
  kTwoGeometries  // full layers: global_head_dim, and num_global_key_value_heads with attention_k_eq_v
};

// How the files of one model_type are read. The configuration classes of transformers and of the models themselves are
// the source; no size stands here but the period of layers that has no key in some files.
struct ShapeFamily {
  std::string_view model_type;
  LayerRule layers = LayerRule::kFull;
  HeadRule heads = HeadRule::kStandard;
  int64_t pattern = 0;                // kPattern: where the file has no key for it
  bool kv_heads_may_default = false;  // without num_key_value_heads there are as many KV heads as query heads
  bool head_dim_may_default = false;  // without head_dim it is hidden_size / num_attention_heads
  bool window_may_be_absent = true;   // false: an absent sliding_window means another default than null
};

// Null for a type that is not known.
const ShapeFamily* find_shape_family(std::string_view model_type);

// Whether a file of type `outer` nests the decoder of type `inner` as text_config and adds nothing to the cache.
bool is_known_wrapper(std::string_view outer, std::string_view inner);

}  // namespace asymkv
