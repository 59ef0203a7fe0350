#include "asymkv/model/random_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>
#include <set>

#include "asymkv/base/error.h"
#include "asymkv/base/error_testkit.h"
#include "asymkv/base/hash.h"
#include "asymkv/model/awq.h"
#include "asymkv/model/model_files.h"
#include "asymkv/model/model_files_testkit.h"
#include "asymkv/tensor/weight_matrix.h"

namespace asymkv {
namespace {

using test::expect_error;

ModelConfig tiny(const std::string& model_type) {
  return config_from_hf(testkit::tiny_config(model_type, false), "tiny", DType::kBF16);
}

double rms(const std::vector<float>& values) {
  double sum = 0.0;
  for (const float x : values) sum += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

TEST(RandomWeights, HoldEveryTensorThatTheModelNeedsAndNoOther) {
  for (const char* family : {"qwen2", "qwen3", "llama"}) {
    ModelConfig config = tiny(family);
    config.fused_projections = config.post_norms = config.model_type == "llama";
    const auto weights = make_random_weights(config, 1);
    const std::vector<RequiredTensor> required = required_tensors(config);
    ASSERT_EQ(weights->tensors().size(), required.size()) << family;
    for (const RequiredTensor& tensor : required) EXPECT_EQ(weights->info(tensor.name).shape, tensor.shape);
  }
}

TEST(RandomWeights, DependOnSeedNameAndPlaceAlone) {
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  const auto weights = make_random_weights(tiny("qwen2"), 7);
  const std::vector<float> whole = weights->read_f32(name);
  EXPECT_EQ(make_random_weights(tiny("qwen2"), 7)->read_f32(name), whole);
  EXPECT_NE(make_random_weights(tiny("qwen2"), 8)->read_f32(name), whole);
  EXPECT_NE(weights->read_f32("model.layers.0.mlp.down_proj.weight"), whole);
  const auto row_elems = static_cast<size_t>(weights->info(name).row_elems());
  std::vector<float> row(row_elems);
  weights->read_rows_f32(name, 5, 1, row);
  EXPECT_TRUE(std::equal(row.begin(), row.end(), whole.begin() + static_cast<std::ptrdiff_t>(5 * row_elems)));
  // What a matrix holds in memory is the same again.
  WeightMatrix matrix(weights->info(name).row_elems());
  weights->append_stored(name, matrix);
  matrix.widen_row(5, row);
  EXPECT_TRUE(std::equal(row.begin(), row.end(), whole.begin() + static_cast<std::ptrdiff_t>(5 * row_elems)));
}

TEST(RandomWeights, KeepTheSizeOfActivationsAndNormsAtOne) {
  ModelConfig config = tiny("qwen3");
  for (const double offset : {0.0, 1.0}) {
    config.norm_weight_offset = offset;  // Gemma stores norm weights less one
    const auto weights = make_random_weights(config, 3);
    const std::vector<float> down = weights->read_f32("model.layers.0.mlp.down_proj.weight");
    EXPECT_NEAR(rms(down) * std::sqrt(static_cast<double>(config.intermediate_size)), 1.0, 0.03);
    for (const float x : weights->read_f32("model.norm.weight")) EXPECT_EQ(x + static_cast<float>(offset), 1.0F);
  }
}

TEST(RandomWeights, AreAwqMatricesWhereTheConfigurationSaysSo) {
  ModelConfig config = tiny("qwen2");
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  config.awq_group_size = 32;
  const auto weights = make_random_weights(config, 3);
  const TensorInfo& info = weights->info(name);
  EXPECT_EQ(info.stored_type, "AWQ-INT4-G32");
  EXPECT_EQ(info.stored_bytes, info.num_elems() / 2 + info.num_elems() / 64 * 5);
  EXPECT_EQ(weights->info("model.embed_tokens.weight").stored_type, "BF16");
  const std::vector<float> values = weights->read_f32(name);
  EXPECT_NEAR(rms(values) * std::sqrt(static_cast<double>(config.intermediate_size)), 1.0, 0.03);
  EXPECT_NEAR(std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()) / rms(values),
              0.0, 0.05);
  WeightMatrix matrix(info.row_elems());
  weights->append_stored(name, matrix);
  EXPECT_EQ(matrix.parts().front().type, GgmlType::kQ5_0);
  std::vector<float> row(static_cast<size_t>(info.row_elems()));
  matrix.widen_row(5, row);
  EXPECT_TRUE(std::equal(row.begin(), row.end(), values.begin() + 5 * info.row_elems()));
  EXPECT_EQ(std::set<float>(values.begin(), values.end()).size(), 17U) << "16 codes less 7 or 8";
  config.awq_group_size = 128;
  expect_error([&] { make_random_weights(config, 3); }, ErrorCode::kUnsupported, "no whole groups of 128");
  config.awq_group_size = -1;
  EXPECT_EQ(make_random_weights(config, 3)->info(name).stored_type, awq_stored_type(info.row_elems()));
}

TEST(RandomWeights, KeyBiasesAreAsLargeAsMeasuredOnes) {
  const ModelConfig config = tiny("qwen2");
  const std::vector<float> bias = make_random_weights(config, 1)->read_f32("model.layers.0.self_attn.k_proj.bias");
  const auto half = static_cast<size_t>(config.head_dim / 2);
  const auto magnitude = [&](size_t head, size_t pair) {
    return std::hypot(bias[head * 2 * half + pair], bias[head * 2 * half + half + pair]);
  };
  for (size_t head = 0; head < 2; ++head) {
    EXPECT_NEAR(magnitude(head, half - 1), 456.0, 2.0);  // BF16
    EXPECT_NEAR(magnitude(head, half - 13), 71.0, 0.5);
    EXPECT_NEAR(magnitude(head, half - 14), 25.0, 0.2);
  }
  EXPECT_NE(bias[half - 1], bias[3 * half - 1]) << "another angle in every head";
}

class RandomModel : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / "random_model";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "config.json") << testkit::tiny_config("qwen2", true).dump();
  }
  std::filesystem::path folder_;
};

TEST_F(RandomModel, SaysWhatItIs) {
  const ModelFiles model = open_random_model(folder_, 5);
  EXPECT_EQ(model.name(), "random_model (random weights, seed 5)");
  EXPECT_EQ(model.config_sha256, sha256_file_hex(folder_ / "config.json"));
  EXPECT_EQ(model.weights_sha256(), sha256_hex("asymkv random weights 1, seed 5, config " + model.config_sha256));
  const ModelFiles other = open_random_model(folder_ / "config.json", 6);
  EXPECT_EQ(other.name(), "random_model (random weights, seed 6)");
  EXPECT_NE(other.weights_sha256(), model.weights_sha256());
}

TEST_F(RandomModel, IsRefusedWhereWeightsAre) {
  expect_error([&] { open_random_model(folder_ / "none.json", 1); }, ErrorCode::kBadInput, "none.json does not exist");
  for (const char* file : {"model.safetensors", "model.safetensors.index.json"}) {
    std::ofstream(folder_ / file) << "x";
    expect_error([&] { open_random_model(folder_, 1); }, ErrorCode::kUsage, "has weights");
    expect_error([&] { open_random_model(folder_ / "config.json", 1); }, ErrorCode::kUsage, "has weights");
    std::filesystem::remove(folder_ / file);
  }
  std::ofstream(folder_ / "model.gguf") << "x";
  expect_error([&] { open_random_model(folder_ / "model.gguf", 1); }, ErrorCode::kUsage, "model.gguf has weights");
}

}  // namespace
}  // namespace asymkv
