#include "asymkv/model/family.h"

#include <algorithm>
#include <array>
#include <string>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

constexpr std::array<Family, 8> kFamilies = {{
    {.model_type = "qwen2", .architecture = "qwen2", .window_rule = WindowRule::kFromLayer, .fixed_qkv_bias = true},
    {.model_type = "llama", .architecture = "llama", .optional_bias = true},
    {.model_type = "qwen3", .architecture = "qwen3", .window_rule = WindowRule::kFromLayer, .qk_norm = true},
    {.model_type = "mistral", .architecture = "", .window_rule = WindowRule::kAllLayers},
    {.model_type = "ministral3", .architecture = "", .window_rule = WindowRule::kAllLayers, .temperature = true},
    {.model_type = "gemma2",
     .architecture = "gemma2",
     .window_rule = WindowRule::kPattern,
     .window_pattern = 2,
     .post_norms = true,
     .scaled_embedding = true,
     .norm_stored_less_1 = true,
     .soft_caps = true,
     .head_scale_key = true,
     .tied_by_default = true,
     .activation = Activation::kGeluTanh},
    {.model_type = "gemma3_text",
     .architecture = "gemma3",
     .window_rule = WindowRule::kPattern,
     .window_pattern = 6,
     .qk_norm = true,
     .post_norms = true,
     .scaled_embedding = true,
     .norm_stored_less_1 = true,
     .soft_caps = true,
     .head_scale_key = true,
     .local_rope = true,
     .tied_by_default = true,
     .activation = Activation::kGeluTanh},
    {.model_type = "phi3", .architecture = "phi3", .window_rule = WindowRule::kAllLayers, .fused_projections = true},
}};

const Family& find(std::string_view Family::*name, std::string_view value, std::string_view key,
                   std::string_view origin) {
  const auto* const family = std::ranges::find(kFamilies, value, name);
  if (!value.empty() && family != kFamilies.end()) return *family;
  std::string known;
  for (const Family& row : kFamilies) {
    if (!(row.*name).empty()) known += fmt::format("{}{}", known.empty() ? "" : ", ", row.*name);
  }
  throw_unsupported("{}: {} \"{}\" is not supported; known: {}", origin, key, value, known);
}

}  // namespace

const Family& family_of_model_type(std::string_view model_type, std::string_view origin) {
  return find(&Family::model_type, model_type, "model_type", origin);
}

const Family& family_of_architecture(std::string_view architecture, std::string_view origin) {
  return find(&Family::architecture, architecture, "general.architecture", origin);
}

}  // namespace asymkv
