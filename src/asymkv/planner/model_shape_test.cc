#include "asymkv/planner/model_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "asymkv/planner/model_shape_testkit.h"

namespace asymkv {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

LayerGroup full(int64_t num_layers, int64_t num_kv_heads, int64_t head_dim) {
  return {LayerKind::kFull, num_layers, num_kv_heads, head_dim, head_dim};
}

LayerGroup sliding(int64_t num_layers, int64_t num_kv_heads, int64_t head_dim, int64_t window) {
  return {LayerKind::kSliding, num_layers, num_kv_heads, head_dim, head_dim, window};
}

ModelShape edited(const std::string& model_type, const Json& changes) {
  return shape_from_config(testkit::tiny_shape_config(model_type, changes), "config.json");
}

const Json kListed = {"sliding_attention", "full_attention", "sliding_attention", "sliding_attention"};

TEST(ModelShape, HeadDimIsReadOrDerivedNeverRecomputed) {
  EXPECT_THAT(edited("llama", {}).groups, ElementsAre(full(4, 2, 16))) << "hidden_size / heads would be 8";
  EXPECT_THAT(edited("llama", {{"head_dim", nullptr}}).groups, ElementsAre(full(4, 2, 8)));
  EXPECT_THAT(edited("llama", {{"num_key_value_heads", nullptr}}).groups, ElementsAre(full(4, 8, 16)));
  EXPECT_EQ(edited("llama", {{"num_key_value_heads", nullptr}}).deciding_key, "num_attention_heads");
}

TEST(ModelShape, LayerTypesWinOverThePatternWhichWinsOverTheWindow) {
  const Json window = {{"sliding_window", 16}};
  EXPECT_THAT(edited("gemma3_text", window).groups, ElementsAre(sliding(4, 2, 16, 16))) << "every sixth is full";
  const Json pattern = {{"sliding_window", 16}, {"sliding_window_pattern", 2}};
  EXPECT_THAT(edited("gemma3_text", pattern).groups, ElementsAre(full(2, 2, 16), sliding(2, 2, 16, 16)));
  EXPECT_EQ(edited("gemma3_text", pattern).deciding_key, "sliding_window_pattern");
  const Json old_pattern = {{"sliding_window", 16}, {"_sliding_window_pattern", 4}};
  EXPECT_THAT(edited("gemma3_text", old_pattern).groups, ElementsAre(full(1, 2, 16), sliding(3, 2, 16, 16)));
  EXPECT_EQ(edited("gemma3_text", old_pattern).deciding_key, "_sliding_window_pattern");
  const Json listed = {{"sliding_window", 16}, {"sliding_window_pattern", 2}, {"layer_types", kListed}};
  EXPECT_THAT(edited("gemma3_text", listed).groups, ElementsAre(full(1, 2, 16), sliding(3, 2, 16, 16)));
  EXPECT_EQ(edited("gemma3_text", listed).deciding_key, "layer_types");
  EXPECT_THAT(edited("mistral", window).groups, ElementsAre(sliding(4, 2, 16, 16)));
  EXPECT_THAT(edited("mistral", {{"sliding_window", 16}, {"layer_types", kListed}}).groups,
              ElementsAre(full(1, 2, 16), sliding(3, 2, 16, 16)));
}

TEST(ModelShape, PeriodsOfFamiliesWithoutAKey) {
  const auto num_full = [](const char* model_type) {
    Json changes = {{"sliding_window", 16}, {"num_hidden_layers", 24}};
    const ModelShape shape = edited(model_type, changes);
    return shape.groups.at(0).kind == LayerKind::kFull ? shape.groups.at(0).num_layers : 0;
  };
  EXPECT_EQ(num_full("gemma2"), 12);
  EXPECT_EQ(num_full("gpt_oss"), 12);
  EXPECT_EQ(num_full("gemma3_text"), 4);
  EXPECT_EQ(num_full("cohere2"), 6);
  EXPECT_EQ(num_full("olmo3"), 6);
}

TEST(ModelShape, ExaoneSpellsItsPatternOut) {
  const Json spelled = {{"sliding_window", 16}, {"sliding_window_pattern", "LLG"}, {"num_hidden_layers", 7}};
  EXPECT_THAT(edited("exaone4", spelled).groups, ElementsAre(full(2, 2, 16), sliding(5, 2, 16, 16)));
  EXPECT_EQ(edited("exaone4", spelled).deciding_key, "sliding_window_pattern");
  EXPECT_THAT(edited("exaone4", {{"sliding_window_pattern", "LLG"}}).groups, ElementsAre(full(4, 2, 16)))
      << "no window, no sliding layer";
}

TEST(ModelShape, QwenWindowsNeedTheirSwitch) {
  Json changes = {{"sliding_window", 16}, {"max_window_layers", 1}};
  EXPECT_THAT(edited("qwen2", changes).groups, ElementsAre(full(4, 2, 16)));
  changes["use_sliding_window"] = false;
  EXPECT_THAT(edited("qwen3", changes).groups, ElementsAre(full(4, 2, 16)));
  changes["use_sliding_window"] = true;
  EXPECT_THAT(edited("qwen2", changes).groups, ElementsAre(full(1, 2, 16), sliding(3, 2, 16, 16)));
  EXPECT_EQ(edited("qwen2", changes).deciding_key, "use_sliding_window");
  EXPECT_EQ(edited("smollm3", changes).verdict, ShapeVerdict::kRefuse) << "which layers slide is not known";
  EXPECT_EQ(edited("smollm3", changes).deciding_key, "use_sliding_window");
  changes["layer_types"] = kListed;
  EXPECT_THAT(edited("smollm3", changes).groups, ElementsAre(full(1, 2, 16), sliding(3, 2, 16, 16)));
}

TEST(ModelShape, AWindowThatNoSequenceOutgrowsIsNone) {
  EXPECT_THAT(edited("phi3", {{"sliding_window", 4095}}).groups, ElementsAre(sliding(4, 2, 16, 4095)));
  EXPECT_THAT(edited("phi3", {{"sliding_window", 4096}}).groups, ElementsAre(full(4, 2, 16)));
  EXPECT_THAT(edited("phi3", {{"sliding_window", 4096}, {"max_position_embeddings", nullptr}}).groups,
              ElementsAre(sliding(4, 2, 16, 4096)))
      << "the longest sequence is not known";
}

TEST(ModelShape, FalconAndChatGlmCountKvHeadsTheirWay) {
  Json falcon = {{"num_key_value_heads", nullptr}, {"multi_query", true}, {"num_kv_heads", 4}};
  EXPECT_THAT(edited("falcon", falcon).groups, ElementsAre(full(4, 1, 16))) << "num_kv_heads is not read";
  falcon["multi_query"] = false;
  EXPECT_THAT(edited("falcon", falcon).groups, ElementsAre(full(4, 4, 16)));
  falcon["num_kv_heads"] = nullptr;
  EXPECT_THAT(edited("falcon", falcon).groups, ElementsAre(full(4, 8, 16)));
  falcon.update({{"multi_query", true}, {"new_decoder_architecture", true}, {"num_kv_heads", 2}});
  EXPECT_THAT(edited("falcon", falcon).groups, ElementsAre(full(4, 2, 16)));
  Json glm = {{"multi_query_attention", true}, {"multi_query_group_num", 4}, {"kv_channels", 32}};
  EXPECT_THAT(edited("chatglm", glm).groups, ElementsAre(full(4, 4, 32)));
  glm["multi_query_attention"] = false;
  EXPECT_THAT(edited("chatglm", glm).groups, ElementsAre(full(4, 8, 32)));
}

TEST(ModelShape, GemmaFourHasTwoGeometries) {
  Json changes = {{"layer_types", {"sliding_attention", "sliding_attention", "sliding_attention", "full_attention"}},
                  {"sliding_window", 16},
                  {"global_head_dim", 32},
                  {"num_global_key_value_heads", 1}};
  EXPECT_THAT(edited("gemma4_text", changes).groups, ElementsAre(full(1, 2, 32), sliding(3, 2, 16, 16)))
      << "num_global_key_value_heads counts with attention_k_eq_v only";
  changes["attention_k_eq_v"] = true;
  const ModelShape shape = edited("gemma4_text", changes);
  EXPECT_THAT(shape.groups, ElementsAre(full(1, 1, 32), sliding(3, 2, 16, 16)));
  EXPECT_EQ(shape.verdict, ShapeVerdict::kAccountOnly);
  changes.update({{"global_head_dim", 16}, {"num_global_key_value_heads", 2}});
  EXPECT_EQ(edited("gemma4_text", changes).verdict, ShapeVerdict::kAccept) << "one geometry after all";
}

TEST(ModelShape, LinearLayersKeepAStateAndAConvolutionTail) {
  const Json changes = {{"full_attention_interval", 2}, {"linear_num_value_heads", 6}, {"linear_num_key_heads", 2},
                        {"linear_key_head_dim", 3},     {"linear_value_head_dim", 5},  {"linear_conv_kernel_dim", 4}};
  const ModelShape shape = edited("qwen3_next", changes);
  LayerGroup linear{.kind = LayerKind::kLinear, .num_layers = 2};
  linear.state_elems = 6 * 3 * 5 + (6 + 6 + 30) * 4;
  EXPECT_THAT(shape.groups, ElementsAre(full(2, 2, 16), linear));
  EXPECT_EQ(shape.verdict, ShapeVerdict::kAccountOnly);
  EXPECT_EQ(shape.deciding_key, "full_attention_interval");
}

TEST(ModelShape, LargeGroupsOfQueryHeadsAreAccountedOnly) {
  const auto verdict = [](int64_t num_q_heads) {
    return edited("llama", {{"num_attention_heads", num_q_heads}, {"num_key_value_heads", 1}}).verdict;
  };
  EXPECT_EQ(verdict(16), ShapeVerdict::kAccept);
  EXPECT_EQ(verdict(17), ShapeVerdict::kAccountOnly);
}

TEST(ModelShape, TextConfigIsTheDecoder) {
  const Json text = testkit::tiny_shape_config("gemma3_text", {{"sliding_window", 16}, {"dtype", nullptr}});
  Json json = {{"model_type", "gemma3"}, {"text_config", text}, {"torch_dtype", "float16"}, {"num_hidden_layers", 4}};
  const ModelShape shape = shape_from_config(json, "c");
  EXPECT_EQ(shape.model_type, "gemma3_text");
  EXPECT_EQ(shape.native_dtype, DType::kF16);
  EXPECT_EQ(shape.deciding_key, "text_config.sliding_window");
  json["model_type"] = "llava";
  EXPECT_EQ(shape_from_config(json, "c").deciding_key, "model_type") << "a wrapper nobody knows may add to the cache";
  json["model_type"] = "gemma3";
  json["cross_attention_layers"] = {1, 2};
  EXPECT_EQ(shape_from_config(json, "c").deciding_key, "cross_attention_layers");
}

// A key that might change what is stored, unless it is known or off.
TEST(ModelShape, RefusesAttentionKeysThatItDoesNotKnow) {
  const Json telling[] = {
      {{"attention_chunk_size", 8192}},
      {{"kv_lora_rank", 512}},
      {{"index_topk", 2048}},
      {{"num_kv_shared_layers", 2}},
      {{"sliding_window", 4096}},  // no key of llama
      {{"use_sliding_window", true}},
      {{"global_head_dim", 512}},
      {{"linear_num_value_heads", 4}},
      {{"hybrid_override_pattern", "M*M*"}},
      {{"sparse_attention_config", {{"block_size", 64}}}},
      {{"add_cross_attention", true}},
      {{"is_encoder_decoder", true}},
      {{"use_bidirectional_attention", "all"}},
      {{"ssm_state_size", 0}},
      {{"Attention_Chunk_Size", 8192}},
      {{"attentionChunkSize", 8192}},
      {{"numKVSharedLayers", 2}},
      {{"Sliding-Window", 4096}},
      {{"layer_types", {"full_attention", "full_attention", "full_attention", "chunked_attention"}}},
      {{"layer_types", {"full_attention", "full_attention", "full_attention", "linear_attention"}}}};
  for (const Json& changes : telling) {
    const ModelShape shape = edited("llama", changes);
    SCOPED_TRACE(changes.dump());
    EXPECT_EQ(shape.verdict, ShapeVerdict::kRefuse);
    EXPECT_EQ(shape.deciding_key, changes.begin().key());
    EXPECT_THAT(shape.reason, AllOf(HasSubstr(changes.begin().key()), HasSubstr("llama")));
    EXPECT_TRUE(shape.groups.empty());
  }
}

TEST(ModelShape, TakesKeysThatAreOffOrElsewhere) {
  const Json harmless[] = {
      {{"attention_chunk_size", nullptr}},
      {{"num_kv_shared_layers", 0}},
      {{"add_cross_attention", false}},
      {{"pruned_heads", Json::object()}},
      {{"image_token_index", 7}},
      {{"n_shared_experts", 2}},
      {{"nSharedExperts", 2}},
      {{"headline", 2}},
      {{"decoder_sparse_step", 1}},
      {{"attention_bias", true}},
      {{"use_bidirectional_attention", "vision"}},
      {{"layer_types", Json::array({"full_attention", "full_attention", "full_attention", "full_attention"})}}};
  for (const Json& changes : harmless) {
    EXPECT_EQ(edited("llama", changes).verdict, ShapeVerdict::kAccept) << changes;
  }
}

TEST(ModelShape, RefusesUnknownTypesByName) {
  for (const char* type : {"bert", "mamba", "llama4_text", "gemma4", "Llama", ""}) {
    const ModelShape shape = edited(type, {});
    EXPECT_EQ(shape.verdict, ShapeVerdict::kRefuse) << type;
    EXPECT_EQ(shape.deciding_key, "model_type");
    EXPECT_THAT(shape.reason, HasSubstr(type));
  }
}

TEST(ModelShape, LatentVectorsHaveBytesButNoSides) {
  Json json = {{"kv_lora_rank", 512}, {"qk_rope_head_dim", 64}, {"q_lora_rank", nullptr}};
  const ModelShape shape = edited("deepseek_v2", json);
  LayerGroup latent{.kind = LayerKind::kLatent, .num_layers = 4};
  latent.latent_dim = 576;
  EXPECT_THAT(shape.groups, ElementsAre(latent));
  EXPECT_EQ(shape.verdict, ShapeVerdict::kRefuse);
  EXPECT_EQ(shape.deciding_key, "kv_lora_rank");
  json["layer_types"] = kListed;
  EXPECT_EQ(edited("deepseek_v2", json).deciding_key, "layer_types") << "latents of which layers?";
}

}  // namespace
}  // namespace asymkv
