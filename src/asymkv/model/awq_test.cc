#include "asymkv/model/awq.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "asymkv/base/error.h"
#include "asymkv/model/model_files.h"
#include "asymkv/model/model_files_testkit.h"
#include "asymkv/tensor/dtype.h"
#include "asymkv/tensor/weight_matrix.h"

namespace asymkv {
namespace {

using testkit::FolderSpec;
using testkit::StoredTensor;

constexpr const char* kModule = "model.layers.1.mlp.up_proj";
constexpr int64_t kIn = 64;
constexpr int64_t kOut = 96;

// A random matrix in AutoAWQ's layout and the values it stands for, [kOut, kIn].
struct Packed {
  std::vector<StoredTensor> tensors;
  std::vector<float> values;
};

// [lines, kOut] of 0..15 to I32 words.
std::string pack(const std::vector<int>& numbers) {
  constexpr int kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
  std::string bytes;
  for (size_t word = 0; word < numbers.size() / 8; ++word) {
    uint32_t bits = 0;
    for (int place = 0; place < 8; ++place) {
      bits |= static_cast<uint32_t>(numbers[word * 8 + static_cast<size_t>(kOrder[place])]) << (4 * place);
    }
    bytes += testkit::raw(bits);
  }
  return bytes;
}

Packed random_matrix(int64_t group_size) {
  std::mt19937 rng(7);
  const auto numbers = [&rng](int64_t count) {
    std::vector<int> result(static_cast<size_t>(count));
    for (int& number : result) number = static_cast<int>(rng() % 16);
    return result;
  };
  const int64_t groups = kIn / group_size;
  const std::vector<int> q = numbers(kIn * kOut);
  const std::vector<int> z = numbers(groups * kOut);
  std::vector<float> scales;
  for (int64_t i = 0; i < groups * kOut; ++i) {
    scales.push_back(f16_to_f32(f32_to_f16(0.001F + 0.1F * static_cast<float>(rng()) / 4294967296.0F)));
  }
  Packed packed;
  for (int64_t o = 0; o < kOut; ++o) {
    for (int64_t i = 0; i < kIn; ++i) {
      const auto shared = static_cast<size_t>(i / group_size * kOut + o);
      const int difference = q[static_cast<size_t>(i * kOut + o)] - z[shared];
      packed.values.push_back(static_cast<float>(difference) * scales[shared]);
    }
  }
  const std::string module = kModule;
  packed.tensors = {{module + ".qweight", "I32", {kIn, kOut / 8}, pack(q)},
                    {module + ".qzeros", "I32", {groups, kOut / 8}, pack(z)},
                    {module + ".scales", "F16", {groups, kOut}, testkit::encode(scales, "F16")}};
  return packed;
}

// The tiny model with one AWQ matrix.
FolderSpec awq_folder(int64_t group_size, const Packed& packed) {
  FolderSpec spec = testkit::tiny_folder("qwen2", true, "F16");
  spec.config["quantization_config"] = {{"quant_method", "awq"},    {"bits", 4},
                                        {"group_size", group_size}, {"version", "gemm"},
                                        {"zero_point", true},       {"modules_to_not_convert", nullptr}};
  std::erase_if(spec.tensors,
                [](const StoredTensor& tensor) { return tensor.name == std::string(kModule) + ".weight"; });
  spec.tensors.insert(spec.tensors.end(), packed.tensors.begin(), packed.tensors.end());
  return spec;
}

TEST(Awq, ValuesAreExactInFloatAndInMemory) {
  const std::string name = std::string(kModule) + ".weight";
  for (const int64_t group_size : {32, 64}) {
    const Packed packed = random_matrix(group_size);
    const auto folder = testkit::fresh_folder("awq");
    awq_folder(group_size, packed).write(folder);
    const ModelFiles model = open_model(folder);
    EXPECT_EQ(model.config.native_dtype, DType::kF16);
    EXPECT_EQ(model.weights->info(name).stored_type, awq_stored_type(group_size));
    EXPECT_EQ(model.weights->info(name).shape, (std::vector<int64_t>{kOut, kIn}));
    EXPECT_EQ(model.weights->read_f32(name), packed.values);
    WeightMatrix matrix(kIn);
    model.weights->append_stored(name, matrix);
    ASSERT_EQ(matrix.rows(), kOut);
    EXPECT_EQ(matrix.parts().front().type, GgmlType::kQ5_0);
    std::vector<float> row(kIn);
    for (int64_t o = 0; o < kOut; ++o) {
      matrix.widen_row(o, row);
      EXPECT_TRUE(std::ranges::equal(row, std::span(packed.values).subspan(static_cast<size_t>(o * kIn), kIn))) << o;
    }
  }
}

TEST(Awq, GroupSizeMinusOneIsAWholeRow) {
  const Packed packed = random_matrix(kIn);
  const auto folder = testkit::fresh_folder("awq_row");
  awq_folder(-1, packed).write(folder);
  EXPECT_EQ(open_model(folder).weights->read_f32(std::string(kModule) + ".weight"), packed.values);
}

TEST(Awq, PartsMayLieInSeveralShards) {
  const Packed packed = random_matrix(32);
  FolderSpec spec = awq_folder(32, packed);
  spec.weight_map = Json::object();
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    (*spec.weight_map)[spec.tensors[i].name] = fmt::format("model-0000{}-of-00003.safetensors", 1 + i % 3);
  }
  const auto folder = testkit::fresh_folder("awq_sharded");
  spec.write(folder);
  EXPECT_EQ(open_model(folder).weights->read_f32(std::string(kModule) + ".weight"), packed.values);
}

struct BrokenAwq {
  const char* name;
  std::function<void(FolderSpec&)> change;
  ErrorCode code;
  const char* expected;
};

StoredTensor& part(FolderSpec& spec, const std::string& name) {
  return *std::ranges::find(spec.tensors, std::string(kModule) + name, &StoredTensor::name);
}

std::function<void(FolderSpec&)> set_quantization(const char* key, Json value) {
  return [key, value = std::move(value)](FolderSpec& spec) { spec.config["quantization_config"][key] = value; };
}

std::function<void(FolderSpec&)> reshape(const char* name, std::vector<int64_t> shape, const char* dtype,
                                         size_t bytes) {
  return [=](FolderSpec& spec) {
    StoredTensor& tensor = part(spec, name);
    tensor.shape = shape;
    tensor.dtype = dtype;
    tensor.bytes.resize(bytes);
  };
}

std::vector<BrokenAwq> broken() {
  constexpr auto kBad = ErrorCode::kBadInput;
  constexpr auto kUnserved = ErrorCode::kUnsupported;
  std::vector<BrokenAwq> cases = {
      {"bits", set_quantization("bits", 8), kUnserved, "quantization_config: bits 8 is not supported"},
      {"bits_text", set_quantization("bits", "4"), kBad, "field \"bits\" must be an integer"},
      {"version", set_quantization("version", "gemv"), kUnserved, "version \"gemv\" is not supported, only \"gemm\""},
      {"zero_point", set_quantization("zero_point", false), kUnserved, "zero_point is false"},
      {"group_size", set_quantization("group_size", 0), kBad, "group_size is 0"},
      {"group_size_other", set_quantization("group_size", 64), kBad,
       "up_proj.weight\" is AWQ-INT4-G32, the configuration says group_size 64"},
      {"config_absent", [](FolderSpec& s) { s.config.erase("quantization_config"); }, kBad,
       "up_proj.weight\" is an AWQ matrix but the configuration has no quantization_config"},
      {"config_list", [](FolderSpec& s) { s.config["quantization_config"] = Json::array(); }, kBad,
       "quantization_config must be an object, found array"},
      {"no_zeros", [](FolderSpec& s) { part(s, ".qzeros").name = "model.x"; }, kBad,
       "up_proj.qzeros\" is missing, which \"model.layers.1.mlp.up_proj.qweight\" needs"},
      {"no_scales", [](FolderSpec& s) { part(s, ".scales").name = "model.x"; }, kBad, "up_proj.scales\" is missing"},
      {"no_weight", [](FolderSpec& s) { part(s, ".qweight").name = "model.x"; }, kUnserved, "is stored as I32"},
      {"float_weight", reshape(".qweight", {kIn, kOut / 8}, "F32", kIn * kOut / 2), kUnserved,
       "up_proj.qweight\" is stored as F32; AWQ needs I32"},
      {"float_zeros", reshape(".qzeros", {2, kOut / 8}, "F32", kOut), kUnserved,
       "qzeros\" is stored as F32; AWQ needs I32"},
      {"wide_scales", reshape(".scales", {2, kOut}, "F32", 8 * kOut), kUnserved,
       "scales\" is stored as F32; AWQ needs F16"},
      {"vector", reshape(".qweight", {kIn * kOut / 8}, "I32", kIn * kOut / 2), kBad, "qweight\" has shape [768]"},
      {"no_rows", reshape(".qweight", {0, kOut / 8}, "I32", 0), kBad, "qweight\" has shape [0, 12]"},
      {"no_groups", reshape(".scales", {0, kOut}, "F16", 0), kBad, "scales\" has shape [0, 96]"},
      {"scales_transposed", reshape(".scales", {kOut, 2}, "F16", 4 * kOut), kBad,
       "scales\" has shape [96, 2], the other tensors of this AWQ matrix need [96, 96]"},
      {"zeros_short", reshape(".qzeros", {1, kOut / 8}, "I32", kOut / 2), kBad,
       "qzeros\" has shape [1, 12], the other tensors of this AWQ matrix need [2, 12]"},
      {"weight_twice",
       [](FolderSpec& s) {
         s.tensors.push_back({std::string(kModule) + ".weight", "F16", {1}, std::string(2, '\0')});
       },
       kBad, "up_proj.weight\" appears twice"},
      {"shape_other", reshape(".qweight", {kIn / 2, kOut / 8}, "I32", kIn * kOut / 4), kUnserved,
       "up_proj\" has 2 groups for 32 inputs; only groups of a multiple of 32"},
  };
  for (const char* method : {"gptq", "bitsandbytes", "fp8", "compressed-tensors", ""}) {
    cases.push_back({method, set_quantization("quant_method", method), kUnserved, "is not supported, only \"awq\" is"});
  }
  return cases;
}

TEST(Awq, BrokenFilesAreRefusedByName) {
  for (const BrokenAwq& broken_case : broken()) {
    SCOPED_TRACE(broken_case.name);
    FolderSpec spec = awq_folder(32, random_matrix(32));
    broken_case.change(spec);
    const auto folder = testkit::fresh_folder("awq_broken");
    spec.write(folder);
    try {
      open_model(folder);
      ADD_FAILURE() << "opened, expected: " << broken_case.expected;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), broken_case.code) << e.what();
      EXPECT_THAT(e.what(), testing::HasSubstr(broken_case.expected));
      EXPECT_THAT(e.what(), testing::HasSubstr("awq_broken"));
    }
  }
}

}  // namespace
}  // namespace asymkv
