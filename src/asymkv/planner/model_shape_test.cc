#include "asymkv/planner/model_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace asymkv {
namespace {

using ::testing::ElementsAre;

TEST(ModelShape, ReadsAnUniformModel) {
  const Json json = {{"model_type", "qwen3"},     {"num_hidden_layers", 36},
                     {"num_attention_heads", 32}, {"num_key_value_heads", 8},
                     {"head_dim", 128},           {"hidden_size", 4096},
                     {"torch_dtype", "bfloat16"}, {"use_sliding_window", false},
                     {"sliding_window", 4096},    {"max_position_embeddings", 40960}};
  const ModelShape shape = shape_from_config(json, "config.json");
  EXPECT_EQ(shape.verdict, ShapeVerdict::kAccept);
  EXPECT_EQ(shape.deciding_key, "num_key_value_heads");
  EXPECT_EQ(shape.max_positions, 40960);
  EXPECT_THAT(shape.groups, ElementsAre(LayerGroup{LayerKind::kFull, 36, 8, 128, 128, 0, 0, 0}));
}

}  // namespace
}  // namespace asymkv
