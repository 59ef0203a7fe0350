// Tiny models of every family beyond qwen2 and llama, from safetensors and from GGUF, and of AWQ weights, against
// transformers.
#include <gtest/gtest.h>

#include "asymkv/base/error.h"
#include "parity_checks.h"

namespace asymkv::parity {
namespace {

struct Case {
  std::string model;   // below tests/golden/parity
  std::string golden;  // of greedy-tiny-NAME.json
};

class FamilyParity : public testing::TestWithParam<Case> {};

TEST_P(FamilyParity, GreedyEqualsTransformers) {
  const auto model = open_parity_model(golden_path(GetParam().model));
  model->decoder.reserve_positions(model->files.config.max_position_embeddings / 2);
  expect_greedy_equal(*model, "greedy-tiny-" + GetParam().golden + ".json");
}

INSTANTIATE_TEST_SUITE_P(Tiny, FamilyParity,
                         testing::Values(Case{"tiny-qwen3", "qwen3"}, Case{"tiny-qwen3.gguf", "qwen3"},
                                         Case{"tiny-mistral", "mistral"}, Case{"tiny-gemma3", "gemma3"},
                                         Case{"tiny-gemma3.gguf", "gemma3"}, Case{"tiny-gemma2", "gemma2"},
                                         Case{"tiny-gemma2.gguf", "gemma2"}, Case{"tiny-phi3", "phi3"},
                                         Case{"tiny-phi3.gguf", "phi3"}, Case{"tiny-phi3-long", "phi3-long"},
                                         Case{"tiny-ministral3", "ministral3"}, Case{"tiny-awq", "awq"}),
                         [](const auto& parameter) {
                           std::string name = parameter.param.model.substr(5);
                           for (char& c : name) c = c == '-' || c == '.' ? '_' : c;
                           return name;
                         });

// What a family adds is in the golden: without it the logits move by far more than the tolerance.
class FamilyFeature : public testing::TestWithParam<std::pair<const char*, void (*)(ModelConfig&)>> {};

TEST_P(FamilyFeature, IsNoticedWhenMissing) {
  const auto& [name, drop] = GetParam();
  ModelFiles files = open_model(golden_path(std::string("tiny-") + name));
  drop(files.config);
  const Backends backends = open_parity_model(golden_path(std::string("tiny-") + name))->decoder.backends();
  Decoder decoder(files.config, *files.weights, backends);
  decoder.reserve_positions(files.config.max_position_embeddings / 2);
  ParityModel model{std::move(files), std::move(decoder)};
  Json golden = read_json_file(golden_path(std::string("greedy-tiny-") + name + ".json"));
  Json& prompts = golden["prompts"];
  prompts.erase(prompts.begin() + 4, prompts.end());
  for (Json& prompt : prompts) prompt["tokens"] = std::vector<int32_t>{prompt["tokens"][0].get<int32_t>()};
  const GreedyReport report = run_greedy(model, golden);
  EXPECT_GT(report.largest_logit_error, 0.02);
}

INSTANTIATE_TEST_SUITE_P(
    Dropped, FamilyFeature,
    testing::Values(std::pair{"qwen3", +[](ModelConfig& c) { c.qk_norm = false; }},
                    std::pair{"mistral", +[](ModelConfig& c) { c.layers[0].window = 0; }},
                    std::pair{"mistral", +[](ModelConfig& c) { ++c.layers[1].window; }},
                    std::pair{"gemma3", +[](ModelConfig& c) { c.layers[2].window = 20; }},
                    std::pair{"gemma3", +[](ModelConfig& c) { c.layers[2].rope_idx = 1; }},
                    std::pair{"gemma3", +[](ModelConfig& c) { c.layers[0].rope_idx = 0; }},
                    std::pair{"gemma3", +[](ModelConfig& c) { c.embedding_scale = 1; }},
                    std::pair{"gemma3", +[](ModelConfig& c) { c.attention_scale = 0.2; }},
                    std::pair{"gemma3", +[](ModelConfig& c) { c.norm_weight_offset = 0; }},
                    std::pair{"gemma3", +[](ModelConfig& c) { c.activation = Activation::kSilu; }},
                    std::pair{"gemma2", +[](ModelConfig& c) { c.attention_soft_cap = 0; }},
                    std::pair{"gemma2", +[](ModelConfig& c) { c.final_soft_cap = 0; }},
                    std::pair{"phi3", +[](ModelConfig& c) { c.ropes[0].scaling.attention_factor = 1; }},
                    std::pair{"phi3-long", +[](ModelConfig& c) { c.ropes[0].scaling.original_max_position = 512; }},
                    std::pair{"ministral3", +[](ModelConfig& c) { c.query_temperature = 0; }},
                    std::pair{"ministral3", +[](ModelConfig& c) { c.ropes[0].scaling.attention_factor = 1; }}),
    [](const auto& parameter) {
      std::string name = std::string(parameter.param.first) + "_" + std::to_string(parameter.index);
      for (char& c : name) c = c == '-' ? '_' : c;
      return name;
    });

// Keys turned by the short factors cannot share a cache with keys turned by the long ones.
TEST(LongRope, SwitchAfterTheFirstTokenIsRefused) {
  const auto model = open_parity_model(golden_path("tiny-phi3"));
  const std::vector<int32_t> tokens(300, 65);
  ForwardChunk chunk;
  chunk.tokens = std::span(tokens).first(256);
  EXPECT_EQ(model->decoder.max_positions(), 256);
  model->decoder.forward(std::span(&chunk, 1), DType::kF32);
  chunk.tokens = tokens;
  try {
    model->decoder.forward(std::span(&chunk, 1), DType::kF32);
    FAIL() << "300 tokens ran on short factors for 256";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_NE(std::string(error.what()).find("300 tokens are more than the 256"), std::string::npos) << error.what();
  }
  const auto fresh = open_parity_model(golden_path("tiny-phi3"));
  EXPECT_NO_THROW(fresh->decoder.forward(std::span(&chunk, 1), DType::kF32));
}

}  // namespace
}  // namespace asymkv::parity
