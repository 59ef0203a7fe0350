// Configurations of published models, as their config.json gives them, shortened to the keys that say something about
// the cache and those that look as if they did (testdata/configs).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

#include "asymkv/base/file.h"
#include "asymkv/kv/layout.h"
#include "asymkv/planner/model_shape.h"

namespace asymkv {
namespace {

using ::testing::HasSubstr;

constexpr ShapeVerdict kAccept = ShapeVerdict::kAccept;
constexpr ShapeVerdict kAccountOnly = ShapeVerdict::kAccountOnly;
constexpr ShapeVerdict kRefuse = ShapeVerdict::kRefuse;

struct Published {
  const char* name;
  ShapeVerdict verdict;
  const char* key;
  int64_t growing_bytes;  // per token, of layers that keep every token, in the native format
  int64_t fixed_bytes;    // per sequence: full windows and states
};

constexpr Published kPublished[] = {
    {"llama-3.1-8b", kAccept, "num_key_value_heads", 131'072, 0},
    {"llama-3.1-70b", kAccept, "num_key_value_heads", 327'680, 0},
    {"qwen2.5-0.5b", kAccept, "num_key_value_heads", 12'288, 0},
    {"qwen2.5-1.5b", kAccept, "num_key_value_heads", 28'672, 0},
    {"qwen2.5-7b", kAccept, "num_key_value_heads", 57'344, 0},
    {"qwen3-0.6b", kAccept, "num_key_value_heads", 114'688, 0},
    {"qwen3-8b", kAccept, "num_key_value_heads", 147'456, 0},
    {"qwen3-32b", kAccept, "num_key_value_heads", 262'144, 0},
    {"qwen3-30b-a3b", kAccept, "num_key_value_heads", 98'304, 0},
    {"qwen3.5-9b", kAccountOnly, "text_config.layer_types", 32'768, 26'738'688},
    {"qwen3.5-27b", kAccountOnly, "text_config.layer_types", 65'536, 79'429'632},
    {"qwen3-next-80b-a3b", kAccountOnly, "full_attention_interval", 24'576, 40'108'032},
    {"gemma-2-9b", kAccept, "sliding_window", 172'032, 704'643'072},
    {"gemma-3-270m", kAccept, "layer_types", 3'072, 7'864'320},
    {"gemma-3-27b", kAccept, "text_config.sliding_window", 81'920, 436'207'616},
    {"gemma-4-26b-a4b", kAccountOnly, "text_config.global_head_dim", 20'480, 209'715'200},
    {"gemma-4-e2b", kRefuse, "text_config.num_kv_shared_layers", 0, 0},
    {"phi-4", kAccept, "num_key_value_heads", 204'800, 0},
    {"phi-4-mini", kAccept, "num_key_value_heads", 131'072, 0},
    {"mistral-7b-v0.1", kAccept, "sliding_window", 0, 536'870'912},
    {"mistral-7b-v0.3", kAccept, "num_key_value_heads", 131'072, 0},
    {"ministral-3-8b", kAccept, "text_config.num_key_value_heads", 139'264, 0},
    {"gpt-oss-20b", kAccept, "layer_types", 24'576, 3'145'728},
    {"gpt-oss-120b", kAccept, "layer_types", 36'864, 4'718'592},
    {"deepseek-v2-lite", kRefuse, "kv_lora_rank", 31'104, 0},
    {"deepseek-v3", kRefuse, "kv_lora_rank", 70'272, 0},
    {"deepseek-v3.2", kRefuse, "index_head_dim", 0, 0},
    {"glm-4-9b-chat", kAccept, "multi_query_group_num", 40'960, 0},
    {"glm-4-9b-0414", kAccept, "num_key_value_heads", 40'960, 0},
    {"glm-4.5-air", kAccept, "num_key_value_heads", 188'416, 0},
    {"command-r-v01", kAccept, "num_key_value_heads", 1'310'720, 0},
    {"command-r7b", kAccept, "sliding_window_pattern", 32'768, 402'653'184},
    {"olmo-2-7b", kAccept, "num_key_value_heads", 524'288, 0},
    {"olmo-3-7b", kAccept, "layer_types", 131'072, 1'610'612'736},
    {"smollm3-3b", kAccept, "num_key_value_heads", 73'728, 0},
    {"falcon-7b", kAccountOnly, "multi_query", 8'192, 0},
    {"falcon-40b", kAccept, "num_kv_heads", 122'880, 0},
    {"internlm2.5-7b", kAccept, "num_key_value_heads", 131'072, 0},
    {"internlm3-8b", kAccept, "num_key_value_heads", 49'152, 0},
    {"granite-3.3-8b", kAccept, "num_key_value_heads", 163'840, 0},
    {"exaone-3.5-7.8b", kAccept, "num_key_value_heads", 262'144, 0},  // published as float32
    {"exaone-4.0-32b", kAccept, "layer_types", 65'536, 805'306'368},
    {"exaone-4.0-1.2b", kAccept, "num_key_value_heads", 61'440, 0},
    {"llama-4-scout", kRefuse, "text_config.model_type", 0, 0},
};

std::filesystem::path source_folder() {
  const char* source = std::getenv("ASYMKV_SOURCE_DIR");
  return source == nullptr ? "." : source;
}

std::filesystem::path configs_folder() {
  return source_folder() / "src/asymkv/planner/testdata/configs";
}

ModelShape published_shape(const std::string& name) {
  const std::filesystem::path path = configs_folder() / (name + ".json");
  return shape_from_config(read_json_file(path), path.string());
}

int64_t row_bytes(const LayerGroup& group, DType dtype) {
  const KvGeometry geometry{group.num_kv_heads, group.k_head_dim, group.v_head_dim, 1};
  return KvLayout(geometry, KvFormat{.key = {.dtype = dtype}, .value = {.dtype = dtype}}).page_bytes().total();
}

int64_t growing_bytes(const ModelShape& shape) {
  int64_t bytes = 0;
  for (const LayerGroup& group : shape.groups) {
    if (group.kind == LayerKind::kFull) bytes += group.num_layers * row_bytes(group, shape.native_dtype);
    bytes += group.num_layers * group.latent_dim * dtype_bytes(shape.native_dtype);
  }
  return bytes;
}

int64_t fixed_bytes(const ModelShape& shape) {
  int64_t bytes = 0;
  for (const LayerGroup& group : shape.groups) {
    if (group.kind == LayerKind::kSliding) {
      bytes += group.num_layers * group.window * row_bytes(group, shape.native_dtype);
    }
    bytes += group.num_layers * group.state_elems * dtype_bytes(shape.native_dtype);
  }
  return bytes;
}

TEST(PublishedConfigs, VerdictKeyAndBytesOfEach) {
  for (const Published& row : kPublished) {
    SCOPED_TRACE(row.name);
    const ModelShape shape = published_shape(row.name);
    EXPECT_EQ(shape_verdict_name(shape.verdict), shape_verdict_name(row.verdict)) << shape.reason;
    EXPECT_EQ(shape.deciding_key, row.key);
    EXPECT_THAT(shape.reason, HasSubstr(row.key)) << "the reason names the key";
    EXPECT_EQ(growing_bytes(shape), row.growing_bytes);
    EXPECT_EQ(fixed_bytes(shape), row.fixed_bytes);
  }
}

TEST(PublishedConfigs, TheDocumentNamesEachModelType) {
  const std::string document = read_text_file(source_folder() / "docs/capacity.md");
  for (const Published& row : kPublished) {
    const ModelShape shape = published_shape(row.name);
    if (shape.deciding_key.ends_with("model_type")) continue;  // not known
    EXPECT_THAT(document, HasSubstr("`" + shape.model_type + "`")) << row.name;
  }
}

TEST(PublishedConfigs, EveryFileHasARow) {
  std::set<std::string> rows;
  for (const Published& row : kPublished) rows.insert(std::string(row.name) + ".json");
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(configs_folder())) {
    files.insert(entry.path().filename().string());
  }
  EXPECT_EQ(files, rows);
  EXPECT_GE(rows.size(), 25U);
}

TEST(PublishedConfigs, DtypesAndContextLengths) {
  EXPECT_EQ(published_shape("command-r-v01").native_dtype, DType::kF16);
  EXPECT_EQ(published_shape("exaone-3.5-7.8b").native_dtype, DType::kF32);
  EXPECT_FALSE(published_shape("gemma-3-27b").native_dtype_assumed) << "named outside text_config";
  EXPECT_TRUE(published_shape("gpt-oss-20b").native_dtype_assumed);
  EXPECT_EQ(published_shape("glm-4-9b-chat").max_positions, 131'072) << "seq_length";
  EXPECT_EQ(published_shape("gemma-3-27b").max_positions, 0) << "the file does not say";
  EXPECT_EQ(published_shape("qwen3.5-27b").model_type, "qwen3_5_text");
}

// What other planners answered wrongly, in GiB of one sequence.
TEST(PublishedConfigs, RegressionRows) {
  struct Row {
    const char* name;
    int64_t tokens;
    double gib;
  };
  constexpr Row kRows[] = {{"gemma-3-27b", 131'072, 10.41},
                           {"gemma-3-27b", 262'144, 20.41},
                           {"deepseek-v3", 163'840, 10.72},
                           {"qwen3-0.6b", 40'960, 4.38}};
  for (const Row& row : kRows) {
    const ModelShape shape = published_shape(row.name);
    const int64_t bytes = growing_bytes(shape) * row.tokens + fixed_bytes(shape);
    EXPECT_NEAR(static_cast<double>(bytes) / double{1 << 30}, row.gib, 0.005) << row.name << " at " << row.tokens;
  }
  EXPECT_EQ(growing_bytes(published_shape("qwen3.5-27b")) * 262'144, int64_t{16} << 30) << "states come on top";
}

}  // namespace
}  // namespace asymkv
