#include "asymkv/model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/model/model_files.h"
#include "asymkv/model/model_files_testkit.h"

namespace asymkv {
namespace {

using testing::ElementsAre;
using testkit::fresh_folder;
using testkit::tiny_folder;
using testkit::tiny_gguf;

// Every tensor the family needs reads back as the values it was made from.
void expect_tiny_values(const ModelFiles& model) {
  for (const RequiredTensor& tensor : required_tensors(model.config)) {
    const std::vector<float> values = model.weights->read_f32(tensor.name);
    ASSERT_EQ(values, testkit::tiny_values(tensor.name, static_cast<int64_t>(values.size()))) << tensor.name;
  }
}

struct Form {
  std::string family;
  bool tied;
  std::string type;
};

std::vector<Form> forms(const std::vector<std::string>& types) {
  std::vector<Form> result;
  for (const char* family : {"qwen2", "llama"}) {
    for (const bool tied : {true, false}) {
      for (const std::string& type : types) result.push_back({family, tied, type});
    }
  }
  return result;
}

std::string form_name(const testing::TestParamInfo<Form>& form) {
  return fmt::format("{}_{}_{}", form.param.family, form.param.tied ? "tied" : "untied", form.param.type);
}

class SafetensorsModel : public testing::TestWithParam<Form> {};

TEST_P(SafetensorsModel, ReadsBackExactly) {
  const auto& [family, tied, type] = GetParam();
  const auto folder = fresh_folder("single");
  tiny_folder(family, tied, type).write(folder);
  const ModelFiles model = open_model(folder);
  EXPECT_EQ(model.container, "safetensors");
  EXPECT_EQ(model.config.native_dtype, type == "F32" ? DType::kF32 : type == "F16" ? DType::kF16 : DType::kBF16);
  EXPECT_EQ(model.weights->contains("lm_head.weight"), !tied);
  EXPECT_EQ(model.weights->info("model.embed_tokens.weight").stored_type, type);
  expect_tiny_values(model);
  EXPECT_EQ(model.weights_sha256(), sha256_file_hex(folder / "model.safetensors"));
  EXPECT_EQ(model.config_sha256, sha256_file_hex(folder / "config.json"));
}

TEST_P(SafetensorsModel, ShardedReadsBackExactly) {
  const auto& [family, tied, type] = GetParam();
  const auto folder = fresh_folder("sharded");
  testkit::FolderSpec spec = tiny_folder(family, tied, type);
  spec.weight_map = Json::object();
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    (*spec.weight_map)[spec.tensors[i].name] = fmt::format("model-0000{}-of-00002.safetensors", 1 + i % 2);
  }
  spec.write(folder);
  const ModelFiles model = open_model(folder);
  expect_tiny_values(model);
  ASSERT_EQ(model.weights->files().size(), 2U);
  const std::string joined = read_text_file(folder / "model-00001-of-00002.safetensors") +
                             read_text_file(folder / "model-00002-of-00002.safetensors");
  EXPECT_EQ(model.weights_sha256(), sha256_hex(joined));
}

INSTANTIATE_TEST_SUITE_P(Forms, SafetensorsModel, testing::ValuesIn(forms({"BF16", "F16", "F32"})), form_name);

class GgufModel : public testing::TestWithParam<Form> {};

// For llama this also proves that q and k rows come back in rotate-half order: tiny_gguf stores them interleaved.
TEST_P(GgufModel, ReadsBackExactly) {
  const auto& [family, tied, type] = GetParam();
  const uint32_t id = type == "F32" ? 0 : type == "F16" ? 1 : type == "Q8_0" ? 8 : 30;
  const auto path = fresh_folder("gguf") / "tiny.gguf";
  testkit::write_bytes(path, tiny_gguf(family, tied, id).file());
  const ModelFiles model = open_model(path);
  EXPECT_EQ(model.container, "gguf");
  ASSERT_NE(model.gguf, nullptr);
  EXPECT_EQ(model.weights->info("model.layers.1.mlp.up_proj.weight").stored_type, type);
  expect_tiny_values(model);
  EXPECT_EQ(model.weights_sha256(), sha256_file_hex(path));
}

INSTANTIATE_TEST_SUITE_P(Forms, GgufModel, testing::ValuesIn(forms({"BF16", "F16", "F32", "Q8_0"})), form_name);

TEST(GgufWeights, LlamaBiasesAreReorderedToo) {
  testkit::GgufSpec spec = tiny_gguf("llama");
  const std::vector<std::pair<const char*, int64_t>> biases = {
      {"attn_q.bias", 128}, {"attn_k.bias", 64}, {"attn_v.bias", 64}};
  for (int layer = 0; layer < 2; ++layer) {
    for (const auto& [name, size] : biases) {
      std::vector<float> values;
      for (int64_t i = 0; i < size; ++i) values.push_back(static_cast<float>(i));
      spec.tensors.push_back({fmt::format("blk.{}.{}", layer, name), {size}, 0, testkit::encode(values, "F32"), {}});
    }
  }
  const auto path = fresh_folder("gguf_bias") / "tiny.gguf";
  testkit::write_bytes(path, spec.file());
  const ModelFiles model = open_model(path);
  EXPECT_TRUE(model.config.qkv_bias);
  const std::vector<float> k = model.weights->read_f32("model.layers.0.self_attn.k_proj.bias");
  // Head 1, heads of 32: channel 3 is the first of pair 3, stored at 2 x 3; channel 19 is its second.
  EXPECT_EQ(k[32 + 3], 32 + 6);
  EXPECT_EQ(k[32 + 19], 32 + 7);
  EXPECT_EQ(model.weights->read_f32("model.layers.0.self_attn.v_proj.bias")[35], 35);
}

TEST(WeightSource, RowsAreAWindowOfTheWhole) {
  const auto path = fresh_folder("rows") / "tiny.gguf";
  testkit::write_bytes(path, tiny_gguf("llama").file());
  const auto weights = open_weights(path);
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  const std::vector<float> whole = weights->read_f32(name);
  std::vector<float> rows(static_cast<size_t>(3 * weights->info(name).row_elems()));
  weights->read_rows_f32(name, 17, 3, rows);
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), whole.begin() + 17 * 64));
  EXPECT_THROW(weights->read_rows_f32(name, 126, 3, rows), Error);
  EXPECT_THROW(weights->read_rows_f32(name, 0, 2, rows), Error);
  EXPECT_THROW(weights->read_f32("absent"), Error);
}

