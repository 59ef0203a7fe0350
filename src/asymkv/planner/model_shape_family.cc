#include "asymkv/planner/model_shape_family.h"

#include <algorithm>
#include <array>
#include <utility>

namespace asymkv {
namespace {

constexpr ShapeFamily uniform(std::string_view model_type) {
  return {.model_type = model_type, .kv_heads_may_default = true, .head_dim_may_default = true};
}

constexpr ShapeFamily pattern(std::string_view model_type, int64_t period, bool may_default) {
  return {.model_type = model_type,
          .layers = LayerRule::kPattern,
          .pattern = period,
          .kv_heads_may_default = may_default,
          .head_dim_may_default = may_default};
}

constexpr std::array kFamilies = {
    uniform("llama"),
    uniform("cohere"),
    uniform("olmo2"),
    uniform("granite"),
    uniform("internlm2"),
    uniform("internlm3"),
    uniform("exaone"),
    ShapeFamily{.model_type = "glm"},
    ShapeFamily{.model_type = "glm4"},
    ShapeFamily{.model_type = "glm4_moe"},
    ShapeFamily{.model_type = "chatglm", .heads = HeadRule::kChatGlm},
    ShapeFamily{
        .model_type = "falcon", .heads = HeadRule::kFalcon, .kv_heads_may_default = true, .head_dim_may_default = true},
    ShapeFamily{.model_type = "qwen2", .layers = LayerRule::kFromLayer, .head_dim_may_default = true},
    ShapeFamily{.model_type = "qwen3", .layers = LayerRule::kFromLayer},
    ShapeFamily{.model_type = "qwen3_moe", .layers = LayerRule::kSwitched},
    ShapeFamily{.model_type = "smollm3", .layers = LayerRule::kSwitched, .head_dim_may_default = true},
    ShapeFamily{.model_type = "mistral",
                .layers = LayerRule::kWindow,
                .head_dim_may_default = true,
                .window_may_be_absent = false},
    ShapeFamily{.model_type = "ministral3", .layers = LayerRule::kWindow},
    ShapeFamily{
        .model_type = "phi3", .layers = LayerRule::kWindow, .kv_heads_may_default = true, .head_dim_may_default = true},
    pattern("gemma2", 2, false),
    pattern("gemma3_text", 6, false),
    pattern("gpt_oss", 2, false),
    pattern("cohere2", 4, true),
    pattern("olmo3", 4, true),
    pattern("exaone4", 0, true),
    ShapeFamily{.model_type = "gemma4_text", .layers = LayerRule::kListed, .heads = HeadRule::kTwoGeometries},
    ShapeFamily{.model_type = "qwen3_next", .layers = LayerRule::kInterval},
    ShapeFamily{.model_type = "qwen3_5_text", .layers = LayerRule::kInterval},
    ShapeFamily{.model_type = "qwen3_5_moe_text", .layers = LayerRule::kInterval},
    ShapeFamily{.model_type = "deepseek_v2", .layers = LayerRule::kLatent},
    ShapeFamily{.model_type = "deepseek_v3", .layers = LayerRule::kLatent},
    ShapeFamily{.model_type = "deepseek_v32", .layers = LayerRule::kLatent},
};

constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kWrappers = {{
    {"gemma3", "gemma3_text"},
    {"gemma4", "gemma4_text"},
    {"mistral3", "mistral"},
    {"mistral3", "ministral3"},
    {"qwen3_5", "qwen3_5_text"},
    {"qwen3_5_moe", "qwen3_5_moe_text"},
}};

}  // namespace

const ShapeFamily* find_shape_family(std::string_view model_type) {
  const auto* const family = std::ranges::find(kFamilies, model_type, &ShapeFamily::model_type);
  return family == kFamilies.end() ? nullptr : family;
}

bool is_known_wrapper(std::string_view outer, std::string_view inner) {
  return std::ranges::find(kWrappers, std::pair(outer, inner)) != kWrappers.end();
}

}  // namespace asymkv
