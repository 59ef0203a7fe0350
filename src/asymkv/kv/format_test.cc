#include "asymkv/kv/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

using ::testing::HasSubstr;

constexpr std::array<std::string_view, 7> kKeyIds{"bf16", "f16", "f32", "e4m3", "e4m3-prebias", "i8", "i8-prebias"};
constexpr std::array<std::string_view, 4> kValueIds{"bf16", "f16", "f32", "e4m3"};

struct Alias {
  std::string_view text;
  std::string_view key;  // "native" stands for the model's own type
  std::string_view value;
};
constexpr std::array<Alias, 7> kAliases{{{"native", "native", "native"},
                                         {"k16v8", "native", "e4m3"},
                                         {"k8v16", "e4m3", "native"},
                                         {"k8v8", "e4m3", "e4m3"},
                                         {"k8v8-prebias", "e4m3-prebias", "e4m3"},
                                         {"ki8v8", "i8", "e4m3"},
                                         {"ki8v8-prebias", "i8-prebias", "e4m3"}}};

TEST(KvFormat, EveryPairOfIdsPrintsAndParsesBack) {
  for (const std::string_view key : kKeyIds) {
    for (const std::string_view value : kValueIds) {
      const std::string text = std::string(key) + "/" + std::string(value);
      const KvFormat format = parse_kv_format(text, DType::kF32, ScaleKind::kDynamic);
      EXPECT_EQ(format.id(), text);
      EXPECT_EQ(format.key.id(), key);
      EXPECT_EQ(format.value.id(), value);
      EXPECT_EQ(parse_kv_format(format.id(), DType::kBF16, ScaleKind::kDynamic), format);
      EXPECT_EQ(format.key.prebias, key.ends_with("-prebias"));
      EXPECT_EQ(format.key.scale, format.key.is_8bit() ? ScaleKind::kDynamic : ScaleKind::kNone);
      EXPECT_EQ(format.value.scale, format.value.is_8bit() ? ScaleKind::kDynamic : ScaleKind::kNone);
    }
  }
}

TEST(KvFormat, EveryAliasStandsForItsExactIds) {
  for (const DType native : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const Alias& alias : kAliases) {
      const auto exact = [&](std::string_view id) { return id == "native" ? dtype_name(native) : id; };
      const std::string ids = std::string(exact(alias.key)) + "/" + std::string(exact(alias.value));
      const KvFormat format = parse_kv_format(alias.text, native, ScaleKind::kDynamic);
      EXPECT_EQ(format.id(), ids) << alias.text;
      EXPECT_EQ(format, parse_kv_format(ids, native, ScaleKind::kDynamic));
    }
  }
}

TEST(KvFormat, ScalePolicyIsOfThe8BitSidesOnly) {
  EXPECT_EQ(parse_kv_format("native", DType::kBF16, ScaleKind::kFixed).scale(), ScaleKind::kNone);
  EXPECT_EQ(parse_kv_format("k16v8", DType::kBF16, ScaleKind::kFixed).scale(), ScaleKind::kFixed);
  EXPECT_EQ(parse_kv_format("k8v16", DType::kBF16, ScaleKind::kFixed).scale(), ScaleKind::kFixed);
  EXPECT_EQ(parse_kv_format("k8v16", DType::kBF16, ScaleKind::kFixed).value.scale, ScaleKind::kNone);
  EXPECT_EQ(scale_kind_name(ScaleKind::kNone), "none");
  EXPECT_EQ(scale_kind_name(ScaleKind::kFixed), "fixed");
  EXPECT_EQ(scale_kind_name(ScaleKind::kDynamic), "dynamic");
}

TEST(KvFormat, RefusesTextThatIsNoFormatAndNamesIt) {
  const std::vector<std::string> bad{"",
                                     "/",
                                     "fp8",
                                     "k8",
                                     "e4m3",
                                     "K16V8",
                                     "k16v8 ",
                                     " native",
                                     "e4m3/",
                                     "/e4m3",
                                     "fp8/fp8",
                                     "e5m2/e4m3",
                                     "e4m3fnuz/e4m3",
                                     "bf16/i8",
                                     "bf16/e4m3-prebias",
                                     "bf16-prebias/e4m3",
                                     "f32-prebias/f32",
                                     "i8-prebias-prebias/e4m3",
                                     "-prebias/e4m3",
                                     "e4m3/e4m3/e4m3",
                                     "e4m3//e4m3",
                                     "bf16\\e4m3",
                                     std::string("k8v8\0", 5),
                                     std::string(100'000, 'k')};
  for (const std::string& text : bad) {
    try {
      parse_kv_format(text, DType::kBF16, ScaleKind::kDynamic);
      ADD_FAILURE() << "accepted \"" << text << "\"";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage) << text;
      const std::string printed = "\"" + text + "\"";
      EXPECT_THAT(error.what(), HasSubstr(printed.c_str()));  // what() ends at a NUL inside the text
    }
  }
}

TEST(KvFormat, RefusesInt8KeysWithFixedScales) {
  for (const std::string_view text : {"ki8v8", "ki8v8-prebias", "i8/bf16", "i8-prebias/f32"}) {
    try {
      parse_kv_format(text, DType::kBF16, ScaleKind::kFixed);
      ADD_FAILURE() << "accepted " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.what(), HasSubstr("--scale dynamic"));
    }
  }
}

TEST(KvFormat, NeedsAScalePolicyAndAWideNativeType) {
  EXPECT_THROW(parse_kv_format("k8v8", DType::kBF16, ScaleKind::kNone), Error);
  EXPECT_THROW(parse_kv_format("native", DType::kE4M3, ScaleKind::kDynamic), Error);
}

TEST(KvFormat, FreshRowsHaveTheStoredTypeOfAWideSideElseTheNativeOne) {
  const KvFormat mixed = parse_kv_format("f32/e4m3", DType::kBF16, ScaleKind::kDynamic);
  EXPECT_EQ(fresh_key_dtype(mixed, DType::kBF16), DType::kF32);
  EXPECT_EQ(fresh_value_dtype(mixed, DType::kBF16), DType::kBF16);
  const KvFormat reverse = parse_kv_format("i8/f16", DType::kBF16, ScaleKind::kDynamic);
  EXPECT_EQ(fresh_key_dtype(reverse, DType::kBF16), DType::kBF16);
  EXPECT_EQ(fresh_value_dtype(reverse, DType::kBF16), DType::kF16);
}

}  // namespace
}  // namespace asymkv