// Above the size where reading goes parallel: every element still lands in its place.
TEST(WeightSource, LargeTensorsAreReadWhole) {
  const int64_t rows = 3001;
  const int64_t columns = 257;
  std::vector<float> values;
  for (int64_t i = 0; i < rows * columns; ++i) values.push_back(static_cast<float>(i));
  const auto folder = fresh_folder("large");
  testkit::write_bytes(folder / "model.safetensors",
                       testkit::safetensors_file({{"large", "F32", {rows, columns}, testkit::encode(values, "F32")}}));
  EXPECT_EQ(open_weights(folder)->read_f32("large"), values);
}

// Old writers did not pad the header: data may start at any byte of the file.
TEST(SafetensorsWeights, UnpaddedHeaderIsRead) {
  for (int padding = 0; padding < 8; ++padding) {
    const std::string header =
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})" + std::string(static_cast<size_t>(padding), ' ');
    const auto folder = fresh_folder("unpadded");
    testkit::write_bytes(folder / "model.safetensors",
                         testkit::safetensors_file(header, testkit::encode({1.5F, -2.25F}, "F32")));
    EXPECT_THAT(open_weights(folder)->read_f32("a"), ElementsAre(1.5F, -2.25F));
  }
}

TEST(ModelFiles, ToleratesOnlyTheKnownExtras) {
  testkit::FolderSpec spec = tiny_folder("llama", true, "F32");
  spec.tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {16}, std::string(64, '\0')});
  spec.tensors.push_back({"lm_head.weight", "F32", {40, 64}, std::string(40 * 64 * 4, '\0')});
  const auto folder = fresh_folder("extras");
  spec.write(folder);
  EXPECT_THAT(open_model(folder).ignored_tensors,
              ElementsAre("lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"));
}

// A checkpoint with a value scale alone: the key side stays absent, it does not become 1.
TEST(ModelFiles, CheckpointScalesArePerSide) {
  testkit::FolderSpec spec = tiny_folder("qwen2", true, "BF16");
  spec.tensors.push_back({"model.layers.1.self_attn.v_scale", "F32", {}, testkit::raw(0.25F)});
  const auto folder = fresh_folder("scales");
  spec.write(folder);
  const ModelFiles model = open_model(folder);
  EXPECT_TRUE(model.checkpoint_scales.any());
  EXPECT_EQ(model.checkpoint_scales.v[1], 0.25F);
  EXPECT_EQ(model.checkpoint_scales.v[0], std::nullopt);
  EXPECT_EQ(model.checkpoint_scales.k[1], std::nullopt);
}

TEST(ModelFiles, GenerationConfigAddsEndTokens) {
  const auto folder = fresh_folder("generation");
  tiny_folder().write(folder);
  testkit::write_bytes(folder / "generation_config.json", R"({"eos_token_id": [39, 7]})");
  EXPECT_THAT(open_model(folder).config.eos_token_ids, ElementsAre(39, 7));
}

}  // namespace
}  // namespace asymkv
