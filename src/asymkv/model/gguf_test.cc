#include "asymkv/model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/model/safetensors.h"

namespace asymkv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::filesystem::path golden(const char* name) {
  const char* source = std::getenv("ASYMKV_SOURCE_DIR");
  return std::filesystem::path(source == nullptr ? "." : source) / "tests/golden/gguf" / name;
}

// A file written by gguf-py's GGUFWriter, values as make_gguf_golden.py states them.
TEST(Gguf, ReadsWhatTheReferenceWriterWrote) {
  const GgufFile file(golden("container.gguf"));
  EXPECT_EQ(file.require_string("general.architecture"), "golden");
  EXPECT_EQ(file.require_int("a.uint8"), 200);
  EXPECT_EQ(file.require_int("a.int8"), -100);
  EXPECT_EQ(file.require_int("a.uint16"), 60000);
  EXPECT_EQ(file.require_int("a.int16"), -30000);
  EXPECT_EQ(file.require_int("a.uint32"), 4'000'000'000);
  EXPECT_EQ(file.require_int("a.int32"), -2'000'000'000);
  EXPECT_EQ(file.require_int("a.uint64"), int64_t{1} << 62);
  EXPECT_EQ(file.require_int("a.int64"), -(int64_t{1} << 62));
  EXPECT_EQ(file.require_number("a.float32"), static_cast<double>(0.1F));
  EXPECT_EQ(file.require_number("a.float64"), 0.1);
  EXPECT_TRUE(file.require_bool("a.bool"));
  EXPECT_EQ(file.require_string("a.string"), "käse 饭");
  EXPECT_THAT(file.require_strings("a.strings"), ElementsAre("", "x", "Ġthe"));
  EXPECT_THAT(file.require_ints("a.ints"), ElementsAre(1, -2, 3));
  EXPECT_THAT(file.require_floats("a.floats"), ElementsAre(0.5F, -1.5F));
  const GgufTensor* matrix = file.find_tensor("matrix");
  ASSERT_NE(matrix, nullptr);
  EXPECT_THAT(matrix->shape, ElementsAre(3, 4));
  std::vector<float> values(12);
  dequantize_ggml(matrix->type, matrix->bytes, values);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<float>(i));
  const GgufTensor* quantised = file.find_tensor("quantised");
  ASSERT_NE(quantised, nullptr);
  EXPECT_EQ(quantised->type, GgmlType::kQ8_0);
  EXPECT_THAT(quantised->shape, ElementsAre(2, 32));
}

TEST(Gguf, TypedAccessNamesFileKeyAndTypes) {
  const GgufFile file(golden("container.gguf"));
  const auto message = [](const auto& read) -> std::string {
    try {
      read();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kBadInput);
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(message([&] { file.require_int("a.string"); }),
              HasSubstr("\"a.string\" must be an integer, found string"));
  EXPECT_THAT(message([&] { file.require_int("a.ints"); }), HasSubstr("\"a.ints\" must be an integer, found an array"));
  EXPECT_THAT(message([&] { file.require_int("absent"); }), HasSubstr("\"absent\" is missing"));
  EXPECT_THAT(message([&] { file.require_strings("a.ints"); }), HasSubstr("must be an array of strings"));
  EXPECT_THAT(message([&] { file.require_ints("a.floats"); }), HasSubstr("must be an array of integers"));
  EXPECT_THAT(message([&] { file.require_floats("a.strings"); }), HasSubstr("must be an array of float32"));
  EXPECT_THAT(message([&] { file.require_number("a.bool"); }), HasSubstr("must be a number, found bool"));
  EXPECT_THAT(message([&] { file.require_bool("a.uint8"); }), HasSubstr("must be a bool"));
  EXPECT_THAT(message([&] { file.require_string("a.float32"); }), HasSubstr("container.gguf"));
  EXPECT_EQ(file.int_or("absent", 7), 7);
  EXPECT_EQ(file.string_or("absent", "x"), "x");
}

TEST(Gguf, ViewsSurviveAMove) {
  GgufFile first(golden("container.gguf"));
  const auto strings = first.require_strings("a.strings");
  const GgufFile second(std::move(first));
  EXPECT_EQ(strings[2], "Ġthe");
  EXPECT_EQ(second.require_int("a.uint8"), 200);
}

// A cut at every length must be an Error, never a crash or a silent success with tensors outside the file.
TEST(Gguf, EveryTruncationIsRefused) {
  const MappedFile whole(golden("container.gguf"));
  const GgufFile good(whole.bytes(), "whole");
  const size_t tail = static_cast<size_t>(whole.bytes().data() + whole.bytes().size() -
                                          (good.tensors().back().bytes.data() + good.tensors().back().bytes.size()));
  for (size_t size = 0; size + tail < whole.bytes().size(); ++size) {
    // A copy of exact size, so that AddressSanitizer sees a read beyond it.
    const std::vector<std::byte> cut(whole.bytes().begin(), whole.bytes().begin() + static_cast<ptrdiff_t>(size));
    EXPECT_THROW(GgufFile(cut, "cut"), Error) << size;
  }
}

TEST(Safetensors, ReadsWhatTheReferenceWriterWrote) {
  const MappedFile file(golden("container.safetensors"));
  const SafetensorsHeader header = parse_safetensors(file.bytes(), "container");
  EXPECT_EQ(header.metadata.at("format"), "np");
  ASSERT_EQ(header.tensors.size(), 4U);
  const auto find = [&header](const std::string& name) {
    return *std::ranges::find(header.tensors, name, &SafetensorsEntry::name);
  };
  EXPECT_THAT(find("matrix").shape, ElementsAre(2, 3));
  EXPECT_EQ(find("matrix").bytes.size(), 24U);
  EXPECT_TRUE(find("scalar").shape.empty());
  EXPECT_TRUE(find("empty").bytes.empty());
  EXPECT_EQ(find("half").dtype, "F16");
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const MappedFile whole(golden("container.safetensors"));
  for (size_t size = 0; size < whole.bytes().size(); ++size) {
    const std::vector<std::byte> cut(whole.bytes().begin(), whole.bytes().begin() + static_cast<ptrdiff_t>(size));
    EXPECT_THROW(parse_safetensors(cut, "cut"), Error) << size;
  }
}

}  // namespace
}  // namespace asymkv
