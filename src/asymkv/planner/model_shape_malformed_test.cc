// Files that no model has: each gives one sentence that names the file and the key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "asymkv/base/error.h"
#include "asymkv/planner/model_shape.h"
#include "asymkv/planner/model_shape_testkit.h"

namespace asymkv {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kHuge = int64_t{1} << 62;

const Json kLinear = {{"full_attention_interval", 2}, {"linear_num_value_heads", 6}, {"linear_num_key_heads", 2},
                      {"linear_key_head_dim", 4},     {"linear_value_head_dim", 4},  {"linear_conv_kernel_dim", 4}};

struct Malformed {
  const char* model_type;
  Json changes;      // to tiny_shape_config
  const char* says;  // part of the sentence
};

const Malformed kMalformed[] = {
    {"llama", {{"model_type", 7}}, "field \"model_type\" must be a string, found number"},
    {"llama", {{"num_hidden_layers", nullptr}}, "field \"num_hidden_layers\" is missing"},
    {"llama", {{"num_hidden_layers", "32"}}, "field \"num_hidden_layers\" must be an integer, found string"},
    {"llama", {{"num_hidden_layers", 32.5}}, "field \"num_hidden_layers\" must be an integer, found number"},
    {"llama", {{"num_hidden_layers", 4097}}, "num_hidden_layers is 4097, expected at most 4096"},
    {"llama", {{"num_layers", 5}}, "num_hidden_layers is 4 but num_layers is 5"},
    {"llama", {{"num_attention_heads", nullptr}}, "field \"num_attention_heads\" is missing"},
    {"llama", {{"num_attention_heads", 0}}, "num_attention_heads is 0, expected a positive integer"},
    {"llama", {{"num_key_value_heads", -2}}, "num_key_value_heads is -2, expected a positive integer"},
    {"llama", {{"num_key_value_heads", 3}}, "num_attention_heads 8 is no multiple of num_key_value_heads 3"},
    {"llama", {{"num_key_value_heads", 16}}, "num_attention_heads 8 is no multiple of num_key_value_heads 16"},
    {"llama", {{"head_dim", nullptr}, {"hidden_size", 63}}, "hidden_size 63 is no multiple of num_attention_heads 8"},
    {"llama", {{"head_dim", true}}, "field \"head_dim\" must be an integer, found boolean"},
    {"llama", {{"head_dim", UINT64_MAX}}, "field \"head_dim\" is 18446744073709551615, above the largest integer"},
    {"llama",
     {{"head_dim", kHuge}},
     "4 full layers over 4096 tokens take more bytes than 64 bits count; look at head_dim"},
    {"llama", {{"max_position_embeddings", kHuge}}, "take more bytes than 64 bits count"},
    {"gemma2", {{"max_position_embeddings", nullptr}, {"sliding_window", kHuge}}, "look at head_dim"},
    {"llama", {{"dtype", "float8_e4m3fn"}}, "dtype \"float8_e4m3fn\" is not supported"},
    {"llama", {{"torch_dtype", "float16"}}, "torch_dtype is \"float16\" but dtype is \"bfloat16\""},
    {"llama", {{"dtype", 16}}, "field \"dtype\" must be a string"},
    {"qwen2", {{"num_key_value_heads", nullptr}}, "field \"num_key_value_heads\" is missing"},
    {"qwen3", {{"head_dim", nullptr}}, "head_dim is missing, and for qwen3 it does not follow from hidden_size"},
    {"qwen2", {{"use_sliding_window", 1}}, "field \"use_sliding_window\" must be true or false"},
    {"qwen2", {{"use_sliding_window", true}, {"sliding_window", 16}}, "field \"max_window_layers\" is missing"},
    {"qwen2",
     {{"use_sliding_window", true}, {"sliding_window", 16}, {"max_window_layers", -1}},
     "max_window_layers is -1, expected 0 or more"},
    {"qwen2",
     {{"sliding_window", 16},
      {"layer_types", Json::array({"full_attention", "sliding_attention", "full_attention", "sliding_attention"})}},
     "layer_types holds \"sliding_attention\" but no sliding_window is in use"},
    {"mistral", {}, "sliding_window is missing; set it to null or to the number of tokens"},
    {"gemma2", {{"sliding_window", 0}}, "sliding_window is 0, expected a positive integer"},
    {"gemma2",
     {{"sliding_window", 16}, {"sliding_window_size", 32}},
     "sliding_window is 16 but sliding_window_size is 32"},
    {"gemma2", {{"sliding_window", 16}, {"sliding_window_pattern", 0}}, "sliding_window_pattern is 0"},
    {"gemma2",
     {{"layer_types", "full_attention"}},
     "layer_types must be an array of 4 strings, one per layer, found string"},
    {"gemma2", {{"layer_types", Json::array({"full_attention"})}}, "one per layer, found 1"},
    {"gemma2", {{"layer_types", {1, 2, 3, 4}}}, "layer_types holds 1, expected strings"},
    {"exaone4", {{"sliding_window", 16}, {"sliding_window_pattern", "LLX"}}, "expected a number or letters L and G"},
    {"exaone4", {{"sliding_window", 16}}, "field \"sliding_window_pattern\" is missing"},
    {"gemma4_text", {{"sliding_window", 16}}, "layer_types is missing"},
    {"gemma4_text",
     {{"sliding_window", 16},
      {"global_head_dim", 32},
      {"layer_types", Json::array({"full_attention", "full_attention", "full_attention", "sliding_attention"})}},
     "layer_types ends with \"sliding_attention\", but the last layer of gemma4_text is a full one"},
    {"qwen3_next", {}, "field \"full_attention_interval\" is missing"},
    {"qwen3_next", {{"full_attention_interval", 2}}, "field \"linear_num_value_heads\" is missing"},
    {"qwen3_next", testkit::with(kLinear, {{"linear_key_head_dim", kHuge}}),
     "the linear_ keys give a state beyond 64 bits"},
    {"qwen3_next", testkit::with(kLinear, {{"linear_conv_kernel_dim", -4}}), "linear_conv_kernel_dim is -4"},
    {"falcon", {{"num_key_value_heads", nullptr}}, "field \"multi_query\" is missing"},
    {"chatglm", {{"multi_query_attention", true}, {"kv_channels", 16}}, "field \"multi_query_group_num\" is missing"},
    {"deepseek_v3", {{"qk_rope_head_dim", 64}}, "field \"kv_lora_rank\" is missing"},
    {"deepseek_v3",
     {{"kv_lora_rank", INT64_MAX}, {"qk_rope_head_dim", 64}},
     "kv_lora_rank 9223372036854775807 is beyond"},
    {"llama", {{"text_config", 3}}, "text_config must be a JSON object, found number"},
    {"gemma3", {{"text_config", Json::object()}}, "text_config: field \"model_type\" is missing"},
    {"gemma3",
     {{"text_config", testkit::tiny_shape_config("gemma3_text", {{"num_hidden_layers", 6}})}},
     "num_hidden_layers is 4 beside text_config, which says 6"},
    {"gemma3", {{"text_config", {{"model_type", "gemma3_text"}}}}, "beside text_config, which lacks it"},
};

std::string sentence(const Json& json) {
  try {
    return "no error: " + shape_from_config(json, "models/config.json").reason;
  } catch (const Error& e) {
    EXPECT_TRUE(e.code() == ErrorCode::kBadInput || e.code() == ErrorCode::kUnsupported) << e.what();
    return e.what();
  }
}

TEST(MalformedConfigs, EachGivesASentence) {
  for (const Malformed& row : kMalformed) {
    const Json json = testkit::tiny_shape_config(row.model_type, row.changes);
    SCOPED_TRACE(json.dump());
    EXPECT_THAT(sentence(json), AllOf(StartsWith("models/config.json"), HasSubstr(row.says)));
  }
}

TEST(MalformedConfigs, NotAnObject) {
  for (const Json& json : {Json::array(), Json(3), Json("llama"), Json()}) {
    EXPECT_THAT(sentence(json), HasSubstr("models/config.json must be a JSON object, found "));
  }
  EXPECT_THAT(sentence(Json::object()), HasSubstr("field \"model_type\" is missing"));
}

// The bytes of the longest sequence are checked up to the last bit, whatever factor makes them large.
TEST(MalformedConfigs, TheLargestCountableSequencePasses) {
  Json json =
      testkit::tiny_shape_config("llama", {});  // 4 layers x 2 heads x (16 + 16) elements x 8 bytes: 2^11 a token
  json["max_position_embeddings"] = (int64_t{1} << 52) - 1;
  EXPECT_THAT(sentence(json), HasSubstr("no error"));
  json["max_position_embeddings"] = int64_t{1} << 52;
  EXPECT_THAT(sentence(json), HasSubstr("more bytes than 64 bits count"));
}

}  // namespace
}  // namespace asymkv
