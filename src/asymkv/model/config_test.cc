#include "asymkv/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "asymkv/base/error.h"
#include "asymkv/model/gguf.h"
#include "asymkv/model/model_files_testkit.h"

namespace asymkv {
namespace {

using testing::ElementsAre;

std::vector<double> frequencies_of(const ModelConfig& config) {
  return rope_inverse_frequencies(config.ropes.at(0), config.head_dim, config.max_position_embeddings);
}

ModelConfig gguf_config(const testkit::GgufSpec& spec) {
  const std::string bytes = spec.file();
  return config_from_gguf(GgufFile(std::as_bytes(std::span(bytes)), "tiny.gguf"));
}

TEST(Config, PresentHeadDimIsNeverRecomputed) {
  Json json = testkit::tiny_config("qwen2", true);
  EXPECT_EQ(config_from_hf(json, "c").head_dim, 32);  // hidden / heads would be 16
  json.erase("head_dim");
  EXPECT_EQ(config_from_hf(json, "c").head_dim, 16);
}

TEST(Config, BiasesFollowTheFamily) {
  Json json = testkit::tiny_config("qwen2", true);
  EXPECT_TRUE(config_from_hf(json, "c").qkv_bias);
  EXPECT_FALSE(config_from_hf(json, "c").o_bias);
  json["model_type"] = "llama";
  EXPECT_FALSE(config_from_hf(json, "c").qkv_bias);
  json["attention_bias"] = true;
  EXPECT_TRUE(config_from_hf(json, "c").qkv_bias);
  EXPECT_TRUE(config_from_hf(json, "c").o_bias);
}

TEST(Config, ReadsBothSpellingsOfTheDtype) {
  Json json = testkit::tiny_config("llama", true);
  EXPECT_EQ(config_from_hf(json, "c").native_dtype, DType::kBF16);
  json.erase("torch_dtype");
  EXPECT_EQ(config_from_hf(json, "c", DType::kF32).native_dtype, DType::kF32);
  json["dtype"] = "float16";
  EXPECT_EQ(config_from_hf(json, "c", DType::kF32).native_dtype, DType::kF16);
}

TEST(Config, ReadsRopeParametersOfNewTransformers) {
  Json json = testkit::tiny_config("llama", true);
  json.erase("rope_theta");
  json["rope_parameters"] = {{"rope_theta", 500000.0},  {"rope_type", "llama3"},
                             {"factor", 8.0},           {"low_freq_factor", 1.0},
                             {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  const ModelConfig config = config_from_hf(json, "c");
  EXPECT_EQ(config.ropes.at(0).theta, 500000.0);
  EXPECT_EQ(config.ropes[0].scaling.kind, RopeScalingKind::kLlama3);
  EXPECT_EQ(config.ropes[0].scaling.original_max_position, 8192);
}

TEST(Config, EndTokensMayBeAList) {
  Json json = testkit::tiny_config("llama", true);
  json["eos_token_id"] = {1, 39};
  EXPECT_THAT(config_from_hf(json, "c").eos_token_ids, ElementsAre(1, 39));
  json["eos_token_id"] = nullptr;
  EXPECT_THAT(config_from_hf(json, "c").eos_token_ids, ElementsAre());
}

TEST(Config, GgufSaysTheSameAsConfigJson) {
  for (const char* family : {"qwen2", "llama"}) {
    for (const bool tied : {true, false}) {
      const ModelConfig hf = config_from_hf(testkit::tiny_config(family, tied), "c");
      const ModelConfig gguf = gguf_config(testkit::tiny_gguf(family, tied, 30));
      EXPECT_EQ(gguf.model_type, hf.model_type);
      EXPECT_EQ(gguf.hidden_size, hf.hidden_size);
      EXPECT_EQ(gguf.intermediate_size, hf.intermediate_size);
      EXPECT_EQ(gguf.num_layers, hf.num_layers);
      EXPECT_EQ(gguf.num_q_heads, hf.num_q_heads);
      EXPECT_EQ(gguf.num_kv_heads, hf.num_kv_heads);
      EXPECT_EQ(gguf.head_dim, hf.head_dim);
      EXPECT_EQ(gguf.vocab_size, hf.vocab_size);
      EXPECT_EQ(gguf.max_position_embeddings, hf.max_position_embeddings);
      EXPECT_EQ(gguf.ropes.at(0).theta, hf.ropes.at(0).theta);
      EXPECT_FLOAT_EQ(static_cast<float>(gguf.rms_norm_eps), static_cast<float>(hf.rms_norm_eps));
      EXPECT_EQ(gguf.tie_word_embeddings, hf.tie_word_embeddings);
      EXPECT_EQ(gguf.qkv_bias, hf.qkv_bias);
      EXPECT_EQ(gguf.o_bias, hf.o_bias);
      EXPECT_EQ(gguf.native_dtype, hf.native_dtype);
      EXPECT_EQ(gguf.eos_token_ids, hf.eos_token_ids);
      EXPECT_EQ(gguf.bos_token_id, hf.bos_token_id);
    }
  }
}

TEST(Config, GgufNativeTypeFollowsTheMatrices) {
  EXPECT_EQ(gguf_config(testkit::tiny_gguf("qwen2", true, 0)).native_dtype, DType::kF32);
  EXPECT_EQ(gguf_config(testkit::tiny_gguf("qwen2", true, 1)).native_dtype, DType::kF16);
  EXPECT_EQ(gguf_config(testkit::tiny_gguf("qwen2", true, 30)).native_dtype, DType::kBF16);
  EXPECT_EQ(gguf_config(testkit::tiny_gguf("qwen2", true, 8)).native_dtype, DType::kF16);
}

// transformers 5.24, _compute_llama3_parameters with Llama-3.1's scaling, head_dim 128, theta 500000: inv_freq as
// float32.
TEST(Config, Llama3FrequenciesEqualTransformers) {
  Json json = testkit::tiny_config("llama", true);
  json["head_dim"] = 128;
  json["rope_theta"] = 500000.0;
  json["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 8192}};
  const std::vector<double> got = frequencies_of(config_from_hf(json, "c"));
  ASSERT_EQ(got.size(), 64U);
  const std::pair<size_t, double> kExpected[] = {{0, 1.0},
                                                 {10, 0.128687382},
                                                 {28, 0.00321144611},
                                                 {29, 0.00216657063},
                                                 {30, 0.00137189368},
                                                 {32, 0.000524846022},
                                                 {34, 0.000178507791},
                                                 {36, 7.78465546e-05},
                                                 {63, 3.06892588e-07}};
  for (const auto& [pair, value] : kExpected) EXPECT_NEAR(got[pair] / value, 1.0, 3e-7) << pair;
}

TEST(Config, LinearAndFactorScalingDivide) {
  Json json = testkit::tiny_config("llama", true);
  const std::vector<double> plain = frequencies_of(config_from_hf(json, "c"));
  EXPECT_EQ(plain[0], 1.0);
  EXPECT_NEAR(plain[8], 0.01, 1e-12);  // theta^(-16/32)
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  EXPECT_DOUBLE_EQ(frequencies_of(config_from_hf(json, "c"))[3], plain[3] / 4);

  testkit::GgufSpec spec = testkit::tiny_gguf("llama", true);
  std::string factors;
  for (int i = 0; i < 16; ++i) factors += testkit::raw(1.0F + static_cast<float>(i));
  spec.tensors.push_back({"rope_freqs.weight", {16}, 0, factors, std::nullopt});
  EXPECT_DOUBLE_EQ(frequencies_of(gguf_config(spec))[3], plain[3] / 4);
}

}  // namespace
}  // namespace asymkv
