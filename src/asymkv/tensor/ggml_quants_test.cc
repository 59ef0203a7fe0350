#include "asymkv/tensor/ggml_quants.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/tensor/dtype.h"

namespace asymkv {
namespace {

struct Golden {
  const char* file;
  GgmlType type;
};

class GgmlGolden : public testing::TestWithParam<Golden> {};

// Files of tests/golden/make_gguf_golden.py: gguf-py's own values, compared bit for bit.
TEST_P(GgmlGolden, EqualsGgufPyBitForBit) {
  const char* source = std::getenv("ASYMKV_SOURCE_DIR");
  ASSERT_NE(source, nullptr);
  const MappedFile file(std::filesystem::path(source) / "tests/golden/gguf" / GetParam().file);
  uint32_t sizes[2];
  std::memcpy(sizes, file.bytes().data(), sizeof(sizes));
  const auto stored = file.bytes().subspan(sizeof(sizes), sizes[0]);
  std::vector<uint32_t> expected(sizes[1]);
  ASSERT_EQ(file.bytes().size(), sizeof(sizes) + sizes[0] + expected.size() * 4);
  std::memcpy(expected.data(), file.bytes().data() + sizeof(sizes) + sizes[0], expected.size() * 4);

  std::vector<float> values(expected.size());
  dequantize_ggml(GetParam().type, stored, values);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), expected[i])
        << "element " << i << ": " << values[i] << ", expected " << std::bit_cast<float>(expected[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, GgmlGolden,
                         testing::Values(Golden{"f32.bin", GgmlType::kF32}, Golden{"f16.bin", GgmlType::kF16},
                                         Golden{"bf16.bin", GgmlType::kBF16}, Golden{"q4_0.bin", GgmlType::kQ4_0},
                                         Golden{"q4_1.bin", GgmlType::kQ4_1}, Golden{"q5_0.bin", GgmlType::kQ5_0},
                                         Golden{"q5_1.bin", GgmlType::kQ5_1}, Golden{"q2_k.bin", GgmlType::kQ2_K},
                                         Golden{"q3_k.bin", GgmlType::kQ3_K}, Golden{"q5_k.bin", GgmlType::kQ5_K},
                                         Golden{"iq4_nl.bin", GgmlType::kIq4Nl}, Golden{"iq4_xs.bin", GgmlType::kIq4Xs},
                                         Golden{"mxfp4.bin", GgmlType::kMXFP4}, Golden{"q8_0.bin", GgmlType::kQ8_0},
                                         Golden{"q4_k.bin", GgmlType::kQ4_K}, Golden{"q6_k.bin", GgmlType::kQ6_K}),
                         [](const auto& golden) {
                           std::string name = golden.param.file;
                           return name.substr(0, name.find('.'));
                         });

TEST(GgmlQuants, KnowsNamesOfTypesItDoesNotDecode) {
  EXPECT_EQ(ggml_type_name(17), "IQ2_XS");
  EXPECT_EQ(find_ggml_type(17), nullptr);
  EXPECT_EQ(served_ggml_types().find("IQ2_XS"), std::string::npos);
  EXPECT_TRUE(served_ggml_types().ends_with("IQ4_XS or MXFP4"));
  EXPECT_EQ(ggml_type_name(1000), "");
  for (const Golden& golden : {Golden{"", GgmlType::kF32}, Golden{"", GgmlType::kQ6_K}}) {
    const auto id = static_cast<uint32_t>(golden.type);
    ASSERT_NE(find_ggml_type(id), nullptr);
    EXPECT_EQ(find_ggml_type(id)->name, ggml_type_name(id));
  }
}

TEST(GgmlQuants, BlocksOfQ5AreReadAndWritten) {
  Q5Block block;
  block.scale = f32_to_f16(0.5F);
  for (size_t i = 0; i < block.codes.size(); ++i) block.codes[i] = static_cast<uint8_t>(i * 7 % 32);
  std::array<std::byte, Q5Block::kBytes> bytes{};
  block.write(bytes.data());
  EXPECT_EQ(Q5Block::read(bytes.data()).codes, block.codes);
  EXPECT_EQ(Q5Block::read(bytes.data()).scale, block.scale);
  std::array<float, Q5Block::kElems> values{};
  dequantize_ggml(GgmlType::kQ5_0, bytes, values);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i], 0.5F * (static_cast<float>(block.codes[i]) - 16.0F)) << i;
  }
}

TEST(GgmlQuants, RefusesPartOfABlock) {
  std::vector<std::byte> stored(34);
  std::vector<float> out(31);
  EXPECT_THROW(dequantize_ggml(GgmlType::kQ8_0, stored, out), Error);
  out.resize(64);
  EXPECT_THROW(dequantize_ggml(GgmlType::kQ8_0, stored, out), Error);
}

}  // namespace
}  // namespace asymkv
