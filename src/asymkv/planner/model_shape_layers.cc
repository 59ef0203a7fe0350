#include "asymkv/planner/model_shape_layers.h"

#include <algorithm>

namespace asymkv {
namespace {

bool any_of_kind(const std::vector<LayerKind>& kinds, LayerKind kind) {
  return std::ranges::find(kinds, kind) != kinds.end();
}

int64_t read_num_layers(const ShapeSource& source) {
  const std::string key = source.one_of({"num_hidden_layers", "num_layers", "n_layer"});
  const int64_t num_layers = source.count(key);
  if (num_layers > kMaxShapeLayers) {
    throw_bad_input("{}: {} is {}, expected at most {}", source.origin, key, num_layers, kMaxShapeLayers);
  }
  return num_layers;
}

// The window in use, or 0. qwen's files name one that use_sliding_window leaves unused.
int64_t read_window(const ShapeSource& source, const ShapeFamily& family) {
  if (!family.window_may_be_absent && !source.json.contains("sliding_window")) {
    throw_bad_input("{}: sliding_window is missing; set it to null or to the number of tokens", source.origin);
  }
  const bool switched = family.layers == LayerRule::kSwitched || family.layers == LayerRule::kFromLayer;
  if (switched && !source.flag("use_sliding_window")) return 0;
  return source.count_or(source.one_of({"sliding_window", "sliding_window_size"}), 0);
}

LayerKinds listed_kinds(const ShapeSource& source, const ShapeFamily& family, int64_t num_layers) {
  const Json& types = source.json.at("layer_types");
  if (!types.is_array() || static_cast<int64_t>(types.size()) != num_layers) {
    throw_bad_input("{}: layer_types must be an array of {} strings, one per layer, found {}", source.origin,
                    num_layers, types.is_array() ? fmt::format("{}", types.size()) : types.type_name());
  }
  LayerKinds result{.key = "layer_types"};
  for (const Json& type : types) {
    if (!type.is_string()) throw_bad_input("{}: layer_types holds {}, expected strings", source.origin, type.dump());
    if (type == "full_attention") {
      result.kinds.push_back(LayerKind::kFull);
    } else if (type == "sliding_attention") {
      result.kinds.push_back(LayerKind::kSliding);
    } else if (type == "linear_attention" && family.layers == LayerRule::kInterval) {
      result.kinds.push_back(LayerKind::kLinear);
    } else {
      return {.key = "layer_types",
              .refusal = fmt::format("{} holds {}, whose layers store what is not known for {}",
                                     source.name("layer_types"), type.dump(), family.model_type)};
    }
  }
  // transformers makes gemma4's last layer a full one, whatever the list says.
  if (family.heads == HeadRule::kTwoGeometries && result.kinds.back() != LayerKind::kFull) {
    throw_bad_input("{}: layer_types ends with {}, but the last layer of {} is a full one", source.origin,
                    types.back().dump(), family.model_type);
  }
  return result;
}

// Every period-th layer is of kind `every`, the others of kind `between`.
std::vector<LayerKind> periodic(int64_t num_layers, int64_t period, LayerKind between, LayerKind every) {
  std::vector<LayerKind> kinds;
  for (int64_t i = 1; i <= num_layers; ++i) kinds.push_back(i % period == 0 ? every : between);
  return kinds;
}

// exaone4 writes its pattern out: "LLLG", local and global layers in turn.
std::vector<LayerKind> spelled_pattern(const ShapeSource& source, const std::string& key, int64_t num_layers) {
  const auto pattern = source.json.at(key).get<std::string>();
  if (pattern.empty() || pattern.find_first_not_of("LG") != std::string::npos) {
    throw_bad_input("{}: {} is \"{}\", expected a number or letters L and G", source.origin, key, pattern);
  }
  std::vector<LayerKind> kinds;
  for (int64_t i = 0; i < num_layers; ++i) {
    const char letter = pattern[static_cast<size_t>(i) % pattern.size()];
    kinds.push_back(letter == 'L' ? LayerKind::kSliding : LayerKind::kFull);
  }
  return kinds;
}

LayerKinds pattern_kinds(const ShapeSource& source, const ShapeFamily& family, int64_t num_layers) {
  const std::string key = source.one_of({"sliding_window_pattern", "_sliding_window_pattern"});
  if (source.has(key) && source.json.at(key).is_string()) {
    return {.kinds = spelled_pattern(source, key, num_layers), .key = key};
  }
  const int64_t period = family.pattern == 0 ? source.count(key) : source.count_or(key, family.pattern);
  return {.kinds = periodic(num_layers, period, LayerKind::kSliding, LayerKind::kFull),
          .key = source.has(key) ? key : "sliding_window"};
}

LayerKinds from_layer_kinds(const ShapeSource& source, int64_t num_layers) {
  const int64_t first = require_int(source.json, "max_window_layers", source.origin);
  if (first < 0) throw_bad_input("{}: max_window_layers is {}, expected 0 or more", source.origin, first);
  LayerKinds result{.key = "use_sliding_window"};
  for (int64_t i = 0; i < num_layers; ++i) {
    result.kinds.push_back(i < first ? LayerKind::kFull : LayerKind::kSliding);
  }
  return result;
}

LayerKinds ruled_kinds(const ShapeSource& source, const ShapeFamily& family, int64_t num_layers, int64_t window) {
  const auto all = [num_layers](LayerKind kind) { return std::vector(static_cast<size_t>(num_layers), kind); };
  switch (family.layers) {
    case LayerRule::kLatent:
      return {.kinds = all(LayerKind::kLatent), .key = "kv_lora_rank"};
    case LayerRule::kListed:
      throw_bad_input("{}: layer_types is missing", source.origin);
    case LayerRule::kInterval:
      return {
          .kinds = periodic(num_layers, source.count("full_attention_interval"), LayerKind::kLinear, LayerKind::kFull),
          .key = "full_attention_interval"};
    default:
      break;
  }
  if (window == 0) return {.kinds = all(LayerKind::kFull)};
  if (family.layers == LayerRule::kPattern) return pattern_kinds(source, family, num_layers);
  if (family.layers == LayerRule::kFromLayer) return from_layer_kinds(source, num_layers);
  if (family.layers == LayerRule::kWindow) return {.kinds = all(LayerKind::kSliding), .key = "sliding_window"};
  return {.key = "use_sliding_window",
          .refusal = fmt::format("{} is set without layer_types, so which layers slide is not known",
                                 source.name("use_sliding_window"))};
}

// Files that give one KV head per query head leave the key out; those of other families may not.
HeadShape standard_heads(const ShapeSource& source, const ShapeFamily& family, int64_t num_q_heads) {
  HeadShape heads;
  heads.key =
      source.has("num_key_value_heads") || !family.kv_heads_may_default ? "num_key_value_heads" : "num_attention_heads";
  heads.num_kv_heads = heads.key == "num_attention_heads" ? num_q_heads : source.count(heads.key);
  if (source.has("head_dim")) {
    heads.head_dim = source.count("head_dim");
    return heads;
  }
  if (!family.head_dim_may_default) {
    throw_bad_input("{}: head_dim is missing, and for {} it does not follow from hidden_size; add it to the file",
                    source.origin, family.model_type);
  }
  const int64_t hidden_size = source.count("hidden_size");
  if (hidden_size % num_q_heads != 0) {
    throw_bad_input("{}: hidden_size {} is no multiple of num_attention_heads {} and head_dim is absent", source.origin,
                    hidden_size, num_q_heads);
  }
  heads.head_dim = hidden_size / num_q_heads;
  return heads;
}

HeadShape falcon_heads(const ShapeSource& source, const ShapeFamily& family, int64_t num_q_heads) {
  HeadShape heads = standard_heads(source, family, num_q_heads);
  if (!source.flag("new_decoder_architecture") && require_bool(source.json, "multi_query", source.origin)) {
    heads.num_kv_heads = 1;
    heads.key = "multi_query";
  } else if (source.has("num_kv_heads")) {
    heads.num_kv_heads = source.count("num_kv_heads");
    heads.key = "num_kv_heads";
  }
  return heads;
}

HeadShape chatglm_heads(const ShapeSource& source, int64_t num_q_heads) {
  const bool grouped = require_bool(source.json, "multi_query_attention", source.origin);
  return {.num_kv_heads = grouped ? source.count("multi_query_group_num") : num_q_heads,
          .head_dim = source.count("kv_channels"),
          .key = grouped ? "multi_query_group_num" : "num_attention_heads"};
}

HeadShape global_heads(const ShapeSource& source, HeadShape heads) {
  heads.head_dim = source.count("global_head_dim");
  if (source.flag("attention_k_eq_v") && source.has("num_global_key_value_heads")) {
    heads.num_kv_heads = source.count("num_global_key_value_heads");
    heads.key = "num_global_key_value_heads";
  }
  return heads;
}

}  // namespace

LayerKinds read_layer_kinds(const ShapeSource& source, const ShapeFamily& family, int64_t max_positions) {
  const int64_t num_layers = read_num_layers(source);
  const int64_t window = read_window(source, family);
  LayerKinds result = source.has("layer_types") ? listed_kinds(source, family, num_layers)
                                                : ruled_kinds(source, family, num_layers, window);
  if (!any_of_kind(result.kinds, LayerKind::kSliding)) return result;
  if (window == 0) {
    throw_bad_input("{}: layer_types holds \"sliding_attention\" but no sliding_window is in use", source.origin);
  }
  result.window = window;
  if (max_positions != 0 && window >= max_positions) {
    std::ranges::replace(result.kinds, LayerKind::kSliding, LayerKind::kFull);
    result.window = 0;
  }
  return result;
}

HeadShape read_heads(const ShapeSource& source, const ShapeFamily& family, LayerKind kind, int64_t num_q_heads) {
  HeadShape heads;
  if (family.heads == HeadRule::kFalcon) {
    heads = falcon_heads(source, family, num_q_heads);
  } else if (family.heads == HeadRule::kChatGlm) {
    heads = chatglm_heads(source, num_q_heads);
  } else {
    heads = standard_heads(source, family, num_q_heads);
    if (family.heads == HeadRule::kTwoGeometries && kind == LayerKind::kFull) heads = global_heads(source, heads);
  }
  if (num_q_heads % heads.num_kv_heads != 0) {
    throw_bad_input("{}: num_attention_heads {} is no multiple of {} {}", source.origin, num_q_heads, heads.key,
                    heads.num_kv_heads);
  }
  return heads;
}

}  // namespace asymkv
