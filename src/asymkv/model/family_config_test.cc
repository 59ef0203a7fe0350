// Configurations of the families beyond qwen2 and llama: what each key means, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "asymkv/base/error.h"
#include "asymkv/model/config.h"
#include "asymkv/model/gguf.h"
#include "asymkv/model/model_files_testkit.h"

namespace asymkv {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json family_config(const std::string& model_type) {
  Json json = testkit::tiny_config("llama", true);
  json["model_type"] = model_type;
  json["num_hidden_layers"] = 4;
  json["sliding_window"] = nullptr;
  if (model_type.starts_with("gemma")) {
    json.erase("hidden_act");
    json["hidden_activation"] = "gelu_pytorch_tanh";
    json["query_pre_attn_scalar"] = 64;
    json["sliding_window"] = 16;
  }
  return json;
}

std::vector<int64_t> windows(const Json& json) {
  std::vector<int64_t> result;
  for (const LayerConfig& layer : config_from_hf(json, "c").layers) result.push_back(layer.window);
  return result;
}

std::string refusal(const Json& json) {
  try {
    config_from_hf(json, "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(FamilyConfig, MistralWindowIsOfEveryLayerOrNone) {
  Json json = family_config("mistral");
  EXPECT_THAT(windows(json), ElementsAre(0, 0, 0, 0));
  json["sliding_window"] = 16;
  EXPECT_THAT(windows(json), ElementsAre(16, 16, 16, 16));
  json.erase("sliding_window");
  EXPECT_THAT(refusal(json), HasSubstr("config.json: sliding_window is missing; set it to null"));
}

TEST(FamilyConfig, QwenWindowStartsAtALayer) {
  for (const char* family : {"qwen2", "qwen3"}) {
    Json json = family_config(family);
    json["sliding_window"] = 16;
    json["max_window_layers"] = 3;
    EXPECT_THAT(windows(json), ElementsAre(0, 0, 0, 0)) << "not in use";
    json["use_sliding_window"] = true;
    EXPECT_THAT(windows(json), ElementsAre(0, 0, 0, 16));
    json["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
    EXPECT_THAT(windows(json), ElementsAre(0, 16, 0, 0));
  }
}

TEST(FamilyConfig, GemmaWindowsFollowThePatternOrTheList) {
  Json json = family_config("gemma3_text");
  json["sliding_window_pattern"] = 2;
  EXPECT_THAT(windows(json), ElementsAre(16, 0, 16, 0));
  json["layer_types"] = {"full_attention", "sliding_attention", "sliding_attention", "full_attention"};
  EXPECT_THAT(windows(json), ElementsAre(0, 16, 16, 0));
  EXPECT_THAT(windows(family_config("gemma2")), ElementsAre(16, 0, 16, 0));
  EXPECT_THAT(windows(family_config("gemma3_text")), ElementsAre(16, 16, 16, 16)) << "every sixth layer is full";
}

TEST(FamilyConfig, GemmaConstants) {
  Json json = family_config("gemma3_text");
  json["rope_theta"] = 1e6;
  json["rope_local_base_freq"] = 5000.0;
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  json["attn_logit_softcapping"] = 50.0;
  json["final_logit_softcapping"] = 30.0;
  json.erase("tie_word_embeddings");
  const ModelConfig config = config_from_hf(json, "c");
  EXPECT_TRUE(config.qk_norm && config.post_norms && config.tie_word_embeddings && !config.qkv_bias);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_DOUBLE_EQ(config.attention_scale, 0.125);
  EXPECT_DOUBLE_EQ(config.embedding_scale, 8.0);
  EXPECT_EQ(config.norm_weight_offset, 1.0);
  EXPECT_EQ(config.attention_soft_cap, 50.0);
  EXPECT_EQ(config.final_soft_cap, 30.0);
  ASSERT_EQ(config.ropes.size(), 2U);
  EXPECT_EQ(config.ropes[0].theta, 1e6);
  EXPECT_EQ(config.ropes[0].scaling.factor, 8.0);
  EXPECT_EQ(config.ropes[1].theta, 5000.0);
  EXPECT_EQ(config.ropes[1].scaling.kind, RopeScalingKind::kNone);
  EXPECT_EQ(config.layers[0].rope_idx, 1) << "a window layer";
}

TEST(FamilyConfig, PhiOldNamesOfLongRope) {
  Json json = family_config("phi3");
  json["original_max_position_embeddings"] = 64;
  const std::vector<double> factors(16, 2.0);
  for (const char* name : {"su", "yarn", "longrope"}) {
    json["rope_scaling"] = {{"type", name}, {"short_factor", factors}, {"long_factor", factors}};
    const RopeScaling scaling = config_from_hf(json, "c").ropes.at(0).scaling;
    EXPECT_EQ(scaling.kind, RopeScalingKind::kLongRope) << name;
    EXPECT_EQ(scaling.original_max_position, 64);
    EXPECT_DOUBLE_EQ(scaling.attention_factor, std::sqrt(1 + std::log(2.0) / std::log(64.0)));
  }
  EXPECT_TRUE(config_from_hf(json, "c").fused_projections);
}

TEST(FamilyConfig, RefusesByName) {
  const auto edited = [](const char* family, const std::function<void(Json&)>& edit) {
    Json json = family_config(family);
    edit(json);
    return refusal(json);
  };
  EXPECT_THAT(refusal(family_config("gemma3")),
              HasSubstr("model_type \"gemma3\" is not supported; known: qwen2, llama"));
  EXPECT_THAT(edited("qwen3", [](Json& j) { j["attention_bias"] = true; }), HasSubstr("attention_bias is true"));
  EXPECT_THAT(edited("gemma3_text", [](Json& j) { j["use_bidirectional_attention"] = true; }),
              HasSubstr("use_bidirectional_attention is true"));
  EXPECT_THAT(edited("gemma3_text", [](Json& j) { j["hidden_activation"] = "gelu"; }),
              HasSubstr("hidden_activation \"gelu\" is not supported for gemma3_text; only gelu_pytorch_tanh is"));
  EXPECT_THAT(edited("gemma3_text", [](Json& j) { j["sliding_window"] = nullptr; }), HasSubstr("\"sliding_window\""));
  EXPECT_THAT(edited("gemma3_text", [](Json& j) { j["sliding_window"] = 0; }), HasSubstr("sliding_window is 0"));
  EXPECT_THAT(edited("gemma3_text", [](Json& j) { j.erase("query_pre_attn_scalar"); }),
              HasSubstr("\"query_pre_attn_scalar\" is missing"));
  EXPECT_THAT(edited("gemma2", [](Json& j) { j["final_logit_softcapping"] = -30; }),
              HasSubstr("final_logit_softcapping is -30"));
  EXPECT_THAT(edited("gemma2", [](Json& j) { j["sliding_window_pattern"] = 0; }),
              HasSubstr("sliding_window_pattern is 0"));
  EXPECT_THAT(edited("phi3", [](Json& j) { j["partial_rotary_factor"] = 0.75; }),
              HasSubstr("partial_rotary_factor other than 1"));
  EXPECT_THAT(edited("qwen3",
                     [](Json& j) {
                       j["layer_types"] = {"chunked_attention", 1, 2, 3};
                     }),
              HasSubstr("layer_types holds \"chunked_attention\"; known"));
  EXPECT_THAT(edited("qwen3",
                     [](Json& j) {
                       j["rope_parameters"] = {{"full_attention", {{"rope_theta", 1e6}}},
                                               {"sliding_attention", {{"rope_theta", 1e4}}}};
                     }),
              HasSubstr("rope_parameters of several layer kinds is not supported for qwen3"));
  EXPECT_THAT(edited("gemma3_text",
                     [](Json& j) {
                       j["rope_parameters"] = {{"full_attention", {{"rope_theta", 1e6}}}};
                     }),
              HasSubstr("\"sliding_attention\" is missing"));
}

// The tiny GGUF files of tests/golden/parity are checked whole by the parity tests; here what GGUF alone can say wrong.
TEST(FamilyConfig, GgufRefusesByKey) {
  const auto refused = [](const std::function<void(testkit::GgufSpec&)>& edit) -> std::string {
    testkit::GgufSpec spec = testkit::tiny_gguf("qwen3", true, 0);
    edit(spec);
    const std::string bytes = spec.file();
    try {
      config_from_gguf(GgufFile(std::as_bytes(std::span(bytes)), "tiny.gguf"));
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refused([](auto&) {}), "accepted");
  EXPECT_THAT(refused([](auto& s) { s.set_u32("qwen3.attention.sliding_window", 128); }),
              HasSubstr("\"qwen3.attention.sliding_window\" is 128"));
  EXPECT_THAT(refused([](auto& s) { s.set_f32("qwen3.final_logit_softcapping", 30); }),
              HasSubstr("\"qwen3.final_logit_softcapping\" is 30"));
  EXPECT_THAT(refused([](auto& s) { s.set_string("qwen3.rope.scaling.type", "longrope"); }),
              HasSubstr("qwen3.rope.scaling.type is \"longrope\"; known: none, linear, yarn"));
  EXPECT_THAT(refused([](auto& s) { s.set_string("qwen3.rope.scaling.type", "yarn"); }),
              HasSubstr("qwen3.rope.scaling.factor"));
  EXPECT_THAT(refused([](auto& s) { s.set_string("general.architecture", "mistral3"); }),
              HasSubstr("general.architecture \"mistral3\" is not supported; known: qwen2, llama, qwen3, gemma2"));
}

}  // namespace
}  // namespace asymkv
