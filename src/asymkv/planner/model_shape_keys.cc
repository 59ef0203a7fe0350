#include "asymkv/planner/model_shape_keys.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace asymkv {
namespace {

using Keys = std::span<const std::string_view>;

// A key with one of them among the words of its name is known or refused.
constexpr auto kWords = std::to_array<std::string_view>({
    "attention",  "attentions",  "attn",      "block",  "blocks", "cache",   "chunk",  "chunked",   "compress",
    "compressed", "compression", "conv",      "cross",  "decay",  "encoder", "global", "head",      "heads",
    "hybrid",     "index",       "indexer",   "key",    "kv",     "latent",  "linear", "lightning", "local",
    "lora",       "lru",         "mamba",     "memory", "mla",    "multi",   "nsa",    "pattern",   "query",
    "rank",       "recurrent",   "retention", "rnn",    "rwkv",   "share",   "shared", "sink",      "sliding",
    "sparse",     "sparsity",    "ssm",       "state",  "swa",    "types",   "value",  "window",
});

// Words of keys about the feed-forward part and about tokens, which store nothing per token.
constexpr auto kOtherParts = std::to_array<std::string_view>({"expert", "experts", "moe", "mlp", "router", "token"});

constexpr auto kCommon =
    std::to_array<std::string_view>({"num_attention_heads", "n_head", "num_key_value_heads", "head_dim"});

// Known to leave the number of stored elements alone: biases, norms, scales, dropout, choices of kernel, the type of a
// quantity, tables of the forward pass.
constexpr auto kHarmless = std::to_array<std::string_view>({
    "_attn_implementation",
    "_attn_implementation_autoset",
    "add_qkv_bias",
    "apply_query_key_layer_scaling",
    "attention_bias",
    "attention_dropout",
    "attention_multiplier",
    "attention_out_bias",
    "attention_probs_dropout_prob",
    "attention_softmax_in_fp32",
    "attn_implementation",
    "attn_logit_softcapping",
    "attn_output_gate",
    "attn_pdrop",
    "cache_implementation",
    "chunk_size_feed_forward",
    "decoder_sparse_step",
    "encoder_no_repeat_ngram_size",
    "llama_4_scaling",
    "local_rope_theta",
    "mamba_ssm_dtype",
    "max_window_layers",
    "num_ln_in_parallel_attn",
    "output_attentions",
    "parallel_attn",
    "query_pre_attn_scalar",
    "rope_local_base_freq",
    "use_cache",
    "use_parallel_block",
});

constexpr auto kSwitchedKeys =
    std::to_array<std::string_view>({"sliding_window", "sliding_window_size", "use_sliding_window"});
constexpr auto kWindowKeys = std::to_array<std::string_view>({"sliding_window", "sliding_window_size"});
constexpr auto kPatternKeys = std::to_array<std::string_view>(
    {"sliding_window", "sliding_window_size", "sliding_window_pattern", "_sliding_window_pattern"});
constexpr auto kIntervalKeys =
    std::to_array<std::string_view>({"full_attention_interval", "linear_conv_kernel_dim", "linear_key_head_dim",
                                     "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim"});
constexpr auto kLatentKeys = std::to_array<std::string_view>(
    {"kv_lora_rank", "q_lora_rank", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"});
constexpr auto kFalconKeys =
    std::to_array<std::string_view>({"multi_query", "new_decoder_architecture", "num_kv_heads"});
constexpr auto kChatGlmKeys =
    std::to_array<std::string_view>({"kv_channels", "multi_query_attention", "multi_query_group_num"});
constexpr auto kTwoGeometriesKeys =
    std::to_array<std::string_view>({"attention_k_eq_v", "global_head_dim", "num_global_key_value_heads"});

bool holds(Keys keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}

Keys layer_keys(LayerRule rule) {
  switch (rule) {
    case LayerRule::kFull:
      return {};
    case LayerRule::kSwitched:
    case LayerRule::kFromLayer:
      return kSwitchedKeys;
    case LayerRule::kWindow:
    case LayerRule::kListed:
      return kWindowKeys;
    case LayerRule::kPattern:
      return kPatternKeys;
    case LayerRule::kInterval:
      return kIntervalKeys;
    case LayerRule::kLatent:
      return kLatentKeys;
  }
  return {};
}

Keys head_keys(HeadRule rule) {
  switch (rule) {
    case HeadRule::kStandard:
      return {};
    case HeadRule::kFalcon:
      return kFalconKeys;
    case HeadRule::kChatGlm:
      return kChatGlmKeys;
    case HeadRule::kTwoGeometries:
      return kTwoGeometriesKeys;
  }
  return {};
}

// The words of a name in lower case: of "sliding_window", "slidingWindow", "Sliding-Window" and "KVHeads" alike.
std::vector<std::string> words_of(std::string_view key) {
  const auto is = [](int (*kind)(int), char c) { return kind(static_cast<unsigned char>(c)) != 0; };
  std::vector<std::string> words(1);
  for (size_t i = 0; i < key.size(); ++i) {
    const char c = key[i];
    const bool upper = is(std::isupper, c);
    const bool after_lower = i > 0 && (is(std::islower, key[i - 1]) || is(std::isdigit, key[i - 1]));
    const bool ends_capitals =
        i > 0 && i + 1 < key.size() && is(std::isupper, key[i - 1]) && is(std::islower, key[i + 1]);
    if (!is(std::isalnum, c) || (upper && (after_lower || ends_capitals))) words.emplace_back();
    if (is(std::isalnum, c)) words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return words;
}

bool speaks_of_attention(std::string_view key) {
  const std::vector<std::string> words = words_of(key);
  const auto any_of = [&](Keys known) {
    return std::ranges::any_of(words, [&](const std::string& word) { return holds(known, word); });
  };
  return any_of(kWords) && !any_of(kOtherParts);
}

bool is_off(const std::string& key, const Json& value) {
  // Layers at the end that reuse the keys and values of earlier ones: a published 0 says that there are none.
  if (key == "num_kv_shared_layers" && value == 0) return true;
  // Whether the pictures of a prompt see each other does not change what is stored; bidirectional text would.
  if (key == "use_bidirectional_attention" && value == "vision") return true;
  return value.is_null() || value == false || ((value.is_structured() || value.is_string()) && value.empty());
}

}  // namespace

std::optional<std::string> unknown_attention_key(const Json& object, const ShapeFamily& family) {
  for (const auto& item : object.items()) {
    const std::string& key = item.key();
    if (is_off(key, item.value()) || !speaks_of_attention(key)) continue;
    if (holds(kHarmless, key) || holds(kCommon, key)) continue;
    if (key == "layer_types" && family.layers != LayerRule::kLatent) continue;
    if (holds(layer_keys(family.layers), key) || holds(head_keys(family.heads), key)) continue;
    return key;
  }
  return std::nullopt;
}

bool is_decoder_key(const std::string& key) {
  constexpr auto kSizes =
      std::to_array<std::string_view>({"hidden_size", "layer_types", "num_hidden_layers", "num_layers", "n_layer"});
  for (const Keys keys : {Keys(kSizes), Keys(kCommon), Keys(kSwitchedKeys), Keys(kPatternKeys), Keys(kIntervalKeys),
                          Keys(kLatentKeys), Keys(kFalconKeys), Keys(kChatGlmKeys), Keys(kTwoGeometriesKeys)}) {
    if (holds(keys, key)) return true;
  }
  return false;
}

}  // namespace asymkv
