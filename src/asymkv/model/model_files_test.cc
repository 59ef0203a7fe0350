// Broken model files: each is a good tiny model with one named change, and must be refused with the sentence that names
// what is wrong.

#include "asymkv/model/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "asymkv/base/error.h"
#include "asymkv/model/model_files_testkit.h"

namespace asymkv {
namespace {

using testkit::FolderSpec;
using testkit::GgufSpec;
using testkit::raw;

constexpr ErrorCode kBad = ErrorCode::kBadInput;
constexpr ErrorCode kUnsupported = ErrorCode::kUnsupported;

template <typename Spec>
struct Broken {
  std::string name;
  std::function<void(Spec&)> change;
  ErrorCode code;
  std::string expected;
};
using BrokenFolder = Broken<FolderSpec>;
using BrokenGguf = Broken<GgufSpec>;

void expect_refused(const std::filesystem::path& path, ErrorCode code, const std::string& expected) {
  try {
    open_model(path);
    FAIL() << "opened, expected: " << expected;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    EXPECT_THAT(e.what(), testing::HasSubstr(expected));
    EXPECT_THAT(e.what(), testing::HasSubstr(path.filename().string())) << "the error must name the file";
  }
}

std::function<void(FolderSpec&)> set_key(const std::string& key, Json value) {
  return [key, value = std::move(value)](FolderSpec& spec) { spec.config[key] = value; };
}

// Replaces text in the header of model.safetensors and keeps the length field right.
std::function<void(FolderSpec&)> edit_header(const std::string& from, const std::string& to) {
  return [from, to](FolderSpec& spec) {
    spec.edit_weights = [from, to](std::string& bytes) {
      uint64_t len = 0;
      std::memcpy(&len, bytes.data(), sizeof(len));
      std::string header = bytes.substr(8, len);
      const size_t at = header.find(from);
      ASYMKV_CHECK(at != std::string::npos, "the header has no {}", from);
      header.replace(at, from.size(), to);
      bytes = testkit::safetensors_file(header, bytes.substr(8 + len));
    };
  };
}

std::function<void(FolderSpec&)> edit_bytes(std::function<void(std::string&)> edit) {
  return [edit = std::move(edit)](FolderSpec& spec) { spec.edit_weights = edit; };
}

testkit::StoredTensor& find_tensor(FolderSpec& spec, const std::string& name) {
  const auto it = std::ranges::find(spec.tensors, name, &testkit::StoredTensor::name);
  ASYMKV_CHECK(it != spec.tensors.end(), "no tensor {}", name);
  return *it;
}

std::function<void(FolderSpec&)> shard_map(std::function<void(Json&)> change) {
  return [change = std::move(change)](FolderSpec& spec) {
    spec.weight_map = Json::object();
    for (const auto& tensor : spec.tensors) (*spec.weight_map)[tensor.name] = "model-00001-of-00002.safetensors";
    change(*spec.weight_map);
  };
}

std::vector<BrokenFolder> broken_configs() {
  return {
      {"config_missing",
       [](FolderSpec& s) { s.after = [](const auto& f) { std::filesystem::remove(f / "config.json"); }; }, kBad,
       "config.json"},
      {"config_torn", [](FolderSpec& s) { s.config_text = R"({"model_type": "qwen2",)"; }, kBad, "is not valid JSON"},
      {"config_not_utf8", [](FolderSpec& s) { s.config_text = "{\"model_type\": \"\xff\xfe\"}"; }, kBad,
       "is not valid JSON"},
      {"config_is_array", [](FolderSpec& s) { s.config_text = "[1]"; }, kBad, "must be a JSON object, found array"},
      {"family_unknown", set_key("model_type", "mamba"), kUnsupported, "model_type \"mamba\" is not supported"},
      {"family_missing", [](FolderSpec& s) { s.config.erase("model_type"); }, kBad, "field \"model_type\" is missing"},
      {"layers_text", set_key("num_hidden_layers", "2"), kBad, "field \"num_hidden_layers\" must be an integer"},
      {"layers_negative", set_key("num_hidden_layers", -2), kBad, "num_hidden_layers is -2"},
      {"hidden_huge", set_key("hidden_size", int64_t{1} << 62), kBad, "hidden_size is 4611686018427387904"},
      {"heads_do_not_divide", set_key("num_key_value_heads", 3), kBad,
       "num_attention_heads 4 is no multiple of num_key_value_heads 3"},
      {"head_dim_odd", set_key("head_dim", 31), kBad, "head_dim is 31"},
      {"head_dim_wrong", set_key("head_dim", 16), kBad,
       "\"model.layers.0.self_attn.q_proj.weight\" has shape [128, 64], the configuration needs [64, 64]"},
      {"sliding_window_missing", set_key("use_sliding_window", true), kBad, "field \"sliding_window\" is missing"},
      {"max_window_layers_missing",
       [](FolderSpec& s) {
         s.config["use_sliding_window"] = true;
         s.config["sliding_window"] = 8;
       },
       kBad, "max_window_layers is missing"},
      {"layer_types", set_key("layer_types", {"full_attention", "sliding_attention"}), kUnsupported,
       "layer_types holds \"sliding_attention\""},
      {"rope_dynamic", set_key("rope_scaling", {{"type", "dynamic"}, {"factor", 4.0}}), kUnsupported,
       "rope_scaling has rope_type \"dynamic\"; known: default, linear, llama3, yarn, longrope"},
      {"rope_yarn_length_missing", set_key("rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}), kBad,
       "field \"original_max_position_embeddings\" is missing"},
      {"rope_yarn_betas",
       set_key("rope_scaling",
               {{"type", "yarn"}, {"factor", 4.0}, {"beta_fast", 1}, {"original_max_position_embeddings", 64}}),
       kBad, "beta_slow 1 is not below beta_fast 1"},
      {"rope_attention_factor",
       set_key("rope_scaling",
               {{"type", "yarn"}, {"factor", 4.0}, {"attention_factor", -1}, {"original_max_position_embeddings", 64}}),
       kBad, "attention_factor is -1"},
      {"rope_factors_short",
       set_key("rope_scaling",
               {{"type", "longrope"}, {"short_factor", {1.0, 2.0}}, {"original_max_position_embeddings", 64}}),
       kBad, "short_factor must be an array of 16 numbers"},
      {"rope_partial", set_key("partial_rotary_factor", 0.75), kUnsupported, "partial_rotary_factor other than 1"},
      {"rope_factor_missing", set_key("rope_scaling", {{"rope_type", "linear"}}), kBad, "field \"factor\" is missing"},
      {"rope_theta_negative", set_key("rope_theta", -1.0), kBad, "rope_theta is -1"},
      {"dtype_unknown", set_key("torch_dtype", "float8_e4m3fn"), kUnsupported, "torch_dtype \"float8_e4m3fn\""},
      {"eos_outside", set_key("eos_token_id", 40), kBad, "eos_token_id is 40, outside the vocabulary of 40"},
      {"eos_large", set_key("eos_token_id", 2147483648), kBad, "eos_token_id is 2147483648, outside the vocabulary"},
      {"eos_huge", set_key("eos_token_id", {1, 18446744073709551615U}), kBad,
       "eos_token_id is 18446744073709551615, outside the vocabulary"},
      {"bos_huge", set_key("bos_token_id", 18446744073709551615U), kBad, "\"bos_token_id\" is 18446744073709551615"},
      {"rope_factor_inf",
       set_key("rope_scaling", {{"type", "longrope"},
                                {"short_factor", std::vector<double>(16, 1e39)},
                                {"original_max_position_embeddings", 64}}),
       kBad, "short_factor holds 1e+39, expected numbers that are finite and positive in 32 bits"},
      {"quantised", set_key("quantization_config", {{"quant_method", "gptq"}}), kUnsupported,
       "quant_method \"gptq\" is not supported, only \"awq\" is"},
  };
}

std::vector<BrokenFolder> broken_safetensors() {
  return {
      {"weights_missing",
       [](FolderSpec& s) { s.after = [](const auto& f) { std::filesystem::remove(f / "model.safetensors"); }; }, kBad,
       "holds neither model.safetensors nor model.safetensors.index.json"},
      {"empty_file", edit_bytes([](std::string& b) { b.clear(); }), kBad, "truncated"},
      {"header_length_huge", edit_bytes([](std::string& b) { b.replace(0, 8, raw(~uint64_t{0})); }), kBad,
       "the header length is 18446744073709551615 bytes, the format allows"},
      {"header_length_past_end", edit_bytes([](std::string& b) { b.replace(0, 8, raw(uint64_t{99'000'000})); }), kBad,
       "truncated: the header length is 99000000"},
      {"header_not_json", edit_bytes([](std::string& b) { b[8] = 'x'; }), kBad, "header is not valid JSON"},
      {"header_not_utf8", edit_header("model.norm.weight", "model.\xff.weight"), kBad, "header is not valid JSON"},
      {"header_nested", edit_header("\"shape\":[64]", "\"shape\":[[64]]"), kBad,
       "unexpected an array in field \"shape\""},
      {"header_negative", edit_header("\"shape\":[64]", "\"shape\":[-64]"), kBad, "unexpected the number -64"},
      {"name_twice", edit_header("model.layers.1.input_layernorm.weight", "model.layers.0.input_layernorm.weight"),
       kBad, "tensor \"model.layers.0.input_layernorm.weight\" appears twice"},
      {"field_missing", edit_header("\"dtype\":\"BF16\",", ""), kBad, "has no \"dtype\""},
      {"dtype_unknown_in_header", edit_header("\"BF16\"", "\"F7\""), kUnsupported, "unknown dtype \"F7\""},
      {"dtype_other_width", edit_header("\"BF16\"", "\"F32\""), kBad, "its shape and dtype F32 need"},
      {"shape_overflows", edit_header("\"shape\":[64]", "\"shape\":[4294967296,4294967296]"), kBad,
       "overflows 64 bits"},
      {"shape_zero_hides_overflow", edit_header("\"shape\":[64]", "\"shape\":[0,9223372036854775807,4]"), kBad,
       "overflows 64 bits"},
      {"offsets_outside", edit_header("\"data_offsets\":[0,5120]", "\"data_offsets\":[0,99999999]"), kBad,
       "data_offsets [0, 99999999], outside"},
      {"offsets_reversed", edit_header("\"data_offsets\":[0,5120]", "\"data_offsets\":[5120,0]"), kBad,
       "data_offsets [5120, 0], outside"},
      {"offsets_overlap", edit_header("\"data_offsets\":[5120,5248]", "\"data_offsets\":[5118,5246]"), kBad,
       "overlaps"},
      {"data_truncated", edit_bytes([](std::string& b) { b.resize(b.size() - 100); }), kBad, "outside the"},
      {"data_left_over", edit_bytes([](std::string& b) { b += "tail"; }), kBad, "4 bytes after the last tensor"},
      {"weights_fp8",
       [](FolderSpec& s) {
         auto& tensor = find_tensor(s, "model.norm.weight");
         tensor.dtype = "F8_E4M3";
         tensor.bytes.resize(64);
       },
       kUnsupported, "tensor \"model.norm.weight\" is stored as F8_E4M3"},
      {"tensor_missing",
       [](FolderSpec& s) {
         std::erase_if(s.tensors, [](const auto& t) { return t.name == "model.layers.1.self_attn.k_proj.bias"; });
       },
       kBad, "tensor \"model.layers.1.self_attn.k_proj.bias\" is missing"},
      {"tensor_unknown",
       [](FolderSpec& s) {
         s.tensors.push_back({"model.layers.0.self_attn.q_norm.weight", "BF16", {1}, "00"});
       },
       kBad, "unknown tensor \"model.layers.0.self_attn.q_norm.weight\" for model_type qwen2"},
      {"tensor_transposed",
       [](FolderSpec& s) {
         find_tensor(s, "model.layers.0.mlp.up_proj.weight").shape = {64, 96};
       },
       kBad, "\"model.layers.0.mlp.up_proj.weight\" has shape [64, 96], the configuration needs [96, 64]"},
      {"layer_beyond_config", set_key("num_hidden_layers", 1), kBad, "unknown tensor \"model.layers.1."},
      {"scale_zero",
       [](FolderSpec& s) {
         s.tensors.push_back({"model.layers.1.self_attn.k_scale", "F32", {}, raw(0.0F)});
       },
       kBad, "the key scale of layer 1 is 0"},
      {"scale_nan",
       [](FolderSpec& s) {
         s.tensors.push_back({"model.layers.0.self_attn.v_scale", "F32", {1}, raw(0x7fc00000U)});
       },
       kBad, "the value scale of layer 0 is nan"},
      {"index_names_outside", shard_map([](Json& m) { m["model.norm.weight"] = "../model.safetensors"; }), kBad,
       "not a plain file name"},
      {"index_shard_absent",
       [](FolderSpec& s) {
         shard_map([](Json&) {})(s);
         s.after = [](const auto& f) { std::filesystem::remove(f / "model-00001-of-00002.safetensors"); };
       },
       kBad, "model-00001-of-00002.safetensors"},
      {"index_misplaces_tensor", shard_map([](Json& m) { m["absent"] = "model-00001-of-00002.safetensors"; }), kBad,
       "has no tensor \"absent\""},
      {"index_not_text", shard_map([](Json& m) { m.clear(); }), kBad, "\"weight_map\" must be a non-empty object"},
  };
}

std::vector<BrokenGguf> broken_gguf_containers() {
  const auto huge_array = raw(uint32_t{4}) + raw(~uint64_t{0});
  return {
      {"magic", [](GgufSpec& s) { s.edit = [](std::string& b) { b[0] = 'X'; }; }, kBad, "is not a GGUF file"},
      {"empty_gguf", [](GgufSpec& s) { s.edit = [](std::string& b) { b.clear(); }; }, kBad, "truncated"},
      {"version_2", [](GgufSpec& s) { s.version = 2; }, kUnsupported, "GGUF version 2"},
      {"big_endian", [](GgufSpec& s) { s.version = 0x03000000; }, kUnsupported, "big-endian"},
      {"tensor_count_huge", [](GgufSpec& s) { s.num_tensors = ~uint64_t{0}; }, kBad, "the tensor count is"},
      {"value_count_huge", [](GgufSpec& s) { s.num_values = uint64_t{1} << 40; }, kBad, "the metadata count is"},
      {"key_length_huge",
       [](GgufSpec& s) { s.edit = [](std::string& b) { b.replace(24, 8, raw(uint64_t{1} << 60)); }; }, kBad,
       "a metadata key claims"},
      {"array_length_huge", [=](GgufSpec& s) { s.set("a", 9, huge_array); }, kBad,
       "the length of metadata array \"a\" is"},
      {"array_nested", [](GgufSpec& s) { s.set("a", 9, raw(uint32_t{9}) + raw(uint64_t{0})); }, kUnsupported,
       "array of arrays"},
      {"value_type_unknown", [](GgufSpec& s) { s.set("a", 13, ""); }, kBad, "unknown value type 13"},
      {"string_past_end", [](GgufSpec& s) { s.set("a", 8, raw(uint64_t{1} << 50)); }, kBad,
       "claims 1125899906842624 bytes"},
      {"key_twice", [](GgufSpec& s) { s.values.push_back(s.values.front()); }, kBad,
       "\"general.architecture\" appears twice"},
      {"alignment_zero", [](GgufSpec& s) { s.set_u32("general.alignment", 0); }, kBad, "general.alignment is 0"},
      {"alignment_three", [](GgufSpec& s) { s.set_u32("general.alignment", 3); }, kBad, "general.alignment is 3"},
      {"tensor_type_iq", [](GgufSpec& s) { s.tensors[0].type = 17; }, kUnsupported,
       "tensor \"token_embd.weight\" is stored as IQ2_XS"},
      {"tensor_type_unknown", [](GgufSpec& s) { s.tensors[0].type = 777; }, kBad, "unknown type id 777"},
      {"tensor_dims",
       [](GgufSpec& s) {
         s.tensors[0].shape = {1, 1, 1, 40, 64};
       },
       kBad, "has 5 dimensions"},
      {"tensor_dim_zero",
       [](GgufSpec& s) {
         s.tensors[0].shape = {0, 64};
       },
       kBad, "has a dimension of 0"},
      {"tensor_overflow",
       [](GgufSpec& s) {
         s.tensors[0].shape = {int64_t{1} << 40, int64_t{1} << 40};
       },
       kBad, "overflows 64 bits"},
      {"tensor_part_block",
       [](GgufSpec& s) {
         s.tensors[0].shape = {40, 63};
       },
       kBad, "not whole Q8_0 blocks of 32"},
      {"tensor_twice", [](GgufSpec& s) { s.tensors.push_back(s.tensors.front()); }, kBad,
       "tensor \"token_embd.weight\" appears twice"},
      {"tensor_misaligned", [](GgufSpec& s) { s.tensors[0].offset = 8; }, kBad, "no multiple of the alignment 32"},
      {"tensor_overlap", [](GgufSpec& s) { s.tensors[1].offset = 0; }, kBad, "overlap"},
      {"tensor_past_end", [](GgufSpec& s) { s.tensors[0].offset = uint64_t{1} << 62; }, kBad,
       "truncated: tensor \"token_embd.weight\""},
      {"data_cut", [](GgufSpec& s) { s.edit = [](std::string& b) { b.resize(b.size() - 200); }; }, kBad,
       "truncated: tensor"},
      {"tensor_name_long", [](GgufSpec& s) { s.tensors[0].name = std::string(65, 'a'); }, kBad, "name has 65 bytes"},
  };
}

std::vector<BrokenGguf> broken_gguf_models() {
  return {
      {"architecture_unknown", [](GgufSpec& s) { s.set_string("general.architecture", "mamba"); }, kUnsupported,
       "general.architecture \"mamba\" is not supported"},
      {"architecture_number", [](GgufSpec& s) { s.set_u32("general.architecture", 1); }, kBad, "must be a string"},
      {"layers_missing", [](GgufSpec& s) { s.erase("qwen2.block_count"); }, kBad, "\"qwen2.block_count\" is missing"},
      {"layers_forged", [](GgufSpec& s) { s.set_u32("qwen2.block_count", 4'000'000'000); }, kBad,
       "qwen2.block_count is 4000000000"},
      {"heads_per_layer",
       [](GgufSpec& s) { s.set("qwen2.attention.head_count", 9, raw(4U) + raw(uint64_t{2}) + raw(4U) + raw(4U)); },
       kBad, "\"qwen2.attention.head_count\" must be an integer, found an array"},
      {"value_length", [](GgufSpec& s) { s.set_u32("qwen2.attention.value_length", 16); }, kUnsupported,
       "qwen2.attention.value_length is 16"},
      {"experts", [](GgufSpec& s) { s.set_u32("qwen2.expert_count", 8); }, kUnsupported, "\"qwen2.expert_count\" is 8"},
      {"gguf_yarn", [](GgufSpec& s) { s.set_string("qwen2.rope.scaling.type", "yarn"); }, kBad,
       "metadata key \"qwen2.rope.scaling.factor\" is missing"},
      {"rope_base_nan", [](GgufSpec& s) { s.set("qwen2.rope.freq_base", 6, raw(0x7fc00000U)); }, kBad,
       "qwen2.rope.freq_base is nan"},
      {"rope_freqs_zero",
       [](GgufSpec& s) {
         s.tensors.push_back({"rope_freqs.weight", {16}, 0, std::string(64, '\0'), {}});
       },
       kBad, "a factor is 0"},
      {"rope_freqs_shape",
       [](GgufSpec& s) {
         s.tensors.push_back({"rope_freqs.weight", {8}, 0, std::string(32, '\0'), {}});
       },
       kBad, "\"rope_freqs.weight\" must hold 16 F32 values"},
      {"gguf_eos_outside", [](GgufSpec& s) { s.set_u32("tokenizer.ggml.eos_token_id", 4000); }, kBad,
       "tokenizer.ggml.eos_token_id is 4000, outside the vocabulary of 40"},
      {"gguf_eos_large", [](GgufSpec& s) { s.set_u32("tokenizer.ggml.eos_token_id", 2147483648U); }, kBad,
       "tokenizer.ggml.eos_token_id is 2147483648, outside the vocabulary of 40"},
      {"gguf_eos_huge", [](GgufSpec& s) { s.set("tokenizer.ggml.eos_token_id", 10, raw(uint64_t{1} << 63)); }, kBad,
       "\"tokenizer.ggml.eos_token_id\" is 9223372036854775808, above the largest integer served"},
      {"embedding_missing", [](GgufSpec& s) { s.erase_tensor("token_embd.weight"); }, kBad,
       "\"token_embd.weight\" is missing"},
      {"gguf_tensor_missing", [](GgufSpec& s) { s.erase_tensor("blk.1.ffn_up.weight"); }, kBad,
       "\"model.layers.1.mlp.up_proj.weight\" is missing"},
      {"gguf_tensor_unknown",
       [](GgufSpec& s) {
         s.tensors.push_back({"blk.0.attn_q_norm.weight", {1}, 0, "0000", {}});
       },
       kBad, "unknown tensor \"blk.0.attn_q_norm.weight\""},
      {"gguf_tensor_aliased",
       [](GgufSpec& s) {
         testkit::GgufSpecTensor copy = s.tensor("blk.1.attn_norm.weight");
         copy.name = "blk.01.attn_norm.weight";
         s.tensors.push_back(copy);
       },
       kBad, "tensor \"model.layers.1.input_layernorm.weight\" appears twice"},
      {"gguf_layer_beyond", [](GgufSpec& s) { s.set_u32("qwen2.block_count", 1); }, kBad,
       "unknown tensor \"model.layers.1."},
      {"gguf_shape",
       [](GgufSpec& s) {
         s.tensor("output_norm.weight").shape = {1, 64};
       },
       kBad, "\"model.norm.weight\" has shape [1, 64], the configuration needs [64]"},
  };
}

const auto kCaseName = [](const auto& broken) { return broken.param.name; };

class BrokenFolderTest : public testing::TestWithParam<BrokenFolder> {};

TEST_P(BrokenFolderTest, IsRefusedByName) {
  const auto folder = testkit::fresh_folder("broken_" + GetParam().name);
  FolderSpec spec = testkit::tiny_folder();
  spec.write(folder);
  ASSERT_NO_THROW(open_model(folder));
  std::filesystem::remove(folder / "model.safetensors");
  GetParam().change(spec);
  spec.write(folder);
  expect_refused(folder, GetParam().code, GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(Config, BrokenFolderTest, testing::ValuesIn(broken_configs()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Safetensors, BrokenFolderTest, testing::ValuesIn(broken_safetensors()), kCaseName);

class BrokenGgufTest : public testing::TestWithParam<BrokenGguf> {};

TEST_P(BrokenGgufTest, IsRefusedByName) {
  const auto path = testkit::fresh_folder("broken_gguf") / "broken.gguf";
  GgufSpec spec = testkit::tiny_gguf();
  testkit::write_bytes(path, spec.file());
  ASSERT_NO_THROW(open_model(path));
  GetParam().change(spec);
  testkit::write_bytes(path, spec.file());
  expect_refused(path, GetParam().code, GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(Container, BrokenGgufTest, testing::ValuesIn(broken_gguf_containers()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Model, BrokenGgufTest, testing::ValuesIn(broken_gguf_models()), kCaseName);

TEST(OpenModel, APathThatIsNoModelIsNamed) {
  const auto folder = testkit::fresh_folder("nothing_here");
  expect_refused(folder / "absent", kBad, "does not exist");
  testkit::write_bytes(folder / "notes.txt", "just text, no model\n");
  expect_refused(folder / "notes.txt", kBad, "is not a GGUF file");
  expect_refused(folder, kBad, "config.json");
}

TEST(ModelName, ComesFromTheFolderThatAPathStandsFor) {
  const std::filesystem::path here = std::filesystem::current_path();
  EXPECT_EQ(model_name("models/probe-robust"), "probe-robust");
  EXPECT_EQ(model_name("models/probe-robust/"), "probe-robust");
  EXPECT_EQ(model_name("a/model.gguf"), "model.gguf");
  EXPECT_EQ(model_name("."), here.filename().string());
  EXPECT_EQ(model_name("./"), here.filename().string());
  EXPECT_EQ(model_name(".."), here.parent_path().filename().string());
  EXPECT_EQ(model_name(here / ".."), here.parent_path().filename().string());
}

}  // namespace
}  // namespace asymkv
