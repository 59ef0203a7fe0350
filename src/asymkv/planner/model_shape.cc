#include "asymkv/planner/model_shape.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/kv/limits.h"
#include "asymkv/planner/model_shape_family.h"
#include "asymkv/planner/model_shape_keys.h"
#include "asymkv/planner/model_shape_layers.h"
#include "asymkv/planner/model_shape_source.h"

namespace asymkv {
namespace {

ModelShape refused(ModelShape shape, std::string key, std::string reason) {
  shape.groups.clear();
  shape.verdict = ShapeVerdict::kRefuse;
  shape.deciding_key = std::move(key);
  shape.reason = std::move(reason);
  return shape;
}

// Beside text_config, a key of the decoder must say what text_config says.
void check_outer_keys(const Json& json, const Json& text, std::string_view origin) {
  for (const auto& item : json.items()) {
    const std::string& key = item.key();
    if (!is_decoder_key(key) || item.value().is_null()) continue;
    if (!text.contains(key) || text.at(key) != item.value()) {
      throw_bad_input("{}: {} is {} beside text_config, which {}", origin, key, item.value().dump(),
                      text.contains(key) ? fmt::format("says {}", text.at(key).dump()) : "lacks it");
    }
  }
}

void read_native_dtype(const Json& json, const Json& text, std::string_view origin, ModelShape& shape) {
  std::string name;
  std::string found;
  for (const Json* object : {&json, &text}) {
    for (const char* key : {"torch_dtype", "dtype"}) {
      const std::string value = string_or(*object, key, "", origin);
      if (value.empty()) continue;
      if (!name.empty() && value != name) {
        throw_bad_input("{}: {} is \"{}\" but {} is \"{}\"", origin, found, name, key, value);
      }
      name = value;
      found = key;
    }
  }
  shape.native_dtype_assumed = name.empty();
  if (name == "float16") {
    shape.native_dtype = DType::kF16;
  } else if (name == "float32") {
    shape.native_dtype = DType::kF32;
  } else if (!name.empty() && name != "bfloat16") {
    throw_unsupported("{}: {} \"{}\" is not supported; known: bfloat16, float16, float32", origin, found, name);
  }
}

// Of one linear layer: the state of every value head, [key dim][value dim], and the last inputs of the convolution
// that queries, keys (of the key heads) and values pass through.
int64_t read_state_elems(const ShapeSource& source) {
  const int64_t v_heads = source.count("linear_num_value_heads"), k_heads = source.count("linear_num_key_heads");
  const int64_t k_dim = source.count("linear_key_head_dim"), v_dim = source.count("linear_value_head_dim");
  const int64_t kernel = source.count("linear_conv_kernel_dim");
  int64_t recurrent = 0, keys = 0, values = 0, channels = 0, tail = 0, total = 0;
  bool overflow = __builtin_mul_overflow(v_heads, k_dim, &recurrent);
  overflow |= __builtin_mul_overflow(recurrent, v_dim, &recurrent);
  overflow |= __builtin_mul_overflow(k_heads, k_dim, &keys);
  overflow |= __builtin_mul_overflow(v_heads, v_dim, &values);
  overflow |= __builtin_add_overflow(keys, values, &channels);
  overflow |= __builtin_add_overflow(channels, keys, &channels);
  overflow |= __builtin_mul_overflow(channels, kernel, &tail);
  overflow |= __builtin_add_overflow(recurrent, tail, &total);
  if (overflow) throw_bad_input("{}: the linear_ keys give a state beyond 64 bits", source.origin);
  return total;
}

int64_t read_latent_dim(const ShapeSource& source) {
  const int64_t rank = source.count("kv_lora_rank"), rope_dim = source.count("qk_rope_head_dim");
  int64_t sum = 0;
  if (__builtin_add_overflow(rank, rope_dim, &sum)) {
    throw_bad_input("{}: kv_lora_rank {} is beyond what a layer can hold", source.origin, rank);
  }
  return sum;
}

// The longest sequence, in elements of eight bytes, must be countable: no format and no sum of sides takes more.
void check_countable(const LayerGroup& group, int64_t max_positions, std::string_view origin) {
  int64_t row = 0;
  bool overflow = __builtin_add_overflow(group.k_head_dim, group.v_head_dim, &row);
  overflow |= __builtin_mul_overflow(row, std::max<int64_t>(group.num_kv_heads, 1), &row);
  int64_t bytes = std::max({row, group.latent_dim, group.state_elems});
  const int64_t tokens = group.kind == LayerKind::kLinear ? 1 : std::max<int64_t>({max_positions, group.window, 1});
  for (const int64_t factor : {group.num_layers, tokens, static_cast<int64_t>(sizeof(int64_t))}) {
    overflow |= __builtin_mul_overflow(bytes, factor, &bytes);
  }
  if (overflow) {
    throw_bad_input(
        "{}: {} {} layers over {} tokens take more bytes than 64 bits count; look at head_dim, num_key_value_heads, "
        "sliding_window and max_position_embeddings",
        origin, group.num_layers, layer_kind_name(group.kind), tokens);
  }
}

struct Decoder {
  const ShapeSource& source;
  const ShapeFamily& family;
};

LayerGroup read_group(const Decoder& decoder, LayerKind kind, const LayerKinds& layers, const HeadShape& heads) {
  LayerGroup group{.kind = kind, .num_layers = std::ranges::count(layers.kinds, kind)};
  if (kind == LayerKind::kLinear) {
    group.state_elems = read_state_elems(decoder.source);
  } else if (kind == LayerKind::kLatent) {
    group.latent_dim = read_latent_dim(decoder.source);
  } else {
    group.num_kv_heads = heads.num_kv_heads;
    group.k_head_dim = group.v_head_dim = heads.head_dim;
    group.window = kind == LayerKind::kSliding ? layers.window : 0;
  }
  return group;
}

bool same_geometry(const HeadShape& a, const HeadShape& b) {
  return a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim;
}

void decide(ModelShape& shape, const ShapeSource& source, const LayerKinds& layers, const HeadShape& full,
            const HeadShape& sliding) {
  const auto has = [&shape](LayerKind kind) {
    return std::ranges::find(shape.groups, kind, &LayerGroup::kind) != shape.groups.end();
  };
  const auto set = [&shape, &source](ShapeVerdict verdict, std::string_view key, std::string_view what) {
    shape.verdict = verdict;
    shape.deciding_key = source.name(key);
    shape.reason = fmt::format("{} {}", shape.deciding_key, what);
  };
  const HeadShape& heads = has(LayerKind::kFull) ? full : sliding;
  if (has(LayerKind::kLatent)) {
    set(ShapeVerdict::kRefuse, layers.key, "says that keys and values share one vector, which has no sides to format");
  } else if (has(LayerKind::kLinear)) {
    set(ShapeVerdict::kAccountOnly, layers.key,
        "gives some layers a recurrent state, counted in the native dtype; the runtime does not serve it");
  } else if (has(LayerKind::kFull) && has(LayerKind::kSliding) && !same_geometry(full, sliding)) {
    set(ShapeVerdict::kAccountOnly, "global_head_dim",
        "gives full and sliding layers heads of their own; the runtime serves one geometry");
  } else if (shape.num_q_heads / heads.num_kv_heads > kMaxQueryGroup) {
    set(ShapeVerdict::kAccountOnly, heads.key,
        fmt::format("lets {} query heads share a KV head; the runtime serves up to {}",
                    shape.num_q_heads / heads.num_kv_heads, kMaxQueryGroup));
  } else if (has(LayerKind::kSliding)) {
    set(ShapeVerdict::kAccept, layers.key, "says which layers keep a window only");
  } else {
    set(ShapeVerdict::kAccept, heads.key, "gives every layer the same keys and values of every token");
  }
}

ModelShape read_decoder(const Decoder& decoder, ModelShape shape) {
  const ShapeSource& source = decoder.source;
  const bool latent = decoder.family.layers == LayerRule::kLatent;
  shape.max_positions = source.count_or(source.one_of({"max_position_embeddings", "seq_length"}), 0);
  const LayerKinds layers = read_layer_kinds(source, decoder.family, shape.max_positions);
  if (!layers.refusal.empty()) return refused(std::move(shape), source.name(layers.key), layers.refusal);
  shape.num_q_heads = source.count(source.one_of({"num_attention_heads", "n_head"}));
  HeadShape full, sliding;
  if (!latent) {
    full = read_heads(source, decoder.family, LayerKind::kFull, shape.num_q_heads);
    sliding = read_heads(source, decoder.family, LayerKind::kSliding, shape.num_q_heads);
  }
  for (const LayerKind kind : {LayerKind::kFull, LayerKind::kSliding, LayerKind::kLinear, LayerKind::kLatent}) {
    if (std::ranges::find(layers.kinds, kind) == layers.kinds.end()) continue;
    shape.groups.push_back(read_group(decoder, kind, layers, kind == LayerKind::kFull ? full : sliding));
    check_countable(shape.groups.back(), shape.max_positions, source.origin);
  }
  decide(shape, source, layers, full, sliding);
  return shape;
}

}  // namespace

std::string_view layer_kind_name(LayerKind kind) {
  switch (kind) {
    case LayerKind::kFull:
      return "full";
    case LayerKind::kSliding:
      return "sliding";
    case LayerKind::kLinear:
      return "linear";
    case LayerKind::kLatent:
      return "latent";
  }
  return "";
}

std::string_view shape_verdict_name(ShapeVerdict verdict) {
  switch (verdict) {
    case ShapeVerdict::kAccept:
      return "accept";
    case ShapeVerdict::kAccountOnly:
      return "account_only";
    case ShapeVerdict::kRefuse:
      return "refuse";
  }
  return "";
}

ModelShape shape_from_config(const Json& json, std::string_view origin) {
  const std::string outer_type = require_string(json, "model_type", origin);
  const bool nested = json.contains("text_config") && !json.at("text_config").is_null();
  const ShapeSource source{nested ? json.at("text_config") : json,
                           nested ? fmt::format("{}: text_config", origin) : std::string(origin),
                           nested ? "text_config." : ""};
  ModelShape shape;
  shape.model_type = require_string(source.json, "model_type", source.origin);
  const ShapeFamily* family = find_shape_family(shape.model_type);
  if (family == nullptr || (nested && !is_known_wrapper(outer_type, shape.model_type))) {
    const bool outer = nested && family != nullptr;
    std::string key = outer ? "model_type" : source.name("model_type");
    std::string reason = fmt::format("{} \"{}\" is not known, so what its layers store is not either", key,
                                     outer ? outer_type : shape.model_type);
    return refused(std::move(shape), std::move(key), std::move(reason));
  }
  for (const ShapeSource& level : {source, ShapeSource{json, std::string(origin), ""}}) {
    if (const auto key = unknown_attention_key(level.json, *family)) {
      return refused(std::move(shape), level.name(*key),
                     fmt::format("{} is not known for {} and may change what its layers store", level.name(*key),
                                 family->model_type));
    }
  }
  if (nested) check_outer_keys(json, source.json, origin);
  read_native_dtype(json, source.json, origin, shape);
  return read_decoder({source, *family}, std::move(shape));
}

}  // namespace asymkv
